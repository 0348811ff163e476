"""Time, row by row: which rows are late, and which results keep the bounds of the condition."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import EventTimes, Expiry
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.intervals import UNITS, Bound
from lsmstate.joins.specs.event_time import Joined
from lsmstate.joins.specs.one_key import output_names

Numbers = npt.NDArray[np.int64]


def microseconds(column: pa.Array) -> Numbers:
    """Time stamps as numbers, finer ones rounded down."""
    values = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    step = 1000 ** (2 - UNITS.index(column.type.unit))
    return np.asarray(values * int(step) if step >= 1 else values // round(1 / step))


class LateRows:
    """Judges the rows of one stream."""

    def __init__(self, name: str, column: str, rows: pa.Schema) -> None:
        # Of this column alone: an arriving row has others beside those that are stored.
        own = pa.schema([rows.field(column)])
        self._times = EventTimes(name, Expiry(column, timedelta(0)), own)
        self._column = column
        self._has_zone = rows.field(column).type.tz is not None

    def watermark(self, watermark_us: int) -> datetime:
        """A watermark as the store takes it for this stream."""
        return moment(watermark_us, has_zone=self._has_zone)

    def ticks(self, watermark_us: int) -> int:
        """A watermark in what the column counts, rounded down."""
        return self._times.watermark(self.watermark(watermark_us))

    def late(self, rows: pa.RecordBatch, watermark_us: int) -> npt.NDArray[np.bool_]:
        """Which rows are late: not after the watermark. One without an event time never is."""
        ticks, known = self._times.of(rows.select([self._column]))
        return np.asarray(known & (ticks <= self.ticks(watermark_us)))


class BoundCheck:
    """Which rows of a result keep all bounds; exact in the finest unit of the columns."""

    def __init__(self, spec: Joined, bounds: Sequence[Bound]) -> None:
        self._names = result_columns(spec)
        self._bounds = tuple(bounds)

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Only those rows. Cost: a few vector operations a bound."""
        if not self._bounds:
            return rows
        kept = np.logical_and.reduce([self._holds(bound, rows) for bound in self._bounds])
        return rows if kept.all() else rows.filter(pa.array(kept))

    def _holds(self, bound: Bound, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        later, earlier = (rows[self._names[c]] for c in (bound.later, bound.earlier))
        return holds(bound, later, earlier)


def holds(bound: Bound, later: pa.Array, earlier: pa.Array) -> npt.NDArray[np.bool_]:
    """Per row whether the bound is kept; a null keeps none."""
    unit = max("us", later.type.unit, earlier.type.unit, key=UNITS.index)
    known = later.is_valid().to_numpy(False) & earlier.is_valid().to_numpy(False)
    last, first = (_ticks(column, unit) for column in (later, earlier))
    per_us = 1000 if unit == "ns" else 1
    most = bound.most_us * per_us - int(bound.is_strict)
    least, greatest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    if bound.slide_us:
        into = first % np.int64(bound.slide_us * per_us)
        first = np.where(first < least + into, least, first - into)
    if abs(most) > greatest:  # 292 years of nanoseconds: two time stamps may lie further apart
        differences = last.astype(object) - first.astype(object)
        return np.asarray(known & (differences <= most).astype(np.bool_))
    if most >= 0:
        limit = np.where(first > greatest - most, greatest, first + np.int64(most))
        return np.asarray(known & (last <= limit))
    limit = first + np.int64(most)
    return np.asarray(known & (first >= least - most) & (last <= limit))


def _ticks(column: pa.Array, unit: str) -> npt.NDArray[np.int64]:
    try:
        same = column.cast(pa.timestamp(unit, column.type.tz))
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"a time stamp of {column.type} is out of range in {unit} ({error}); cast the columns "
            "of a time interval to one unit"
        ) from error
    return np.asarray(same.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def result_columns(spec: Joined) -> Mapping[Column, str]:
    """What the columns of the streams are called in the result."""
    shown = {name: schema.names for name, schema in spec.shown_rows.items()}
    names = output_names(shown)
    return {
        Column(stream, column): found
        for stream, columns in shown.items()
        for column, found in zip(columns, names[stream], strict=True)
    }


def moment(watermark_us: int, *, has_zone: bool) -> datetime:
    """Microseconds since 1970 as a datetime; beyond the years 1 to 9999 the nearest one."""
    epoch = datetime(1970, 1, 1)
    least = (datetime.min - epoch) // timedelta(microseconds=1)
    most = (datetime.max - epoch) // timedelta(microseconds=1)
    found = epoch + timedelta(microseconds=min(max(watermark_us, least), most))
    return found.replace(tzinfo=UTC) if has_zone else found
