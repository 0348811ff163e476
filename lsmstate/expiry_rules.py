"""Expiry by event time: when a row expires, and which time bucket it lies in.

Pure functions of their arguments; there is no clock. The store below keeps a stream with an expiry
as several streams, its *slots*:

- a ring of time buckets, so that most expired rows lie in slots that have expired as a whole,
- one slot for rows outside the ring,
- one slot for rows without an event time, which never expire.
"""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError

Ticks = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Number of time buckets with a slot each. A row's life spans four, so a probe visits about six.
#: The others are for rows whose time is ahead of the watermark.
RING_SLOTS = 8
_BUCKETS_PER_LIFE = 4

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class Expiry:
    """Rule by which the rows of a stream expire: ``after`` past the event time in ``column``.

    A row expires as soon as ``time + after <= watermark``, at the same moment as in Spark's own
    joins. A row without an event time never expires: to keep a row forever, leave its event time
    null.

    Attributes:
        column: Name of the event-time column, of timestamps, dates or integers.
        after: A timedelta for timestamps and dates; for integers a number in the column's unit.

    Example:
        ```python
        StreamSchema("clicks", key, rows, expiry=Expiry("time", timedelta(hours=1)))
        ```
    """

    column: str
    after: timedelta | int

    @classmethod
    def of_life(cls, column: str, life: int, kind: pa.DataType) -> "Expiry":
        """Return the expiry whose rows live ``life`` units of a column of type ``kind``."""
        if pa.types.is_integer(kind):
            return cls(column, life)
        per_tick, ticks_per = _unit_of(kind)
        return cls(column, timedelta(microseconds=life * per_tick // ticks_per))


class EventTimes:
    """Event times of a stream's rows as *ticks*: whole numbers in the column's unit."""

    def __init__(self, stream: str, expiry: Expiry, rows: pa.Schema) -> None:
        where = f"stream {stream!r}, expiry"
        if expiry.column not in rows.names:
            raise InvalidArgumentError(
                f"{where}: there is no column {expiry.column!r}; columns: {', '.join(rows.names)}"
            )
        self._where = where
        self._column = rows.names.index(expiry.column)
        self._type = rows.field(self._column).type
        #: Life of a row, in ticks.
        self.life = self._life(expiry.after)

    def of(self, rows: pa.RecordBatch) -> tuple[Ticks, Mask]:
        """Return ticks and whether they are known, per row; unknown ones are 0."""
        column = rows.column(self._column)
        known = column.is_valid().to_numpy(zero_copy_only=False)
        stored = pa.int32() if self._type == pa.date32() else pa.int64()
        numbers = column.cast(pa.int64()) if self._is_number else column.view(stored)
        ticks = numbers.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        return ticks, known

    def watermark(self, value: datetime | date | int | pa.Scalar) -> int:
        """Convert a watermark to ticks, rounded down so that no row expires too early. A whole
        number is already in ticks."""
        if isinstance(value, pa.Scalar):
            value = value.as_py()
        if isinstance(value, bool) or value is None:
            self._refuse_watermark(value)
        if isinstance(value, int):
            return value
        if self._is_number:
            self._refuse_watermark(value)
        if not isinstance(value, datetime):
            if not isinstance(value, date):
                self._refuse_watermark(value)
            value = datetime(value.year, value.month, value.day)
            if getattr(self._type, "tz", None) is not None:
                self._refuse_watermark(value)
        elif (value.tzinfo is not None) != (getattr(self._type, "tz", None) is not None):
            self._refuse_watermark(value)
        epoch = datetime(1970, 1, 1, tzinfo=UTC if value.tzinfo else None)
        microseconds = (value - epoch) // timedelta(microseconds=1)
        per_tick, ticks_per = _unit_of(self._type)
        return microseconds * ticks_per // per_tick

    @property
    def _is_number(self) -> bool:
        return bool(pa.types.is_integer(self._type))

    def _life(self, after: timedelta | int) -> int:
        kind = self._type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind)):
            raise InvalidArgumentError(
                f"{self._where}: {kind} is not an event time; name a column of timestamps, dates "
                "or integers"
            )
        if kind == pa.uint64():
            raise InvalidArgumentError(f"{self._where}: cast the event time from uint64 to int64")
        if isinstance(after, bool) or isinstance(after, int) != self._is_number:
            wanted = "a number in the column's unit" if self._is_number else "a timedelta"
            raise InvalidArgumentError(
                f"{self._where}: after={after!r} for a column of {kind}; give {wanted}"
            )
        if isinstance(after, timedelta):
            per_tick, ticks_per = _unit_of(self._type)
            life, rest = divmod(after // timedelta(microseconds=1) * ticks_per, per_tick)
            if rest:
                raise InvalidArgumentError(
                    f"{self._where}: after={after!r} is not a whole number in the unit "
                    f"of {kind}; round it"
                )
        else:
            life = after
        if not 0 <= life <= _MOST:
            what = "must not be negative" if life < 0 else f"is more than {kind} can count"
            raise InvalidArgumentError(f"{self._where}: after={after!r} {what}")
        return life

    def _refuse_watermark(self, value: Any) -> None:
        tz = getattr(self._type, "tz", None)
        if self._is_number:
            wanted = "an integer in the column's unit"
        elif tz is not None:
            wanted = "a datetime with a time zone, or an integer in the column's unit"
        else:
            wanted = "a date, a datetime without a time zone, or an integer in the column's unit"
        raise InvalidArgumentError(
            f"{self._where}: watermark {value!r} for a column of {self._type}; give {wanted}"
        )


@dataclass(frozen=True, slots=True)
class TimeRing:
    """Where rows lie and which have expired. A ring is a value; ``advanced`` makes the next one.

    - Times up to ``horizon`` have expired (None: no watermark yet).
    - The ring holds the buckets from ``first`` (None: no row yet) to ``first + RING_SLOTS - 1``;
      bucket b lies in slot b modulo RING_SLOTS.
    - ``out_least`` is the least time outside the ring, or less.
    - Invariant: no bucket of the ring has expired as a whole.
    """

    life: int
    first: int | None = None
    horizon: int | None = None
    out_least: int | None = None

    @property
    def width(self) -> int:
        """Ticks in a time bucket."""
        return max(1, -(-self.life // _BUCKETS_PER_LIFE))

    def due(self, ticks: Ticks, known: Mask) -> Mask:
        """Return which rows have expired."""
        if self.horizon is None:
            return np.zeros(len(ticks), dtype=np.bool_)
        return known & (ticks <= self.horizon)

    def in_ring(self, ticks: Ticks) -> Mask:
        """Return which times have a slot in the ring."""
        if self.first is None:
            return np.zeros(len(ticks), dtype=np.bool_)
        buckets = np.floor_divide(ticks, self.width)
        return np.asarray((buckets >= self.first) & (buckets < self.first + RING_SLOTS))

    def slots(self, ticks: Ticks) -> npt.NDArray[np.int64]:
        """Return the slot of each time that is in the ring."""
        return np.asarray(np.floor_divide(ticks, self.width) % RING_SLOTS)

    def bucket_slots(self) -> list[tuple[int, bool]]:
        """Return the ring's slots, oldest bucket first, and whether some of its
        times have expired."""
        if self.first is None:
            return []
        return [
            (bucket % RING_SLOTS, self.horizon is not None and bucket * self.width <= self.horizon)
            for bucket in range(self.first, self.first + RING_SLOTS)
        ]

    @property
    def out_is_due(self) -> bool:
        """Whether rows outside the ring may have expired."""
        return (
            self.out_least is not None
            and self.horizon is not None
            and self.out_least <= self.horizon
        )

    def begun(self, ticks: Ticks) -> "TimeRing":
        """Return a ring around the first times that arrive. Their median lies one life after its
        start, because the watermark will follow at that distance."""
        if self.first is not None or len(ticks) == 0:
            return self
        middle = int(np.partition(ticks, len(ticks) // 2)[len(ticks) // 2])
        return self._at(middle // self.width - _BUCKETS_PER_LIFE - 1).advanced()

    def with_out(self, ticks: Ticks) -> "TimeRing":
        """Return the ring after rows of these times went to the slot outside it."""
        if len(ticks) == 0:
            return self
        least = int(ticks.min())
        least = least if self.out_least is None else min(least, self.out_least)
        return replace(self, out_least=least)

    def without_out(self) -> "TimeRing":
        """Return the ring after the slot outside it was emptied."""
        return replace(self, out_least=None)

    def with_watermark(self, watermark: int) -> "TimeRing":
        """Return the same buckets under a new watermark; a lower one than before
        changes nothing."""
        horizon = watermark - self.life
        if horizon < _LEAST or (self.horizon is not None and horizon <= self.horizon):
            return self
        return replace(self, horizon=min(horizon, _MOST))

    def advanced(self) -> "TimeRing":
        """Return the ring moved past the buckets that have expired as a whole."""
        if self.first is None or self.horizon is None:
            return self
        return self._at(max(self.first, (self.horizon + 1) // self.width))

    def passed(self) -> list[int]:
        """Return the slots of the buckets that have expired as a whole, which ``advanced`` leaves
        behind."""
        if self.first is None:
            return []
        moved = self.advanced().first
        assert moved is not None
        return [b % RING_SLOTS for b in range(self.first, min(moved, self.first + RING_SLOTS))]

    def _at(self, first: int) -> "TimeRing":
        return replace(self, first=min(max(first, _LEAST), _MOST))  # it is stored in 64 bits


def _unit_of(kind: pa.DataType) -> tuple[int, int]:
    """Return (microseconds per tick, ticks per microsecond); one of them is 1."""
    if kind == pa.date32():
        return 86_400_000_000, 1
    if kind == pa.date64():
        return 1_000, 1
    if kind.unit == "ns":
        return 1, 1_000
    return _MICROSECONDS[kind.unit], 1
