"""Joins of two streams by any condition that are more than inner ones of rows that stay.

- ``ThetaSides``: the condition, and the type of the join.
- ``ThetaChangeSpec``: results come at once, and may be taken back.
- ``ThetaFinalSpec``: results come once. One without a partner comes when the watermark says that no
  partner can come.

A stream is *counted* if results depend on whether a row of it has a partner: both of a full join,
the left one of a left, semi or anti join, none of an inner join.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import SQL_NAMES, Join, Kind, nullable_streams
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.predicate import text_of
from lsmstate.joins.specs.changes import FINAL, check_emit, check_operation, with_operation
from lsmstate.joins.specs.event_time import EventTime, TimeOptions, lasting, time_bounds
from lsmstate.joins.specs.final import TICKS, waiting_stream
from lsmstate.joins.specs.output_rows import shown_in_order, tree_rows
from lsmstate.joins.specs.theta import ThetaIndex, ThetaSpec
from lsmstate.store import StreamSchema
from lsmstate.store_base.null_safe import null_safe_schema


@dataclass(frozen=True)
class ThetaSides:
    """Made by ``of``."""

    theta: ThetaSpec
    """The streams as they are stored, and the condition."""
    kind: Kind
    """Not "right": that is "left" the other way round."""
    left: str
    right: str

    @classmethod
    def of(cls, theta: ThetaSpec, kind: Kind, left: str, right: str) -> "ThetaSides":
        """A join of two streams, ``left`` of which stands on the left."""
        assert len(theta.streams) == 2
        if kind == "right":
            kind, left, right = "left", right, left
        return cls(theta, kind, left, right)

    @cached_property
    def tree(self) -> Join:
        """The same as a tree of joins."""
        conditions = tuple(PairCondition(each) for each in self.theta.conjuncts)
        return Join(self.kind, self.left, self.right, (), (), conditions)

    @property
    def counted(self) -> tuple[str, ...]:
        """Streams of whose rows it matters whether they have a partner."""
        if self.kind == "full":
            return (self.left, self.right)
        return () if self.kind == "inner" else (self.left,)

    @property
    def shows_pairs(self) -> bool:
        """Whether a result may have a row of each stream."""
        return self.kind in ("inner", "left", "full")

    def shows_alone(self, stream: str) -> bool:
        """Whether a row without a partner is a result."""
        return self.kind != "semi" and stream in self.counted

    def other(self, stream: str) -> str:
        """The other one of the two streams."""
        return self.right if stream == self.left else self.left

    def index_of(self, stream: str) -> ThetaIndex:
        """The index that rows of the other stream look into."""
        (step,) = self.theta.steps[self.other(stream)]
        return step.index

    @property
    def shown(self) -> tuple[str, ...]:
        """The streams that have columns in a result, in the streams' order."""
        return shown_in_order(self.tree, self.theta.streams)

    @cached_property
    def rows_schema(self) -> pa.Schema:
        """The columns of a result; null where it may have no row of the stream."""
        return tree_rows(self.tree, self.theta.streams)

    @property
    def nullable(self) -> set[str]:
        """Streams that a result may have no row of."""
        return nullable_streams(self.tree)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The time intervals of the condition."""
        return time_bounds(self.theta.streams, map(text_of, self.theta.conjuncts))[0]

    def described(self, emit: str, operations: Mapping[str, str]) -> dict[str, Any]:
        """What is compared with a kept state."""
        return {
            **self.theta.described(),
            "joins": f"{self.left} {SQL_NAMES[self.kind]} {self.right}",
            "emit": emit,
            "changelogs": sorted(f"{name}.{column}" for name, column in operations.items()),
        }

    def timing(self, told: TimeOptions, emit: str) -> EventTime:
        """The event times, and how long rows are kept: until no row or retraction in time can
        touch a result of theirs."""
        found = lasting(self.theta, self.bounds, told, emit)
        return replace(
            found,
            kept_us={
                name: _sum(own, found.kept_us[self.other(name)])
                if self.other(name) in self.counted
                else own
                for name, own in found.kept_us.items()
            },
        )


@dataclass(frozen=True)
class ThetaChangeSpec:
    """Made by ``of``."""

    sides: ThetaSides
    emits_changes: bool
    """Whether results have an operation column."""
    operations: Mapping[str, str] = field(default_factory=dict)
    """The operation column of each stream that is a changelog."""
    event_time: EventTime | None = None
    """Of a join with time intervals."""

    @classmethod
    def of(
        cls,
        sides: ThetaSides,
        emit: str,
        operations: Mapping[str, str],
        told: TimeOptions,
    ) -> "ThetaChangeSpec":
        """``told`` counts where there are time intervals. InvalidArgumentError names what does not
        fit."""
        check_emit(sides.tree, emit, operations)
        timing = sides.timing(told, emit) if sides.bounds else None
        spec = cls(sides, emit == "changes", dict(operations), timing)
        if spec.emits_changes:
            check_operation(spec.output_schema)
        return spec

    @property
    def theta(self) -> ThetaSpec:
        """The condition."""
        return self.sides.theta

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The streams as they are stored."""
        return self.theta.streams

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The columns of a result, after the operation if there is one."""
        rows = self.sides.rows_schema
        return with_operation(rows) if self.emits_changes else rows

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The indexes; and of changelogs the rows that match nothing, where these are results."""
        alone = (
            StreamSchema(
                rows_alone(name),
                null_safe_schema(self.sides.index_of(name).key_schema),
                self.streams[name],
            )
            for name in self.streams
            if name in self.operations and self.sides.shows_alone(name)
        )
        schemas = (*self.sides.theta.stream_schemas, *alone)
        return (
            schemas if self.event_time is None else self.event_time.expiring(schemas, self.owners)
        )

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        return {**self.sides.theta.owners, **{rows_alone(name): name for name in self.streams}}

    def bounds_of(self, stream: str) -> tuple[Bound, ...]:
        """The intervals without whose times a row is in no result."""
        if self.event_time is None or self.sides.shows_alone(stream):
            return ()
        return self.event_time.bounds

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return self.sides.described("changes" if self.emits_changes else "append", self.operations)

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.sides.theta.check_stream(stream)

    def explained(self) -> tuple[str, ...]:
        """How each part of the condition is used, and what becomes of rows without partners."""
        lines = [f"join: {self.sides.left} {SQL_NAMES[self.sides.kind]} {self.sides.right}"]
        if self.operations:
            listed = ", ".join(f"{name} by {column}" for name, column in self.operations.items())
            lines.append(f"changelogs: {listed}")
        for name in self.sides.counted:
            lines.append(
                f"a row of {name} that gets its first partner, or loses its last one, is found by "
                f"a look into {self.sides.other(name)} for each batch"
            )
        return (*lines, *self.sides.theta.explained())


