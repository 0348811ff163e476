"""LearnedRouting: documents to buckets by a table that is made from the first ones, and made anew
for later windows when it has become bad.

- Without tumbling windows the first table stays, as documents of all times may meet.
- Where no first table is made from rows, all documents go everywhere at first. The table is made
  of a sample of what was stored then: later documents meet the earlier ones wherever they go.
- After a tumbling window, its copies and its largest load are compared with what was estimated. If
  one has grown by more than ``theta``, another layout is chosen from a sample of what was stored of
  late. It counts from the next window on that has no layout yet.
- Association groups with ``unknown="broadcast"`` learn in between: a value that was seen ``delta``
  times is added to a partition. All documents with it went everywhere before, so they meet the
  later ones. (With ``"hash"`` they would not.)

Source: Gjurovski, Michel, *Scaling Out Schema-free Stream Joins* (ICDE 2020), section 6.
"""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.document_reading import MARKS, READING, Reading, panes
from lsmstate.joins.protocols import Role
from lsmstate.joins.routing.documents.association_groups import SAMPLE, GroupRouting, values_of
from lsmstate.joins.routing.documents.cells import CellRouter
from lsmstate.joins.routing.documents.document_table import (
    HYPERCUBE,
    DocumentRouting,
    DocumentTable,
    Layout,
)
from lsmstate.joins.routing.documents.hypercube import HypercubeRouting
from lsmstate.joins.routing.documents.quality import Quality

Numbers = npt.NDArray[np.int64]

#: The counter of layouts that were made after the first.
REPARTITIONS: Final = "repartitions"
#: Under which the first start pins the layout that the user asked for.
FIRST: Final = "first layout"
FIXED: Final = "is fixed"
#: Sights of an unknown value after which it is added.
DELTA: Final = 3
#: Documents of a window, and of a sample, below which nothing is decided.
LEAST: Final = 200
#: Windows that have a layout ahead of the newest one; more where a micro-batch goes through many.
_AHEAD: Final = 2
_AHEAD_AT_FIRST: Final = 8
#: Part of the documents that a window needs to be the newest.
_FEW: Final = 0.01
#: What a bucket keeps and tells: windows, bytes of texts, unknown values.
_MOST_WINDOWS: Final = 64
_MOST_BYTES: Final = 128 << 10
_MOST_UNKNOWN: Final = 2048
#: Unknown values that are counted in a micro-batch beside those.
_MOST_NEW: Final = 16384
#: Odd, so that a product with it deals 64-bit values anew.
_SPREAD: Final = 0x9E3779B97F4A7C15
#: Values of a table.
_MOST_VALUES: Final = 200_000


@dataclass(frozen=True)
class Tumbling:
    """Windows that follow each other."""

    columns: Mapping[str, str]
    """By stream its event time."""
    size_us: int

    def windows(self, stream: str, rows: pa.RecordBatch) -> Numbers:
        """The window of each row; a row without a time is in any."""
        return panes(rows.column(self.columns[stream]), self.size_us)

    def least(self, watermark_us: int) -> int:
        """The first window that documents after a watermark may be in."""
        return (watermark_us + 1) // self.size_us


class Sights(NamedTuple):
    """How often a value that the table lacks was seen, and where it is to go."""

    sights: int
    near: int
    """Most values of one partition that stood beside it in a document."""
    partition: int
    """That partition; of several the least."""

    def and_also(self, other: "Sights") -> "Sights":
        """Both together, in any order."""
        best = min(self, other, key=lambda each: (-each.near, each.partition))
        return Sights(self.sights + other.sights, best.near, best.partition)


