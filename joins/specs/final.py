"""FinalSpec: joins of any type whose results come once, when they are final.

- A result with a row of every stream is final when its last row arrives.
- Any other result is final when the watermark says that no row can come that affects it. How far
  that is follows from the time intervals, step by step from the row of the *root*, the preserved
  side (``rooted_steps``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import Tree, bounds_of, joins_of
from lsmstate.joins.specs.changes import FINAL
from lsmstate.joins.specs.described import described
from lsmstate.joins.specs.event_time import EventTime, Retention, TimeOptions, lasting
from lsmstate.joins.specs.multi_key import GraphSpec, Index
from lsmstate.joins.specs.output_rows import shown_in_order, tree_rows
from lsmstate.joins.specs.rooted_steps import Reach, RootedJoins, reaches, rooted_joins
from lsmstate.joins.specs.typed_tree import settled
from lsmstate.store import StreamSchema

#: The key of the streams of rows that wait: the event time, in what its column counts.
TICKS: Final = pa.schema([("ticks", pa.int64())])


@dataclass(frozen=True)
class FinalSpec:
    """Made by ``FinalSpec.of``."""

    graph: GraphSpec
    tree: Tree
    event_time: EventTime
    """``kept_us`` is how long rows are needed as partners."""
    waiting: Mapping[str, "Waiting"]
    """By stream, what is known of its rows when they have waited."""
    parts: tuple[RootedJoins, ...]
    """The tree by its roots."""
    matches_at_once: bool
    """Whether results with a row of every stream come when their last row does."""

    @classmethod
    def of(
        cls,
        graph: GraphSpec,
        tree: Tree,
        columns: Mapping[str, str],
        retention: Retention,
        late: str,
    ) -> "FinalSpec":
        """``columns``: event times by stream. InvalidArgumentError names what does not fit."""
        tree = settled(tree, graph.streams)
        told = TimeOptions(columns, retention, late)
        timing = lasting(graph, bounds_of(tree), told, FINAL)
        parts = rooted_joins(tree, graph)
        matches_at_once = all(join.kind not in ("semi", "anti") for join in joins_of(tree))
        # The others' results all come at once.
        waiting = [part for part in parts if not (matches_at_once and part.is_inner)]
        own = [(s.stream, s.classes) for part in waiting for s in part.all_steps]
        matching = [step for part in waiting if part.unless for step in part.unless.steps]
        own += [(step.earlier, step.earlier_classes) for step in matching]
        found = {part.root: _waiting(part, timing.columns) for part in waiting}
        kept = timing.kept_us if matches_at_once else dict.fromkeys(graph.streams, 0)
        kept = {name: _longest(name, kept[name], found.values()) for name in graph.streams}
        return cls(
            replace(graph, more_indexes=tuple(own)),
            tree,
            replace(timing, kept_us=kept),
            found,
            parts,
            matches_at_once,
        )

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The streams as they are stored."""
        return self.graph.streams

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store that forgets rows, whose rows it holds."""
        return self.graph.owners

    @property
    def waits_us(self) -> Mapping[str, int]:
        """By stream whose rows wait, how long after their event time."""
        return {name: each.waits_us for name, each in self.waiting.items()}

    @property
    def indexes(self) -> tuple[Index, ...]:
        """The streams of the store that partners are looked up in."""
        return self.graph.indexes

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The streams that have columns in a result, in the streams' order."""
        return shown_in_order(self.tree, self.streams)

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The columns of the streams that are shown; null where a result has no row of one."""
        return tree_rows(self.tree, self.graph.shown_rows)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams as a store is opened with: partners, rows that wait, the watermark."""
        *partners, watermark = self.event_time.store_streams(self.graph)
        waiting = (
            StreamSchema(waiting_stream(name), TICKS, self.streams[name]) for name in self.waiting
        )
        return (*partners, *waiting, watermark)

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return described(
            self.graph.equal_columns(),
            joins=str(self.tree),
            emit=FINAL,
            bounds=self.event_time.bounds,
        )

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.graph.check_stream(stream)


@dataclass(frozen=True)
class Waiting:
    """Rows of a root that wait: for what, how long, and how far away what matters to them is."""

    joins: RootedJoins
    waits_us: int
    """After its event time; then the watermark has passed all that may match."""
    reaches: Mapping[str, Reach]


def waiting_stream(stream: str) -> str:
    """The store's stream of the rows of ``stream`` that wait, by their event time."""
    return f"{stream} (waiting)"


def _waiting(joins: RootedJoins, event_times: Mapping[str, str]) -> Waiting:
    found = reaches(joins, event_times)
    for name in found:
        if name not in event_times:
            raise InvalidArgumentError(
                f"emit='final': rows of {joins.root!r} wait until the watermark says that no row "
                f"of {name!r} can come for them, and {name!r} has no event time; name its column "
                "of time stamps, or use emit='changes', which does not wait"
            )
    longest = 0
    for name, reach in found.items():
        if reach.ahead_us is None:
            root = f"{joins.root}.{event_times[joins.root]}"
            raise InvalidArgumentError(
                f"emit='final': rows of {joins.root!r} would wait for ever for {name!r}; bound its "
                f"time from above, as in {name}.{event_times[name]} <= {root} + INTERVAL 1 HOUR, "
                "or use emit='changes', which does not wait"
            )
        longest = max(longest, reach.ahead_us)
    return Waiting(joins, longest, found)


def _longest(stream: str, kept_us: int | None, waiting: Iterable["Waiting"]) -> int | None:
    """How long a row is needed: also until no row waits any more that it matters to."""
    for each in waiting:
        reach = each.reaches.get(stream)
        if reach is None or stream == each.joins.root:
            continue
        if kept_us is None or reach.behind_us is None:
            return None
        kept_us = max(kept_us, reach.behind_us + each.waits_us)
    return kept_us
