"""Event time of a join: how long rows are needed, and what becomes of late ones.

- A row is *late* if its event time is not after the watermark, as in Spark. The watermark is the
  one up to which the join has forgotten rows.
- A row of time t is forgotten as soon as the watermark reaches t + ``kept_us``. Then no row that is
  not late can match it, or its retention is over.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import Expiry
from lsmstate.joins.conditions.classify import SplitCondition, split_condition
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.intervals import (
    UNITS,
    Bound,
    bounds_in,
    needed_us,
    parse_duration,
)
from lsmstate.joins.conditions.join_tree import bound_text
from lsmstate.joins.conditions.names import named, resolved
from lsmstate.joins.conditions.parser import parse_condition
from lsmstate.joins.specs.described import described
from lsmstate.joins.specs.multi_key import GraphSpec, create_spec
from lsmstate.joins.specs.one_key import Condition, JoinSpec, check_streams
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import nearest

LATE: Final = ("drop", "join", "side")
#: Where the watermark is kept with the state: one row.
WATERMARK: Final = StreamSchema(
    "@watermark",
    pa.schema([("name", pa.string())]),
    pa.schema([("watermark_us", pa.int64())]),
)

#: What is joined, without event times.
Joined = JoinSpec | GraphSpec | ThetaSpec
#: How long rows of each stream are kept: ``"7 days"`` or a timedelta.
Retention = Mapping[str, str | timedelta]


@dataclass(frozen=True)
class EventTime:
    """What a join knows of event time; made by ``EventTime.create``."""

    columns: Mapping[str, str]
    """By stream, its event-time column; a stream without one has no late rows."""
    bounds: tuple[Bound, ...]
    """What every result keeps."""
    kept_us: Mapping[str, int | None]
    """By stream, how long a row is kept after its event time; None: for ever."""
    late: str
    """``drop``: late rows are left out; ``join``: they match what is there; ``side``: they are
    handed out aside."""
    needs_time: bool = False
    """Whether a row without an event time is late too."""

    @classmethod
    def create(
        cls,
        spec: Joined,
        columns: Mapping[str, str],
        bounds: Iterable[Bound],
        retention: Retention,
        late: str,
        needs_time: bool = False,
    ) -> "EventTime":
        """InvalidArgumentError names what does not fit."""
        if late not in LATE:
            raise InvalidArgumentError(f"late={late!r} is unknown{nearest(late, LATE)}")
        columns = _resolved_columns(spec.streams, columns)
        bounds = tuple(bounds)
        needed = needed_us((*bounds, *_equal_times(spec)), columns, spec.streams)
        kept = dict(needed)
        for given, value in named("retention", retention, '{"a": "7 days"}').items():
            name = resolved("stream", given, spec.streams)
            if name not in columns:
                raise InvalidArgumentError(
                    f"retention[{given!r}]={value!r}: stream {name!r} has no event time; name its "
                    "column of time stamps"
                )
            least = duration_us(f"retention[{given!r}]", value)
            most = needed[name]
            kept[name] = least if most is None else min(least, most)
        return cls(columns, bounds, kept, late, needs_time)

    @property
    def forgets(self) -> bool:
        """Whether any row is ever forgotten."""
        return any(kept is not None for kept in self.kept_us.values())

    def watermark_us(self, streams: Mapping[str, pa.Schema], watermark: object) -> int:
        """A watermark in microseconds since 1970; without a time zone it is one of the same kind
        as the event times. InvalidArgumentError if one of those has a zone."""
        kinds = [streams[name].field(column).type for name, column in self.columns.items()]
        if not isinstance(watermark, datetime) or (
            watermark.tzinfo is None and any(kind.tz is not None for kind in kinds)
        ):
            raise InvalidArgumentError(
                f"watermark {watermark!r}: give a datetime, and one with a time zone if an event "
                "time has one"
            )
        epoch = datetime(1970, 1, 1, tzinfo=UTC if watermark.tzinfo else None)
        return (watermark - epoch) // timedelta(microseconds=1)

    def store_streams(self, spec: Joined) -> tuple[StreamSchema, ...]:
        """The spec's streams as a store is opened with: with their expiry, and the watermark's."""
        return self.expiring(spec.stream_schemas, spec.owners)

    def expiring(
        self, schemas: Iterable[StreamSchema], owners: Mapping[str, str]
    ) -> tuple[StreamSchema, ...]:
        """Streams of the store with the expiry of their owners' rows, and the watermark's. What
        has no owner stays."""
        streams = [
            replace(schema, expiry=self._expiry(owners.get(schema.name), schema.rows))
            for schema in schemas
        ]
        return (*streams, WATERMARK)

    def _expiry(self, name: str | None, rows: pa.Schema) -> Expiry | None:
        kept = None if name is None else self.kept_us[name]
        if name is None or kept is None:
            return None
        column = self.columns[name]
        tick = max(1, 1_000_000 // _per_second(rows.field(column).type))
        most = timedelta.max // timedelta(microseconds=tick)
        return Expiry(column, min(-(-kept // tick), most) * timedelta(microseconds=tick))


@dataclass(frozen=True)
class TimedSpec:
    """An inner join that knows of event time."""

    joined: Joined
    event_time: EventTime

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream."""
        return self.joined.streams

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams of the store, with their expiry, and the watermark's."""
        return self.event_time.store_streams(self.joined)

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of a result."""
        return self.joined.output_schema

    @property
    def graph(self) -> GraphSpec | None:
        """The keys of a join by several ones."""
        return self.joined.graph

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        return self.joined.owners

    def bounds_of(self, stream: str) -> tuple[Bound, ...]:
        """The intervals without whose times a row is in no result: all of them."""
        return self.event_time.bounds

    def computed(self, stream: str) -> Sequence[str]:
        """Names of the columns that the local join is given beside the rows."""
        return self.joined.computed(stream)

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        bounds = described((), bounds=self.event_time.bounds)["intervals"]
        return {**self.joined.described(), "intervals": bounds}

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.joined.check_stream(stream)


@dataclass(frozen=True)
class TimedThetaSpec(TimedSpec):
    """An inner join by any condition that knows of event time."""

    joined: ThetaSpec
    sides: ClassVar[None] = None
    operations: ClassVar[Mapping[str, str]] = {}
    emits_changes: ClassVar[bool] = False

    @property
    def theta(self) -> ThetaSpec:
        """The condition."""
        return self.joined

    def explained(self) -> tuple[str, ...]:
        """How each part of the condition is used."""
        return self.joined.explained()


def create_timed(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    columns: Mapping[str, str],
    retention: Retention,
    late: str,
) -> JoinSpec | GraphSpec | TimedSpec:
    """The spec of a condition that may have time intervals; a TimedSpec if the condition or the
    options say anything of time. InvalidArgumentError names what does not fit,
    among it conditions that are neither equalities nor intervals."""
    condition = SplitCondition("", ())
    if isinstance(on, str):
        check_streams(streams)
        condition = split_condition(on, {name: s.names for name, s in streams.items()})
    spec = create_spec(streams, condition.keys or on)
    bounds, rest = time_bounds(streams, condition.rest)
    if rest:
        raise InvalidArgumentError(
            f"join condition {rest[0]!r} is neither an equality of columns of two streams nor an "
            "interval between their time stamps, such as a.at <= b.at + INTERVAL 1 HOUR; filter "
            "the results for it"
        )
    timing = EventTime.create(spec, columns, bounds, retention, late)
    return TimedSpec(spec, timing) if columns or bounds or retention else spec


class TimeOptions(NamedTuple):
    """What a join is told of time beside its condition."""

    columns: Mapping[str, str]
    """Event times by stream."""
    retention: Retention
    late: str


NO_TIME: Final = TimeOptions({}, {}, "drop")


def lasting(
    spec: GraphSpec | ThetaSpec, bounds: Iterable[Bound], told: TimeOptions, emit: str
) -> EventTime:
    """What a join knows of time whose results come once, or are taken back: then nothing but its
    intervals may say what matches. InvalidArgumentError names what does not fit."""
    if told.retention:
        raise InvalidArgumentError(
            f"retention={dict(told.retention)!r} with emit={emit!r}: here the time intervals of "
            "the condition say how long a row finds partners, as in "
            "b.at <= a.at + INTERVAL 7 DAYS; write it there"
        )
    if told.late == "join":
        raise InvalidArgumentError(
            f"late='join' with emit={emit!r}: the rows that a late row would match or retract may "
            "be forgotten, so rows that come late cannot be joined; choose late='drop' or 'side'"
        )
    bounds = tuple(bounds)
    for bound in bounds:
        if not is_between_times(spec.streams, bound):
            raise InvalidArgumentError(
                f"joins: {bound_text(bound)} is not an interval between two time stamps, both with "
                "a time zone or both without: "
                f"{unfit_times(spec.streams, (bound.later, bound.earlier)) or 'filter for it'}, or "
                "filter the inputs or the result for it"
            )
    return EventTime.create(spec, told.columns, bounds, {}, told.late)


def time_bounds(
    streams: Mapping[str, pa.Schema], conjuncts: Iterable[str]
) -> tuple[tuple[Bound, ...], tuple[str, ...]]:
    """The bounds among some conjuncts, and those that are none: they are no time intervals, or
    not between time stamps that are both with a time zone or both without."""
    columns = {name: schema.names for name, schema in streams.items()}
    bounds: list[Bound] = []
    rest: list[str] = []
    for conjunct in conjuncts:
        found = bounds_in(parse_condition(conjunct, columns))
        if found and all(is_between_times(streams, bound) for bound in found):
            bounds += found
        else:
            rest.append(conjunct)
    return tuple(bounds), tuple(rest)


def is_between_times(streams: Mapping[str, pa.Schema], bound: Bound) -> bool:
    """Whether its columns are time stamps, both with a time zone or both without."""
    kinds = [streams[c.stream].field(c.name).type for c in (bound.later, bound.earlier)]
    return all(map(pa.types.is_timestamp, kinds)) and len({k.tz is None for k in kinds}) == 1


def unfit_times(streams: Mapping[str, pa.Schema], columns: Iterable[Column]) -> str | None:
    """Why an interval between these columns bounds no time, and the remedy; None: it may."""
    kinds = {column: streams[column.stream].field(column.name).type for column in columns}
    dates = [str(column) for column, kind in kinds.items() if pa.types.is_date(kind)]
    if dates:
        are = "is a date" if len(dates) == 1 else "are dates"
        return f"{' and '.join(dates)} {are}; cast to time stamps before the join"
    stamps = {column: kind for column, kind in kinds.items() if pa.types.is_timestamp(kind)}
    zoned = [str(column) for column, kind in stamps.items() if kind.tz is not None]
    naive = [str(column) for column, kind in stamps.items() if kind.tz is None]
    if zoned and naive:
        return (
            f"{' and '.join(zoned)} has a time zone, and {' and '.join(naive)} has none; cast them "
            "to one type before the join"
        )
    return None


def _resolved_columns(
    streams: Mapping[str, pa.Schema], columns: Mapping[str, str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for given, column in named("event_time", columns, '{"a": "at"}').items():
        name = resolved("stream", given, streams)
        found[name] = resolved("column", column, streams[name].names, name)
        kind = streams[name].field(found[name]).type
        if not pa.types.is_timestamp(kind):
            raise InvalidArgumentError(
                f"event_time[{given!r}]={column!r} is {kind}; name a column of time stamps, or "
                "cast it to one"
            )
    return {name: found[name] for name in streams if name in found}


def _equal_times(spec: Joined) -> list[Bound]:
    """Keys that are time stamps are bounds too: the columns of one class are equal."""
    found = []
    for members in spec.key_columns:
        columns = [Column(name, column) for name, column in members.items()]
        pairs = [(a, b) for a in columns for b in columns if a != b]
        found += [Bound(later, earlier, 0) for later, earlier in pairs]
    return [bound for bound in found if is_between_times(spec.streams, bound)]


def duration_us(what: str, value: str | timedelta) -> int:
    """Microseconds of a length of time. InvalidArgumentError, about ``what``, if it is none."""
    if isinstance(value, timedelta):
        found = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        found = parse_duration(value, what)
    else:
        raise InvalidArgumentError(f'{what}={value!r}: give text such as "7 days", or a timedelta')
    if found < 0:
        raise InvalidArgumentError(f"{what}={value!r} must not be negative")
    return found


def _per_second(kind: pa.DataType) -> int:
    return int(1000 ** UNITS.index(kind.unit))