@dataclass(frozen=True)
class SeenDocuments:
    """What one bucket has stored."""

    bucket: int
    watermark_us: int | None = None
    windows: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By window, documents of its own and all that it stored."""
    sample: tuple[str, ...] = ()
    """Of its own documents, those of the least checksums."""
    is_cut: bool = False
    """Whether there were more."""
    repartitions: int = 0
    """Of the table by which it was stored."""
    unknown: Mapping[int, "Sights"] = field(default_factory=dict)
    """Values that the table lacks."""

    def to_json(self) -> dict[str, Any]:
        """What was seen as JSON has it."""
        return {
            "watermark": self.watermark_us,
            "windows": [[window, *counts] for window, counts in self.windows.items()],
            "sample": list(self.sample),
            "is cut": self.is_cut,
            "repartitions": self.repartitions,
            "unknown": [[value, *told] for value, told in self.unknown.items()],
        }

    @classmethod
    def from_json(cls, bucket: int, found: Mapping[str, Any]) -> "SeenDocuments":
        """The inverse of ``to_json``."""
        return cls(
            bucket,
            found.get("watermark"),
            {window: (own, stored) for window, own, stored in found.get("windows", ())},
            tuple(found.get("sample", ())),
            bool(found.get("is cut", False)),
            found.get("repartitions", 0),
            {value: Sights(*told) for value, *told in found.get("unknown", ())},
        )


@dataclass(frozen=True)
class LearnedRouting:
    """Made by the face of ``natural_join``."""

    counters: ClassVar[tuple[str, ...]] = (REPARTITIONS,)
    #: Samples have the least checksums, and of values sums and maxima are told.
    makes_tables_alike: ClassVar[bool] = True

    kind: str = HYPERCUBE
    reading: Reading = READING
    unknown: str = "hash"
    window: Tumbling | None = None
    """None: a table is for all times."""
    theta: float | None = 0.2
    """How much worse than estimated a table may be. None: the first one stays."""
    first: Layout | None = None
    """What the user asked for, by a sample or a split."""
    is_fixed: bool = False
    """Whether ``first`` stays."""
    buckets: int = 1
    marks: pa.Schema = MARKS

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The layout that the user asked for, which the first start pins."""
        if self.first is None:
            return {}
        return {FIRST: {**self.first.to_json(), FIXED: self.is_fixed}}

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "LearnedRouting":
        """The routing over that many buckets, with what the first start pinned."""
        found = adopted.get(FIRST)
        if found is None:
            return replace(self, buckets=buckets, first=None, is_fixed=False)
        first = Layout.from_json(found, buckets, self.reading)
        return replace(self, buckets=buckets, first=first, is_fixed=found[FIXED])

    @property
    def initial_table(self) -> DocumentTable:
        """The layout that the user asked for; if none, all documents go everywhere."""
        return DocumentTable(self.buckets, () if self.first is None else (self.first,))

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: DocumentTable | None = None
    ) -> CellRouter:
        """The router of one stream under the table of a micro-batch."""
        used = table or self.initial_table
        return CellRouter(
            lambda documents, rows: used.cells(documents, self._windows(stream, rows)),
            self.reading,
        )

    def _windows(self, stream: str, rows: pa.RecordBatch) -> Numbers | None:
        return None if self.window is None else self.window.windows(stream, rows)

    # Tables

    def sampled_table(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, micro_batch: int
    ) -> DocumentTable:
        """The first table, from some rows of one stream."""
        layout = self.first
        if layout is None:
            texts = keys.column(0)
            layout = self.layout(_strided(texts.drop_null().to_pylist(), SAMPLE))
        table = DocumentTable(self.buckets, (layout,))
        if not self._changes or self.window is None:
            return table
        windows = np.sort(self.window.windows(stream, rows.filter(self._has_time(stream, rows))))
        most = len(windows) - 1
        newest = int(windows[int((1 - _FEW) * most)]) if len(windows) else 0
        span = newest - int(windows[int(_FEW * most)]) if len(windows) else 0
        return replace(table, newest=newest, until=newest + 1 + _AHEAD_AT_FIRST + 2 * span)

    def _has_time(self, stream: str, rows: pa.RecordBatch) -> pa.Array:
        assert self.window is not None
        return rows.column(self.window.columns[stream]).is_valid()

    @property
    def _changes(self) -> bool:
        return self.window is not None and self.theta is not None and not self.is_fixed

    def layout(self, texts: Sequence[str]) -> Layout:
        """The layout that a sample asks for."""
        documents = self.reading.read(pa.array(texts, pa.string()))
        if self.kind == HYPERCUBE:
            grid = HypercubeRouting.chosen(texts, self.buckets, self.reading)
            return Layout(grid, Quality.of_cells(grid.cells(documents), self.buckets))
        groups = GroupRouting.chosen(texts, self.buckets, self.reading, unknown=self.unknown)
        # By groups of one half the other half is estimated: it has values that these lack.
        half = GroupRouting.chosen(
            texts[::2] or texts, self.buckets, self.reading, unknown=self.unknown
        )
        others = self.reading.read(pa.array(texts[1::2] or texts, pa.string()))
        return Layout(groups, Quality.of_cells(half.cells(others), self.buckets))

    def next_table(
        self, table: DocumentTable, observed: Sequence[SeenDocuments], micro_batch: int
    ) -> DocumentTable:
        """Note what was seen, add values, and choose another layout if the last one is bad."""
        watermarks = [each.watermark_us for each in observed if each.watermark_us is not None]
        watermark = max(watermarks, default=None)
        table = replace(table, known=self._known(table, observed, watermark))
        if not table.layouts:
            return self._begun(table, observed)
        table = self._with_added(table, observed)
        if self.window is None or table.until is None:
            return table
        if watermark is not None:
            least = self.window.least(watermark)
            table = _without_old(table, least)
            if self._changes:
                table = self._judged(table, observed, least)
        newest = max(table.newest, self._newest(table))
        ahead = max(_AHEAD, 2 * (newest - table.newest))
        assert table.until is not None
        return replace(table, newest=newest, until=max(table.until, newest + 1 + ahead))

    def _begun(self, table: DocumentTable, observed: Sequence[SeenDocuments]) -> DocumentTable:
        """With the first layout, made of what was stored everywhere before, once that is enough."""
        texts = _sample(observed)
        if len(texts) < LEAST:
            return table
        table = replace(table, layouts=(self.layout(texts),))
        if not self._changes:
            return table
        newest = self._newest(table)
        return replace(table, newest=newest, until=newest + 1 + _AHEAD_AT_FIRST)

    def _known(
        self, table: DocumentTable, observed: Sequence[SeenDocuments], watermark: int | None
    ) -> dict[int, dict[int, tuple[int, int]]]:
        """What buckets have told by now, of windows that matter."""
        found = {window: dict(told) for window, told in table.known.items()}
        for each in observed:
            for window, counts in each.windows.items():
                found.setdefault(window, {})[each.bucket] = counts
        return {window: found[window] for window in _recent(found, self.window, watermark)}

    @staticmethod
    def _newest(table: DocumentTable) -> int:
        """The newest window that has more than a few documents."""
        counts = {window: table.seen(window).documents for window in sorted(table.known)}
        after, total = 0, sum(counts.values())
        for window in reversed(list(counts)):
            after += counts[window]
            if after > _FEW * total:
                return window
        return table.newest

    def _judged(
        self, table: DocumentTable, observed: Sequence[SeenDocuments], least: int
    ) -> DocumentTable:
        """The table after a look at the last window that is over."""
        last = table.layouts[-1]
        assert self.theta is not None
        over = [
            window
            for window in table.known
            if window < least
            and (table.judged is None or window > table.judged)
            and (last.first is None or window >= last.first)
            and table.seen(window).documents >= LEAST
        ]
        if not over:
            return table
        window = max(over)
        quality = table.seen(window).quality
        table = replace(table, judged=window)
        if not quality.is_worse(last.estimated, self.theta):
            return table
        texts = _sample(observed)
        if len(texts) < LEAST:
            return table
        layout = self.layout(texts)
        documents = self.reading.read(pa.array(texts, pa.string()))
        now = Quality.of_cells(last.routing.cells(documents), self.buckets)
        if layout.estimated.cost(self.buckets) < now.cost(self.buckets):
            return table.with_layout(layout)
        # Documents have changed, and nothing is better: what was seen is what is to be expected.
        return replace(table, layouts=(*table.layouts[:-1], replace(last, estimated=quality)))

    def _with_added(self, table: DocumentTable, observed: Sequence[SeenDocuments]) -> DocumentTable:
        """The delta rule."""
        last = table.layouts[-1] if table.layouts else None
        if last is None or not _learns(last.routing):
            return table
        assert isinstance(last.routing, GroupRouting)
        sights: dict[int, Sights] = {}
        for each in observed:
            for value, told in each.unknown.items():
                sights[value] = sights[value].and_also(told) if value in sights else told
        room = max(0, _MOST_VALUES - len(last.routing.table))
        due = (value for value in sorted(sights) if sights[value].sights >= DELTA)
        new = (value for value in due if value not in last.routing.table)
        added = {value: sights[value].partition for value in islice(new, room)}
        if not added:
            return table
        routing = replace(last.routing, table={**last.routing.table, **added})
        return replace(table, layouts=(*table.layouts[:-1], replace(last, routing=routing)))

    def table_from_json(self, found: Mapping[str, Any]) -> DocumentTable:
        """The inverse of ``DocumentTable.to_json``."""
        return DocumentTable.from_json(found, self.reading)

    def observed_from_json(self, bucket: int, found: Mapping[str, Any]) -> SeenDocuments:
        """The inverse of ``SeenDocuments.to_json``."""
        return SeenDocuments.from_json(bucket, found)

    def observer(
        self,
        bucket: int,
        table: DocumentTable,
        kept: Mapping[str, Any] | None,
        *,
        is_last: bool,
        watermark_us: int | None = None,
    ) -> "DocumentObserver":
        """Watch what a bucket stores in a micro-batch."""
        return DocumentObserver(self, bucket, table, kept or {}, is_last, watermark_us)


