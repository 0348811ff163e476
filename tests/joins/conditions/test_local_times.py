"""Local times as instants of a zone: those that do not exist, those that occur twice."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.join import MultiwayJoin
from lsmstate.joins.conditions.key_types import cast_key
from support.examples import examples

UNITS = ["s", "ms", "us", "ns"]
#: Zones with gaps of an hour, half an hour, at midnight, of whole days, and without any.
ZONES = [
    *("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo"),
    *("Pacific/Apia", "Pacific/Kwajalein", "Asia/Kolkata", "Africa/Monrovia", "Asia/Pyongyang"),
]


def instant(local: datetime, zone: str) -> datetime:
    """As java.time has it: of two the earlier one, and one that is left out is later by the gap.
    Python does the same with ``fold=0``: the offset before the change counts."""
    utc = ZoneInfo("UTC")
    return local.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(utc)


def cast(times: list[datetime | None], zone: str, unit: str = "us") -> list[datetime | None]:
    local = pa.array(times, pa.timestamp(unit))
    found = cast_key(local, pa.timestamp(unit, tz=zone))
    return found.cast(pa.timestamp("us", "UTC")).to_pylist()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("zone", "local", "same"),
    [
        ("America/New_York", datetime(2024, 3, 10, 2, 30), datetime(2024, 3, 10, 7, 30)),
        ("America/New_York", datetime(2024, 3, 10, 2), datetime(2024, 3, 10, 7)),
        ("America/New_York", datetime(2024, 3, 10, 3), datetime(2024, 3, 10, 7)),
        ("America/New_York", datetime(2024, 11, 3, 1, 30), datetime(2024, 11, 3, 5, 30)),
        ("Australia/Lord_Howe", datetime(2024, 10, 6, 2, 10), datetime(2024, 10, 5, 15, 40)),
        ("America/Sao_Paulo", datetime(2018, 11, 4), datetime(2018, 11, 4, 3)),
        ("Pacific/Apia", datetime(2011, 12, 30, 12), datetime(2011, 12, 30, 22)),
        ("Pacific/Kwajalein", datetime(1993, 8, 21, 6), datetime(1993, 8, 21, 18)),
    ],
)
def test_a_local_time_that_is_left_out_is_later_by_the_gap(unit, zone, local, same):
    assert cast([local, None], zone, unit) == [same.replace(tzinfo=ZoneInfo("UTC")), None]
    assert instant(local, zone) == same.replace(tzinfo=ZoneInfo("UTC"))


def test_a_date_is_the_first_instant_of_its_day():
    days = pa.array([datetime(2018, 11, 4).date()])
    (found,) = cast_key(days, pa.timestamp("us", "America/Sao_Paulo")).cast(
        pa.timestamp("us", "UTC")
    )
    assert found.as_py().replace(tzinfo=None) == datetime(2018, 11, 4, 3)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(UNITS),
    st.lists(
        st.datetimes(datetime(1975, 1, 1), datetime(2037, 1, 1)).map(
            lambda found: found.replace(microsecond=0)
        ),
        min_size=1,
    ),
)
def test_all_times_are_as_java_has_them(zone, unit, times):
    assert cast(times, zone, unit) == [instant(local, zone) for local in times]


@pytest.mark.parametrize("zone", ZONES)
def test_every_minute_around_every_change_of_a_zone(zone):
    """Hours that a zone leaves out, found by comparing offsets day by day."""
    day, here = datetime(2005, 1, 1), ZoneInfo(zone)
    changes = []
    while day < datetime(2026, 1, 1):
        after = day + timedelta(days=1)
        if day.replace(tzinfo=here).utcoffset() != after.replace(tzinfo=here).utcoffset():
            changes.append(day)
        day = after
    times = [c + timedelta(minutes=m) for c in changes for m in range(-60, 60 * 26, 7)]
    assert cast(times, zone) == [instant(local, zone) for local in times]


def test_a_join_of_local_and_zoned_keys():
    streams = {
        "a": pa.schema([("t", pa.timestamp("us"))]),
        "b": pa.schema([("t", pa.timestamp("us", "America/New_York")), ("v", pa.int64())]),
    }
    eastern = ZoneInfo("America/New_York")
    times = [datetime(2024, 3, 10, 3, minute, tzinfo=eastern) for minute in (0, 30)]
    with MultiwayJoin(streams, "a.t = b.t") as join:
        rows = [{"t": time, "v": number} for number, time in enumerate(times)]
        list(join.process("b", pa.RecordBatch.from_pylist(rows, schema=streams["b"])))
        local = pa.RecordBatch.from_pylist([{"t": datetime(2024, 3, 10, 2, 30)}], streams["a"])
        (found,) = join.process("a", local)
    assert found["v"].to_pylist() == [1]