@dataclass(frozen=True)
class ThetaFinalSpec:
    """Made by ``of``."""

    sides: ThetaSides
    event_time: EventTime
    waits_us: Mapping[str, int]
    """By counted stream, how long after its event time a row waits for a partner."""
    operations: ClassVar[Mapping[str, str]] = {}
    emits_changes: ClassVar[bool] = False

    @classmethod
    def of(cls, sides: ThetaSides, told: TimeOptions) -> "ThetaFinalSpec":
        """InvalidArgumentError names what does not fit."""
        own = lasting(sides.theta, sides.bounds, told, FINAL)
        waits = {name: _waits(sides, own, name) for name in sides.counted}
        return cls(sides, sides.timing(told, FINAL), waits)

    @property
    def theta(self) -> ThetaSpec:
        """The condition."""
        return self.sides.theta

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream."""
        return self.theta.streams

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of a result."""
        return self.sides.rows_schema

    @property
    def indexed(self) -> tuple[str, ...]:
        """The streams whose rows are looked up."""
        return tuple(self.streams) if self.sides.shows_pairs else (self.sides.right,)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The indexes, rows that wait by their event time, and the watermark."""
        waiting = [
            StreamSchema(waiting_stream(name), TICKS, self.streams[name])
            for name in self.sides.counted
        ]
        *indexes, watermark = self.event_time.expiring(self.sides.theta.stream_schemas, self.owners)
        return (*indexes, *waiting, watermark)

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        return self.sides.theta.owners

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return self.sides.described(FINAL, {})

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.sides.theta.check_stream(stream)

    def explained(self) -> tuple[str, ...]:
        """How each part of the condition is used, and how long rows wait."""
        waits = "; ".join(
            f"{name}: until the watermark is {timedelta(microseconds=us)} past "
            f"{self.event_time.columns[name]}"
            for name, us in self.waits_us.items()
        )
        return (
            f"join: {self.sides.left} {SQL_NAMES[self.sides.kind]} {self.sides.right}",
            f"results are final; rows without a partner wait ({waits})",
            *self.sides.theta.explained(),
        )


def rows_alone(stream: str) -> str:
    """The store's stream of the rows of ``stream`` that match nothing, whatever comes."""
    return f"{stream} (alone)"


def _sum(own: int | None, more: int | None) -> int | None:
    return None if own is None or more is None else own + more


def _waits(sides: ThetaSides, timing: EventTime, stream: str) -> int:
    """How long rows of a counted stream wait. InvalidArgumentError if that is for ever."""
    other, columns = sides.other(stream), timing.columns
    for name in (stream, other):
        if name not in columns:
            raise InvalidArgumentError(
                f"emit='final': rows of {stream!r} wait until the watermark says that no row "
                f"of {other!r} can come for them, and {name!r} has no event time; name its column "
                "of time stamps, or use emit='changes', which does not wait"
            )
    waits = timing.kept_us[stream]
    if waits is None:
        own = f"{stream}.{columns[stream]}"
        raise InvalidArgumentError(
            f"emit='final': rows of {stream!r} would wait for ever for {other!r}; bound its time "
            f"from above, as in {other}.{columns[other]} <= {own} + INTERVAL 1 HOUR, or use "
            "emit='changes', which does not wait"
        )
    return waits
