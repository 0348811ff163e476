"""When rows are due and where they lie: the pure part of expiry."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import RING_SLOTS, EventTimes, Expiry, TimeRing

HOUR = timedelta(hours=1)


def times_of(kind: pa.DataType, after: Any = HOUR) -> EventTimes:
    return EventTimes("s", Expiry("at", after), pa.schema([("id", pa.int64()), ("at", kind)]))


def ticks(values: list[Any], kind: pa.DataType, after: Any = HOUR) -> list[int | None]:
    rows = pa.record_batch([pa.array(range(len(values))), pa.array(values, kind)], ["id", "at"])
    numbers, known = times_of(kind, after).of(rows)
    assert numbers.dtype == np.int64
    return [n if k else None for n, k in zip(numbers.tolist(), known.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]
)
@pytest.mark.parametrize("tz", [None, "UTC", "Asia/Tokyo"])
def test_time_stamps_count_in_their_own_unit(unit: str, per_second: int, tz: str | None) -> None:
    kind = pa.timestamp(unit, tz)
    at = datetime(1969, 12, 31, 23, 59, 58, tzinfo=UTC if tz else None)
    assert ticks([at, None], kind) == [-2 * per_second, None]
    assert times_of(kind).life == 3600 * per_second
    assert times_of(kind).watermark(at) == -2 * per_second
    assert times_of(kind).watermark(pa.scalar(at, kind)) == -2 * per_second


def test_dates_and_integers() -> None:
    day = timedelta(days=1)
    assert ticks([date(1970, 1, 3), None], pa.date32(), day) == [2, None]
    assert times_of(pa.date32(), 7 * day).life == 7
    assert times_of(pa.date32(), day).watermark(datetime(1970, 1, 3, 23)) == 2
    assert times_of(pa.date64(), HOUR).watermark(date(1970, 1, 2)) == 86_400_000
    assert ticks([5, None, -7], pa.int16(), 3) == [5, None, -7]
    assert times_of(pa.int16(), 3).watermark(9) == 9


def test_a_whole_number_as_a_watermark_is_in_the_unit_of_the_column() -> None:
    """As the joins have it."""
    for kind in (pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.date32()):
        assert times_of(kind, timedelta(days=1)).watermark(5) == 5
    with pytest.raises(InvalidArgumentError, match="or an integer in the column's unit"):
        times_of(pa.timestamp("us")).watermark(5.5)  # type: ignore[arg-type]


def test_a_watermark_is_rounded_down() -> None:
    times = times_of(pa.timestamp("s"))
    assert times.watermark(datetime(1970, 1, 1, 0, 0, 1, 999_999)) == 1
    assert times.watermark(datetime(1969, 12, 31, 23, 59, 59, 1)) == -1
    tokyo = timezone(timedelta(hours=9))
    assert times_of(pa.timestamp("s", "UTC")).watermark(datetime(1970, 1, 1, 9, tzinfo=tokyo)) == 0


@pytest.mark.parametrize(
    ("kind", "after", "said"),
    [
        (pa.string(), HOUR, "string is not an event time"),
        (pa.float64(), 1, "double is not an event time"),
        (pa.uint64(), 1, "cast the event time from uint64"),
        (pa.int64(), HOUR, "give a number in the column's unit"),
        (pa.int64(), True, "give a number in the column's unit"),
        (pa.timestamp("us"), 3600, "give a timedelta"),
        (pa.timestamp("us"), -HOUR, "must not be negative"),
        (pa.date32(), HOUR, "not a whole number"),
        (pa.timestamp("s"), timedelta(milliseconds=1), "not a whole number"),
    ],
)
def test_an_expiry_that_cannot_work_is_refused(kind: pa.DataType, after: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        times_of(kind, after)


def test_the_event_time_must_be_a_column() -> None:
    with pytest.raises(InvalidArgumentError, match="no column 'when'; columns: id"):
        EventTimes("s", Expiry("when", 1), pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize(
    ("kind", "after", "watermark"),
    [
        (pa.int64(), 1, datetime(2026, 1, 1)),
        (pa.timestamp("us"), HOUR, datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), HOUR, datetime(2026, 1, 1)),
        (pa.timestamp("us", "UTC"), HOUR, date(2026, 1, 1)),
        (pa.timestamp("us"), HOUR, "2026-01-01"),
        (pa.timestamp("us"), HOUR, None),
        (pa.int64(), 1, True),
    ],
)
def test_a_watermark_of_another_kind_is_refused(
    kind: pa.DataType, after: Any, watermark: Any
) -> None:
    with pytest.raises(InvalidArgumentError, match="watermark"):
        times_of(kind, after).watermark(watermark)


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.integers(0, 50) | st.integers(0, (1 << 63) - 1),
    st.lists(st.lists(st.integers(-200, 200) | INT64, max_size=8), max_size=4),
    st.lists(st.integers(-200, 400) | INT64, max_size=5),
)
def test_no_row_is_lost_in_the_ring_and_none_due_is_taken_for_alive(
    life: int, batches: list[list[int]], watermarks: list[int]
) -> None:
    ring = TimeRing(life)
    where: dict[int, set[int]] = {}
    for i, batch in enumerate(batches):
        times = np.array(batch, np.int64)
        known = np.ones(len(times), np.bool_)
        ring = ring.begun(times)
        alive = times[~ring.due(times, known)]
        inside = ring.in_ring(alive)
        for time, slot in zip(alive[inside].tolist(), ring.slots(alive[inside]), strict=True):
            where.setdefault(int(slot), set()).add(time)
        ring = ring.with_out(alive[~inside])
        for watermark in watermarks[i : i + 1]:
            ring = ring.with_watermark(watermark)
            for slot in ring.passed():
                gone = np.array(sorted(where.pop(slot, ())), np.int64)
                assert ring.due(gone, np.ones(len(gone), np.bool_)).all()
            ring = ring.advanced()
            assert ring.passed() == []
    assert len(ring.bucket_slots()) in (0, RING_SLOTS)
    for slot, may_be_due in ring.bucket_slots():
        stored = np.array(sorted(where.pop(slot, ())), np.int64)
        assert ring.in_ring(stored).all()
        assert set(ring.slots(stored).tolist()) <= {slot}
        if not may_be_due:
            assert not ring.due(stored, np.ones(len(stored), np.bool_)).any()
    assert where == {}


def test_a_watermark_never_falls() -> None:
    ring = TimeRing(10).with_watermark(50)
    assert ring.horizon == 40
    assert ring.with_watermark(49) is ring


def test_the_ring_begins_so_that_the_first_rows_fit_while_they_live() -> None:
    ring = TimeRing(400).begun(np.array([1000, 1010, 10**6], np.int64))
    assert ring.width == 100
    assert ring.in_ring(np.array([600, 1000, 1299, 10**6])).tolist() == [True, True, True, False]
