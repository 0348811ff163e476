"""Time intervals in a join condition: what is read as one, how rows keep it, what follows."""

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.intervals import (
    Bound,
    Distances,
    bounds_in,
    needed_us,
    parse_duration,
)
from lsmstate.joins.conditions.parser import parse_condition
from lsmstate.joins.local.parts.time_checks import holds
from lsmstate.joins.specs.event_time import time_bounds

A, B, C = Column("a", "ts"), Column("b", "ts"), Column("c", "ts")
MINUTE, HOUR = 60_000_000, 3_600_000_000


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        (
            "a.ts BETWEEN b.ts - INTERVAL 1 HOUR AND b.ts + INTERVAL 5 MINUTES",
            [Bound(B, A, HOUR), Bound(A, B, 5 * MINUTE)],
        ),
        ("a.ts >= b.ts - INTERVAL '1 hour 30 minutes'", [Bound(B, A, 90 * MINUTE)]),
        ("a.ts < b.ts", [Bound(A, B, 0, is_strict=True)]),
        ("b.ts > a.ts - interval '2' minute", [Bound(A, B, 2 * MINUTE, is_strict=True)]),
        ("interval 2 weeks + a.ts <= b.ts", [Bound(A, B, -14 * 24 * HOUR, has_days=True)]),
        ("a.ts = b.ts + INTERVAL 1 MINUTE", [Bound(B, A, -MINUTE), Bound(A, B, MINUTE)]),
        ("a.ts - INTERVAL 1 HOUR + INTERVAL 1 MINUTE <= b.ts", [Bound(A, B, 59 * MINUTE)]),
        ("a.ts <= b.ts - INTERVAL -1.5 SECONDS", [Bound(A, B, 1_500_000)]),
        ("a.ts <= b.ts + INTERVAL 1 HOUR 30 MINUTES", [Bound(A, B, 90 * MINUTE)]),
        ("a.ts BETWEEN b.ts AND c.ts", [Bound(B, A, 0), Bound(A, C, 0)]),
        ("`a`.`ts` <= INTERVAL.ts", [Bound(A, Column("INTERVAL", "ts"), 0)]),
        ("a.ts <= b.ts + INTERVAL 1 MONTH", None),
        (
            "a.ts <= b.ts + INTERVAL '1 12:00:00' DAY TO SECOND",
            [Bound(A, B, 36 * HOUR, has_days=True)],
        ),
        ("a.ts <= b.ts + INTERVAL '0 1' DAY TO HOUR", [Bound(A, B, HOUR, has_days=True)]),
        ("a.ts <= b.ts - INTERVAL '-1:30' HOUR TO MINUTE", [Bound(A, B, 90 * MINUTE)]),
        ("a.ts - b.ts < INTERVAL 1 HOUR", [Bound(A, B, HOUR, is_strict=True)]),
        (
            "a.ts - b.ts BETWEEN INTERVAL 0 HOURS AND INTERVAL 1 HOUR",
            [Bound(B, A, 0), Bound(A, B, HOUR)],
        ),
        ("a.ts + b.ts < INTERVAL 1 HOUR", None),
        ("a.ts <= b.ts + INTERVAL '1' YEAR", None),
        ("a.ts <= b.ts + INTERVAL '1 2:3' DAY TO SECOND", None),
        ("a.ts <= b.ts + INTERVAL 0.1 MICROSECOND", None),
        ("a.ts <= b.ts + 5", None),
        ("a.ts <> b.ts", None),
        ("a.ts NOT BETWEEN b.ts AND c.ts", None),
        ("a.ts <= b.ts OR a.x", None),
        ("a.ts <= a.ts + INTERVAL 1 HOUR", None),
        ("a.ts <= date_trunc('day', b.ts)", None),
    ],
)
def test_what_is_read_as_an_interval(text: str, bounds: list[Bound] | None) -> None:
    columns = {name: ["ts", "x"] for name in ("a", "b", "c", "INTERVAL")}
    assert bounds_in(parse_condition(text, columns)) == tuple(bounds or ())


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("units", [("us", "us"), ("s", "us"), ("us", "ns"), ("ms", "s")])
def test_bounds_are_exact(zone: str | None, units: tuple[str, str]) -> None:
    per = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
    later = pa.array([10 * per[units[0]], None, 10 * per[units[0]]], pa.timestamp(units[0], zone))
    tick = 1 if per[units[1]] > 1 else 0
    first = 7 * per[units[1]]
    earlier = pa.array([first, first, first - tick], pa.timestamp(units[1], zone))
    assert holds(Bound(A, B, 3_000_000), later, earlier).tolist() == [True, False, tick == 0]
    assert holds(Bound(A, B, 3_000_000, is_strict=True), later, earlier).tolist() == [False] * 3
    assert holds(Bound(B, A, -3_000_000), earlier, later).tolist() == [True, False, True]
    just_more = [False, False, units[1] == "us"]  # a nanosecond is not enough
    assert holds(Bound(B, A, -3_000_001), earlier, later).tolist() == just_more


