"""A table of layouts: by which routing the documents of each tumbling window go to buckets.

- A *layout* is a routing from some window on. All documents of a window are routed by one, whenever
  they come, so those that match have a cell in common.
- Documents that come before their window has a layout go everywhere. They meet all others of it,
  whatever layout it gets.
- Without tumbling windows there is one layout, which stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.joins.document_reading import Reading
from lsmstate.joins.routing.documents.association_groups import GroupRouting
from lsmstate.joins.routing.documents.cells import Cells
from lsmstate.joins.routing.documents.hypercube import HypercubeRouting
from lsmstate.joins.routing.documents.quality import Quality

Numbers = npt.NDArray[np.int64]
DocumentRouting = HypercubeRouting | GroupRouting

HYPERCUBE: Final = "hypercube"
ASSOCIATION_GROUPS: Final = "association_groups"
ROUTINGS: Final = (HYPERCUBE, ASSOCIATION_GROUPS)


@dataclass(frozen=True)
class Layout:
    """A routing, and from which window on it counts."""

    routing: DocumentRouting
    estimated: Quality
    """Of the documents that it was made from."""
    first: int | None = None
    """The number of that window; None: all windows before the next layout."""

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON has it."""
        is_groups = isinstance(self.routing, GroupRouting)
        return {
            "kind": ASSOCIATION_GROUPS if is_groups else HYPERCUBE,
            "table": dict(self.routing.adopted),
            "estimated": list(vars(self.estimated).values()),
            "first": self.first,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], buckets: int, reading: Reading) -> "Layout":
        """The inverse of ``to_json``. InvalidArgumentError if it needs more buckets."""
        empty: DocumentRouting = HypercubeRouting({}, reading)
        if found["kind"] == ASSOCIATION_GROUPS:
            empty = GroupRouting({}, buckets, reading=reading)
        routing = empty.settled(buckets, found["table"])
        return cls(routing, Quality(*found["estimated"]), found["first"])


class SeenWindow(NamedTuple):
    """What all buckets have stored of a window, as far as they have told."""

    documents: int
    loads: Numbers
    """By bucket, copies included."""

    @property
    def quality(self) -> Quality:
        """What its documents cost."""
        return Quality.of(self.loads, self.documents)


@dataclass(frozen=True)
class DocumentTable:
    """What documents are routed by in some micro-batches."""

    buckets: int
    layouts: tuple[Layout, ...] = ()
    """The oldest first. None: all documents go everywhere."""
    until: int | None = None
    """The first window that has no layout yet; None: the last layout is for ever."""
    known: Mapping[int, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    """By window and bucket, documents of its own and all that it has stored."""
    newest: int = 0
    """The newest window that more than a few documents were in, when the table was made."""
    judged: int | None = None
    """The last window whose quality was compared with what its layout was estimated to have."""
    repartitions: int = 0
    """Layouts that were made after the first."""

    @property
    def called(self) -> tuple[int, ...]:
        """None: rows say which buckets they need."""
        return ()

    def cells(self, documents: Documents, windows: Numbers | None) -> Cells:
        """The cells of documents, beside which their windows stand; None: there are none."""
        if not self.layouts:
            is_some = documents.sizes() > 0
            numbers = np.tile(np.arange(self.buckets, dtype=np.int64), int(is_some.sum()))
            return Cells(np.cumsum(is_some * self.buckets).astype(np.int64), numbers)
        last = self.layouts[-1]
        if windows is None or (self.until is None and len(self.layouts) == 1):
            return last.routing.cells(documents)
        firsts = np.array([layout.first for layout in self.layouts[1:]], np.int64)
        which = np.searchsorted(firsts, windows, side="right")
        if self.until is not None:
            which[windows >= self.until] = len(self.layouts)
        found = []
        for number in np.unique(which):
            here = which == number
            if number == len(self.layouts):
                some = np.flatnonzero(here & (documents.sizes() > 0))
                cells = np.tile(np.arange(self.buckets, dtype=np.int64), len(some))
                found.append((np.repeat(some, self.buckets), cells))
                continue
            ends, cells = self.layouts[number].routing.cells(documents)
            places = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
            kept = here[places]
            found.append((places[kept], cells[kept]))
        places = np.concatenate([np.empty(0, np.int64), *(each for each, _ in found)])
        numbers = np.concatenate([np.empty(0, np.int64), *(each for _, each in found)])
        order = np.lexsort((numbers, places))
        counts = np.bincount(places, minlength=len(windows))
        return Cells(np.cumsum(counts).astype(np.int64), numbers[order])

    def seen(self, window: int) -> SeenWindow:
        """What buckets have told of a window."""
        loads = np.zeros(self.buckets, np.int64)
        documents = 0
        for bucket, (own, stored) in self.known.get(window, {}).items():
            documents += own
            loads[bucket] += stored
        return SeenWindow(documents, loads)

    def with_layout(self, layout: Layout) -> "DocumentTable":
        """The table with another layout, from the first window that has none."""
        added = replace(layout, first=self.until)
        return replace(self, layouts=(*self.layouts, added), repartitions=self.repartitions + 1)

    def explain(self) -> str:
        """The last layout, what it was estimated to cost, and what was seen."""
        if not self.layouts:
            return ""
        last = self.layouts[-1]
        lines = [last.routing.explain()]
        if last.estimated.replication:
            lines.append(f"estimated: {last.estimated}")
        if self.known:
            # The last window that is over, while buckets tell of it.
            fullest = max(self.known, key=lambda window: self.seen(window).documents)
            judged = fullest if self.judged is None else self.judged
            seen = self.seen(judged if judged in self.known else fullest)
            if seen.documents:
                lines.append(f"seen: {seen.quality}, of {seen.documents} documents")
        if self.until is not None:
            lines.append(f"new tables since the first: {self.repartitions}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The table as JSON has it."""
        return {
            "buckets": self.buckets,
            "layouts": [layout.to_json() for layout in self.layouts],
            "until": self.until,
            "known": [
                [window, [[bucket, *counts] for bucket, counts in by_bucket.items()]]
                for window, by_bucket in self.known.items()
            ],
            "newest": self.newest,
            "judged": self.judged,
            "repartitions": self.repartitions,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], reading: Reading) -> "DocumentTable":
        """The inverse of ``to_json``."""
        buckets = found["buckets"]
        return cls(
            buckets,
            tuple(Layout.from_json(each, buckets, reading) for each in found["layouts"]),
            found["until"],
            {
                window: {bucket: (own, stored) for bucket, own, stored in told}
                for window, told in found["known"]
            },
            found["newest"],
            found["judged"],
            found["repartitions"],
        )