class DocumentObserver:
    """What one bucket stores in one micro-batch; made by ``LearnedRouting.observer``."""

    def __init__(
        self,
        routing: LearnedRouting,
        bucket: int,
        table: DocumentTable,
        kept: Mapping[str, Any],
        is_last: bool,
        watermark_us: int | None,
    ) -> None:
        before = SeenDocuments.from_json(bucket, kept)
        self._routing = routing
        self._bucket = bucket
        self._watermark_us = watermark_us
        self._windows = dict(before.windows)
        self._samples = is_last and (routing._changes or not table.layouts)
        self._texts: list[tuple[int, str]] = []
        self._bytes = 0
        self._is_cut = False
        self._table = table
        self._known = before.repartitions
        last = table.layouts[-1].routing if table.layouts else None
        self._groups = last if isinstance(last, GroupRouting) and _learns(last) else None
        self._unknown: dict[int, Sights] = {}
        self._new: dict[int, Sights] = {}
        if self._groups is not None:
            known = self._groups.table
            self._unknown = {v: told for v, told in before.unknown.items() if v not in known}

    @property
    def counts(self) -> Mapping[str, int]:
        """``repartitions``: layouts that were made since the last call. One bucket tells of them,
        so that they count once."""
        is_told = self._bucket == 0
        return {REPARTITIONS: self._table.repartitions - self._known if is_told else 0}

    def add(
        self,
        stream: str,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        role: Role = Role.STORE,
    ) -> None:
        """Note documents that are stored. Cost: a few vector operations; before the next table a
        checksum of each; and reading them where unknown values go everywhere."""
        is_own = role == Role.STORE
        windows = self._routing._windows(stream, rows)
        if windows is None:
            windows = np.zeros(rows.num_rows, np.int64)
        for window, count in zip(*np.unique(windows, return_counts=True), strict=True):
            own, stored = self._windows.get(int(window), (0, 0))
            self._windows[int(window)] = (own + is_own * int(count), stored + int(count))
        if is_own and self._samples:
            self._sample(keys.column(0))
        if is_own and self._groups is not None:
            self._watch(keys.column(0), self._groups)

    def _sample(self, texts: pa.Array) -> None:
        for text in texts.drop_null().to_pylist():
            self._texts.append((zlib.crc32(text.encode()), text))
            self._bytes += len(text)
        if self._bytes > 2 * _MOST_BYTES:
            self._cut()

    def _cut(self) -> None:
        """Leave the texts of the least checksums."""
        self._texts.sort()
        kept = size = 0
        for _, text in self._texts:
            size += len(text)
            if size > _MOST_BYTES or kept >= SAMPLE:
                self._is_cut = True
                break
            kept += 1
        del self._texts[kept:]
        self._bytes = sum(len(text) for _, text in self._texts)

    def _watch(self, texts: pa.Array, groups: GroupRouting) -> None:
        """Count values that the table lacks. Of many new ones, those that ``_spread`` puts first:
        what is beyond them now is so for ever, whatever order documents have."""
        for values in values_of(self._routing.reading.read(texts), groups.expansion)[0]:
            unknown = [value for value in values if value not in groups.table]
            if not unknown:
                continue
            near = Counter(groups.table[value] for value in values if value in groups.table)
            best = min(near, key=lambda each: (-near[each], each)) if near else 0
            for value in unknown:
                told = Sights(1, near[best], best if near else value % groups.partitions)
                counted = self._unknown if value in self._unknown else self._new
                counted[value] = counted[value].and_also(told) if value in counted else told
            if len(self._new) > 2 * _MOST_NEW:
                self._new = {v: self._new[v] for v in sorted(self._new, key=_spread)[:_MOST_NEW]}

    def _counted(self) -> dict[int, Sights]:
        """The unknown values that were seen most often."""
        new = sorted(self._new, key=_spread)[:_MOST_NEW]
        found = {**self._unknown, **{value: self._new[value] for value in new}}
        often = sorted(found.items(), key=lambda each: (-each[1].sights, _spread(each[0])))
        return dict(often[:_MOST_UNKNOWN])

    def _seen(self) -> SeenDocuments:
        window, watermark = self._routing.window, self._watermark_us
        recent = _recent(self._windows, window, watermark)
        return SeenDocuments(
            self._bucket,
            watermark,
            {each: self._windows[each] for each in recent},
            repartitions=self._table.repartitions,
            unknown=self._counted(),
        )

    def kept(self) -> dict[str, Any]:
        """What the next observer of the bucket needs; commit it with the rows."""
        return self._seen().to_json()

    def observed(self) -> SeenDocuments:
        """What the next table is made from."""
        self._cut()
        sample = tuple(text for _, text in self._texts)
        return replace(self._seen(), sample=sample, is_cut=self._is_cut)