def test_bounds_at_the_ends_of_time() -> None:
    ends = pa.array([-(2**63) + 1, 2**63 - 1], pa.int64()).view(pa.timestamp("us"))
    back = pa.array([2**63 - 1, -(2**63) + 1], pa.int64()).view(pa.timestamp("us"))
    for most in (HOUR, 0, -HOUR):
        assert holds(Bound(A, B, most), ends, back).tolist() == [True, False]
        assert holds(Bound(A, B, most), ends, ends).tolist() == [most >= 0] * 2


def test_conditions_that_are_no_intervals_of_time_stamps_are_left() -> None:
    streams = {
        "a": pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())]),
        "b": pa.schema([("At", pa.timestamp("us", "UTC")), ("day", pa.timestamp("us"))]),
    }
    texts = ["A.AT <= b.at", "a.n < b.at", "a.at < b.day", "a.n + b.day > 3"]
    bounds, rest = time_bounds(streams, texts)
    assert bounds == (Bound(Column("a", "at"), Column("b", "At"), 0),)
    assert rest == tuple(texts[1:])
    with pytest.raises(InvalidArgumentError, match="did you mean 'at'"):
        time_bounds(streams, ["a.et <= b.at"])


def test_an_interval_longer_than_nanoseconds_count_is_judged_exactly() -> None:
    century = 100 * 365 * 24 * HOUR
    times = pa.timestamp("ns")
    last = pa.array([2**63 - 1, 2**63 - 1, None], times)
    first = pa.array([-(2**63), 0, 0], times)
    assert holds(Bound(A, B, 6 * century), last, first).tolist() == [True, True, False]
    assert holds(Bound(A, B, 4 * century), last, first).tolist() == [False, True, False]
    assert holds(Bound(B, A, -4 * century), first, last).tolist() == [True, False, False]


def test_how_long_rows_are_needed_follows_through_other_streams() -> None:
    bounds = [Bound(B, A, HOUR), Bound(A, B, 5 * MINUTE), Bound(C, A, 10 * MINUTE), Bound(A, C, 0)]
    times = dict.fromkeys("abc", "ts")
    # Of b: an a up to 5 minutes ahead, and a c 10 minutes ahead of that.
    assert needed_us(bounds, times, "abc") == {"a": HOUR, "b": 15 * MINUTE, "c": HOUR}
    assert needed_us(bounds[:2], times, "abc") == {"a": None, "b": None, "c": None}
    assert needed_us(bounds, {"a": "ts", "b": "ts"}, "abc") == {"a": None, "b": None, "c": None}
    # Rows of a only ever match older ones: nothing that comes needs them.
    assert needed_us([Bound(B, A, -HOUR)], times, "ab") == {"a": 0, "b": None}
    with pytest.raises(InvalidArgumentError, match=r"no row can match.*before itself"):
        Distances([Bound(A, B, -1), Bound(B, C, 0), Bound(C, A, 0)])


def test_lengths_of_time() -> None:
    assert parse_duration("7 days", "x") == 7 * 24 * HOUR
    assert parse_duration("INTERVAL 1 hour 30 minutes", "x") == 90 * MINUTE
    assert parse_duration("1.5 seconds", "x") == 1_500_000
    with pytest.raises(InvalidArgumentError, match=r"x='1 month' is not a duration"):
        parse_duration("1 month", "x")
