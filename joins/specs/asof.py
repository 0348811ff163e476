"""AsofSpec: for each row of the first stream the nearest row of the second, before, after or both.

- Times are compared as *ticks*: whole numbers in the finer unit of the two columns.
- Rows of the second stream lie under what is equal, then under their *place*: their ticks, or of a
  join that looks forward their ticks with all bits inverted. So the row that is wanted always is
  the last one of a range.
- Rows of the first stream wait under their ticks until the watermark says that no nearer row can
  come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import Expiry
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.intervals import UNITS
from lsmstate.joins.conditions.key_classes import class_type
from lsmstate.joins.conditions.key_types import cast_key, common_key_type
from lsmstate.joins.conditions.names import column_names, resolved, unknown
from lsmstate.joins.conditions.parser import parse_condition
from lsmstate.joins.conditions.predicate import Compare, Equal
from lsmstate.joins.specs.changes import check_operation, with_operation
from lsmstate.joins.specs.event_time import WATERMARK, EventTime, duration_us
from lsmstate.joins.specs.final import waiting_stream
from lsmstate.joins.specs.one_key import check_streams, joined_schema
from lsmstate.joins.specs.window import TimeWindow, time_window
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import nearest

HOW: Final = ("inner", "left")
LATE: Final = ("drop", "side")
EMITS: Final = ("final", "changes")
#: Of a stored row of the second stream: its place among those of its key.
PLACE: Final = "@place"
#: The event time of a waiting row.
TICKS: Final = "@ticks"
#: Sign of a comparison for the nearest row in both directions.
NEAREST: Final = "~"
_SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", NEAREST: NEAREST}

#: Of ticks and places.
LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1

Ticks = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AsofSpec:
    """Made by ``AsofSpec.of``."""

    streams: Mapping[str, pa.Schema]
    """The first one is the one that is kept whole by ``how="left"``."""
    times: Mapping[str, str]
    """By stream its column of times."""
    sign: str
    """The first time stands on its left: ">=" and ">" look back, "<=" and "<" look ahead, and "~"
    looks both ways."""
    keys: Mapping[str, tuple[str, ...]]
    """By stream, columns that are equal in a result."""
    how: str = "inner"
    tolerance: int | None = None
    """How far the times of a result may be apart: in microseconds, or as the numbers are. With
    windows at most their length."""
    late: str = "drop"
    emit: str = "final"
    """"changes": results come at once, and are taken back where a nearer row comes."""
    compared_as: pa.Schema | None = None
    """The types in which keys are compared, if the caller casts them."""
    window: TimeWindow | None = None
    """Windows, one of which holds both times of a result; they count as ``tolerance`` does."""

    @classmethod
    def of(
        cls,
        streams: Mapping[str, pa.Schema],
        on: str,
        *,
        by: Sequence[str] | Mapping[str, Sequence[str]] | str = (),
        how: str = "inner",
        tolerance: str | timedelta | int | None = None,
        window: object = None,
        late: str = "drop",
        emit: str = "final",
    ) -> "AsofSpec":
        """Check what is joined. InvalidArgumentError names what does not fit."""
        check_streams(streams)
        if len(streams) != 2:
            raise InvalidArgumentError(
                f"streams: {len(streams)} of them; an as-of join has two, first the one that each "
                "result has one row of"
            )
        for name, schema in streams.items():
            for column in schema.names:
                if column.startswith("@"):
                    raise InvalidArgumentError(
                        f"column {name}.{column}: names that begin with @ are the join's own; "
                        "rename it"
                    )
        asked = (("how", how, HOW), ("late", late, LATE), ("emit", emit, EMITS))
        for option, value, known in asked:
            if value not in known:
                raise InvalidArgumentError(
                    f"{option}={value!r} is not for as-of joins{nearest(str(value), known)}; "
                    f"choose one of {', '.join(known)}"
                )
        times, sign = _compared(streams, on)
        keys = keys_by(streams, by)
        kinds = [streams[name].field(column).type for name, column in times.items()]
        most = None if tolerance is None else _tolerance(tolerance, kinds[0])
        windows = None if window is None else _windows(window, kinds)
        if windows is not None:
            most = windows.size_us if most is None else min(most, windows.size_us)
        spec = cls(dict(streams), times, sign, keys, how, most, late, emit, window=windows)
        if spec.looks_both_ways and most is None:
            raise InvalidArgumentError(
                f"on={on!r} without tolerance=: a row would wait for ever for a nearer one that is "
                'later; bound the wait, as in tolerance="5 minutes", or by a window'
            )
        if spec.looks_ahead and most is None and how == "left" and not spec.emits_changes:
            raise InvalidArgumentError(
                f"on={on!r} with how='left': a row that no later one follows would wait for ever; "
                "bound the wait by tolerance=, or choose how='inner'"
            )
        assert len(spec.rows_schema) == sum(len(schema) for schema in streams.values())
        if spec.emits_changes:
            check_operation(spec.output_schema)
        assert len(spec.key_schema) == len(next(iter(keys.values())))
        return spec

    @property
    def left(self) -> str:
        """The first stream."""
        return next(iter(self.streams))

    @property
    def right(self) -> str:
        """The second stream."""
        return tuple(self.streams)[1]

    @property
    def looks_ahead(self) -> bool:
        """Whether the row that is wanted lies after the first stream's."""
        return self.sign in ("<", "<=")

    @property
    def looks_both_ways(self) -> bool:
        """Whether the row that is wanted lies before or after; of two as near, the one before."""
        return self.sign == NEAREST

    @property
    def emits_changes(self) -> bool:
        """Whether results have an operation column."""
        return self.emit == "changes"

    @property
    def is_strict(self) -> bool:
        """Whether rows of one time are none of a result."""
        return self.sign in ("<", ">")

    @property
    def is_open(self) -> bool:
        """Whether a row waits for a later one, however long that takes."""
        return self.looks_ahead and self.tolerance is None

    @property
    def has_stamps(self) -> bool:
        """Whether times are time stamps; otherwise they are whole numbers."""
        return bool(pa.types.is_timestamp(self._kinds[0]))

    @property
    def _kinds(self) -> list[pa.DataType]:
        return [self.streams[name].field(column).type for name, column in self.times.items()]

    @cached_property
    def tick_type(self) -> pa.DataType:
        """The type of the times whose whole numbers are the ticks."""
        return common_key_type(self._kinds)

    def ticks(self, stream: str, rows: pa.RecordBatch) -> pa.Array:
        """The times of rows as int64, null where there is none."""
        times = cast_key(rows.column(self.times[stream]), self.tick_type)
        return times.view(pa.int64()) if self.has_stamps else times.cast(pa.int64())

    def ticks_of(self, watermark: int, *, is_length: bool = False) -> int:
        """Microseconds in ticks, rounded down and within 64 bits; of whole numbers themselves."""
        found = watermark
        if self.has_stamps:
            per_second = int(1000 ** UNITS.index(self.tick_type.unit))
            found = watermark * per_second // 1_000_000
        least = 0 if is_length else -(1 << 63)
        return min(max(found, least), (1 << 63) - 1)

    @cached_property
    def tolerance_ticks(self) -> int | None:
        """The tolerance in ticks."""
        return None if self.tolerance is None else self.ticks_of(self.tolerance, is_length=True)

    def least_places(self, places: Ticks) -> Ticks | None:
        """For rows of the first stream by their places, the least places of rows of the second that
        may be theirs; None: any."""
        if self.tolerance_ticks is None:
            return None
        least = shifted(places, -self.tolerance_ticks)
        if self.window is None:
            return least
        if self.looks_ahead:
            return np.maximum(least, ~self.last_ticks(~places))
        return np.maximum(least, self.first_ticks(places))

    def most_places(self, places: Ticks) -> Ticks | None:
        """For rows of the second stream by their places, the greatest places of rows of the first
        whose they may be; None: any."""
        if self.tolerance_ticks is None:
            return None
        most = shifted(places, self.tolerance_ticks)
        if self.window is None:
            return most
        if self.looks_ahead:
            return np.minimum(most, ~self.first_ticks(~places))
        return np.minimum(most, self.last_ticks(places))

    def first_ticks(self, ticks: Ticks) -> Ticks:
        """The first tick of the first window that holds each of these."""
        size, slide = self._window_ticks
        into = ticks % np.int64(slide)
        back = into + (size - 1 - into) // slide * slide
        return np.where(ticks < LEAST + back, LEAST, ticks - back)

    def last_ticks(self, ticks: Ticks) -> Ticks:
        """The last tick of the last window that holds each of these."""
        size, slide = self._window_ticks
        ahead = size - 1 - ticks % np.int64(slide)
        return np.where(ticks > MOST - ahead, MOST, ticks + ahead)

    @cached_property
    def _window_ticks(self) -> tuple[int, int]:
        assert self.window is not None
        size, slide = self.window.size_us, self.window.slide_us
        return self.ticks_of(size, is_length=True), self.ticks_of(slide, is_length=True)

    @cached_property
    def waits_ticks(self) -> int:
        """How far past a waiting row's time the watermark is when its result is known."""
        return (self.tolerance_ticks or 0) if self._looks_later else 0

    @property
    def _looks_later(self) -> bool:
        return self.looks_ahead or self.looks_both_ways

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Types in which equal columns are compared, under the names k0, k1, and so on."""
        if self.compared_as is not None:
            return self.compared_as
        count = len(next(iter(self.keys.values())))
        return pa.schema(
            [
                (f"k{k}", class_type(self.streams, {n: c[k] for n, c in self.keys.items()}))
                for k in range(count)
            ]
        )

    def key_columns(self, stream: str, rows: pa.RecordBatch) -> list[pa.Array]:
        """The equal columns of rows, in the common types."""
        return [
            cast_key(rows.column(name), field.type)
            for name, field in zip(self.keys[stream], self.key_schema, strict=True)
        ]

    @cached_property
    def waiting_rows(self) -> pa.Schema:
        """The columns of a waiting row: its own, and what is equal."""
        own = list(self.streams[self.left])
        return pa.schema([*own, *(field.with_name(f"@{field.name}") for field in self.key_schema)])

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams of the store: rows that are looked up, rows that wait, the watermark. Of a
        join with changes, rows of both streams by key and place."""
        if self.emits_changes:
            key = pa.schema([*self.key_schema, (PLACE, pa.int64())])
            waits = (self.tolerance if self._looks_later else 0) if not self.is_open else None
            left = self._expiry_of(self.left, waits)
            return (
                StreamSchema(self.right, key, self.streams[self.right], self._expiry()),
                StreamSchema(self.left, key, self.streams[self.left], left),
                WATERMARK,
            )
        ticks = pa.field(TICKS, pa.int64())
        waiting_key = pa.schema([ticks, *self.key_schema] if self.is_open else [ticks])
        return (
            StreamSchema(
                self.right,
                pa.schema([*self.key_schema, (PLACE, pa.int64())]),
                self.streams[self.right],
                self._expiry(),
            ),
            StreamSchema(waiting_stream(self.left), waiting_key, self.waiting_rows),
            WATERMARK,
        )

    def _expiry(self) -> Expiry | None:
        """When rows of the second stream are forgotten. Looking back without a tolerance, a row is
        needed until the next one of its key."""
        kept = 0 if self.is_open else self.tolerance
        if kept is not None and self.looks_both_ways:
            kept *= 2  # by a row that has waited, or is kept, as long as the tolerance
        return self._expiry_of(self.right, kept)

    def _expiry_of(self, stream: str, kept: int | None) -> Expiry | None:
        """When rows of a stream are forgotten: so long after their time, in the unit of the
        tolerance."""
        if kept is None:
            return None
        column = self.times[stream]
        if not self.has_stamps:
            return Expiry(column, min(kept, (1 << 63) - 1))
        kind = self.streams[stream].field(column).type
        tick = max(1, 1_000_000 // int(1000 ** UNITS.index(kind.unit)))
        most = timedelta.max // timedelta(microseconds=tick)
        return Expiry(column, min(-(-kept // tick), most) * timedelta(microseconds=tick))

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        if self.emits_changes:
            return {self.right: self.right, self.left: self.left}
        return {self.right: self.right, waiting_stream(self.left): self.left}

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The columns of a result, after the operation if there is one."""
        return with_operation(self.rows_schema) if self.emits_changes else self.rows_schema

    @cached_property
    def rows_schema(self) -> pa.Schema:
        """All columns of both streams; those of the second may be null with ``how="left"``."""
        joined = joined_schema(self.streams)
        own = len(self.streams[self.left])
        return pa.schema(
            field.with_nullable(field.nullable or (at >= own and self.how == "left"))
            for at, field in enumerate(joined)
        )

    @property
    def event_time(self) -> EventTime:
        """The times; what is kept how long, the streams of the store say."""
        return EventTime(self.times, (), dict.fromkeys(self.streams), self.late)

    def computed(self, stream: str) -> Sequence[str]:
        """The equal columns."""
        return tuple(self.key_schema.names)

    def described(self) -> dict[str, Any]:
        """Everything that decides which results there are."""
        (left, first), (right, second) = self.times.items()
        keys = [
            " = ".join(f"{n}.{c[k]}" for n, c in self.keys.items())
            for k in range(len(self.key_schema))
        ]
        return {
            "as of": f"{left}.{first} {self.sign} {right}.{second}",
            "keys": sorted(keys),
            "how": self.how,
            "tolerance": self.tolerance,
            "window": None if self.window is None else [self.window.size_us, self.window.slide_us],
            "emit": self.emit,
        }

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        if stream not in self.streams:
            raise unknown("stream", stream, self.streams)


def keys_by(
    streams: Mapping[str, pa.Schema], by: Sequence[str] | Mapping[str, Sequence[str]] | str
) -> dict[str, tuple[str, ...]]:
    """By stream, the columns of ``by``. InvalidArgumentError names what does not fit."""
    given = by if isinstance(by, Mapping) else dict.fromkeys(streams, by)
    found: dict[str, tuple[str, ...]] = {}
    for stream, columns in given.items():
        name = resolved("stream", stream, streams)
        listed = column_names("by", columns)
        found[name] = tuple(resolved("column", c, streams[name].names, name) for c in listed)
    if set(found) != set(streams) or len({len(columns) for columns in found.values()}) != 1:
        raise InvalidArgumentError(
            f"by={by!r}: each of the streams {', '.join(streams)} needs the same number of columns "
            "that are equal in a result"
        )
    return {name: found[name] for name in streams}


def _compared(streams: Mapping[str, pa.Schema], on: object) -> tuple[dict[str, str], str]:
    """The column of times of each stream, and the sign with the first one on its left."""
    left, right = streams
    usage = (
        f"write one comparison of their times by >=, >, <=, < or ~, as in {left}.at >= {right}.at; "
        "what is equal stands in by="
    )
    if not isinstance(on, str):
        raise InvalidArgumentError(f"on={on!r} is a {type(on).__name__}; {usage}")
    columns = {name: schema.names for name, schema in streams.items()}
    # The language of conditions has no sign for what is near.
    is_nearest = on.count(NEAREST) == 1
    match parse_condition(on.replace(NEAREST, "=") if is_nearest else on, columns):
        case Equal(Column() as one, Column() as two) if is_nearest and one.stream != two.stream:
            sign = NEAREST
        case Compare(("<" | "<=" | ">" | ">=") as compared, Column() as one, Column() as two) if (
            one.stream != two.stream
        ):
            sign = compared
        case _:
            raise InvalidArgumentError(f"on={on!r} is no comparison of two columns; {usage}")
    kinds = [streams[each.stream].field(each.name).type for each in (one, two)]
    are_stamps = all(map(pa.types.is_timestamp, kinds)) and len({k.tz is None for k in kinds}) == 1
    if not are_stamps and not all(pa.types.is_integer(k) and k != pa.uint64() for k in kinds):
        raise InvalidArgumentError(
            f"on={on!r} compares {kinds[0]} and {kinds[1]}; give two time stamps, both with a time "
            "zone or both without, or two whole numbers"
        )
    if one.stream == left:
        return {left: one.name, right: two.name}, sign
    return {left: two.name, right: one.name}, _SWAPPED[sign]


def _tolerance(given: object, kind: pa.DataType) -> int:
    if pa.types.is_timestamp(kind):
        return duration_us("tolerance", given)  # type: ignore[arg-type]
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 1 << 63:
        raise InvalidArgumentError(
            f"tolerance={given!r}: the times are whole numbers; give a whole number that is not "
            "negative"
        )
    return given


def _windows(given: object, kinds: Sequence[pa.DataType]) -> TimeWindow:
    """The windows that a user asked for. InvalidArgumentError if they do not fit the times."""
    if not pa.types.is_timestamp(kinds[0]):
        parts = list(given) if isinstance(given, list | tuple) else [given]
        numbers = [n for n in parts if isinstance(n, int) and not isinstance(n, bool)]
        if (
            len(numbers) != len(parts)
            or len(parts) not in (1, 2)
            or not (0 < numbers[-1] <= numbers[0] < 1 << 63)
        ):
            raise InvalidArgumentError(
                f"window={given!r}: the times are whole numbers; give the length of windows, as in "
                "100, or their length and their slide, as in (100, 25)"
            )
        return TimeWindow(numbers[0], numbers[-1])
    found = time_window(given)
    unit = max((kind.unit for kind in kinds), key=UNITS.index)
    tick = max(1, 1_000_000 // int(1000 ** UNITS.index(unit)))
    if found.size_us % tick or found.slide_us % tick:
        raise InvalidArgumentError(
            f"window={given!r}: the times count in {unit}, and windows begin and end between; give "
            "a length and a slide of whole ones, or cast the times to a finer unit"
        )
    return found


def shifted(ticks: Ticks, step: int) -> Ticks:
    """Ticks or places plus a step, within 64 bits."""
    if step < 0:
        return np.where(ticks < LEAST - step, LEAST, ticks + np.int64(step))
    return np.where(ticks > MOST - step, MOST, ticks + np.int64(step))