def _spread(value: int) -> int:
    """A number by which some values come before others, whatever they are of."""
    return value * _SPREAD & 0xFFFFFFFFFFFFFFFF


def _learns(routing: DocumentRouting) -> bool:
    return isinstance(routing, GroupRouting) and routing.unknown == "broadcast"


def _recent(
    windows: Mapping[int, Any], window: Tumbling | None, watermark: int | None
) -> list[int]:
    """The windows that are open, and the last one that is over; of too many the first."""
    found = sorted(windows)
    if window is not None and watermark is not None:
        least = window.least(watermark)
        over = [each for each in found if each < least]
        found = [*over[-2:], *(each for each in found if each >= least)]
    return found[:_MOST_WINDOWS]


def _without_old(table: DocumentTable, least: int) -> DocumentTable:
    """The table without layouts whose windows are all over."""
    layouts = list(table.layouts)
    while len(layouts) > 1 and layouts[1].first is not None and layouts[1].first <= least:
        del layouts[0]
    return replace(table, layouts=tuple(layouts))


def _sample(observed: Sequence[SeenDocuments]) -> list[str]:
    """One sample of all buckets' documents: those whose checksums are below any that was cut."""
    texts = [(zlib.crc32(t.encode()), t) for each in observed for t in each.sample]
    cuts = [
        zlib.crc32(each.sample[-1].encode()) if each.sample else -1
        for each in observed
        if each.is_cut
    ]
    limit = min(cuts, default=1 << 32)
    return [text for checksum, text in sorted(texts) if checksum <= limit][:SAMPLE]


def _strided(texts: Sequence[str], most: int) -> Sequence[str]:
    """So many texts, at equal distances."""
    return texts[:: -(-len(texts) // most)] if len(texts) > most else texts
