"""An interval that forgets nothing is told, with its cause; one that forgets is not."""

import warnings
from typing import Any

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError, LsmStateWarning
from lsmstate.join import MultiwayJoin, Time

STAMP, ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
A = pa.schema([("id", pa.int64()), ("at", STAMP), ("day", pa.date32()), ("z", ZONED)])
B = pa.schema([("ad", pa.int64()), ("at", STAMP), ("day", pa.date32()), ("z", ZONED)])
HOUR = "INTERVAL 1 HOUR"
KEYS = "a.id = b.ad AND"


def warned(on: str, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MultiwayJoin({"a": A, "b": B}, on, **options).close()
    assert all(each.category is LsmStateWarning for each in caught)
    assert all(each.filename == __file__ for each in caught), "the caller's line is named"
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("on", "times", "cause"),
    [
        (f"{KEYS} b.at <= a.at + {HOUR}", {}, "b and a have no event time; name the"),
        (f"b.at BETWEEN a.at AND a.at + {HOUR}", {}, "b and a have no event time; name the"),
        (f"{KEYS} b.at <= a.at + {HOUR}", {"a": "at"}, "b has no event time; name the column, as"),
        (f"{KEYS} b.at <= a.z + {HOUR}", {}, "a.z has a time zone, and b.at has none; cast them"),
        (f"{KEYS} b.day <= a.day + INTERVAL 1 DAY", {}, "b.day and a.day are dates; cast to"),
        (
            f"{KEYS} b.at <= a.at + {HOUR}",
            {"a": "z", "b": "at"},
            "a.at is not the event time of its stream (that of a is z)",
        ),
    ],
)
def test_the_cause_is_named(on: str, times: dict[str, str], cause: str) -> None:
    (said,) = warned(on, time=Time(event_time=times or None))
    assert cause in said
    assert "forgets no row, so the rows of" in said


def test_other_joins_warn_too() -> None:
    (said,) = warned(f"a LEFT JOIN b ON {KEYS} b.at <= a.at + {HOUR}", emit="changes")
    assert "no event time" in said
    with pytest.raises(InvalidArgumentError, match=r"b\.day and a\.day are dates; cast to time"):
        warned(f"a LEFT JOIN b ON {KEYS} b.day < a.day + {HOUR}", emit="changes")


def test_months_have_no_fixed_length() -> None:
    with pytest.raises(InvalidArgumentError, match="months or years, which has no fixed length"):
        warned(f"{KEYS} b.at < a.at + INTERVAL 1 MONTH")


@pytest.mark.parametrize(
    ("on", "options"),
    [
        ("a.id = b.ad AND b.at >= a.at", {}),
        ("a.id = b.ad AND a.at > a.z", {}),
        (
            f"{KEYS} b.at BETWEEN a.at AND a.at + {HOUR}",
            {"time": Time(event_time={"a": "at", "b": "at"})},
        ),
        (["at"], {}),
    ],
)
def test_no_warning_without_need(on: Any, options: dict[str, Any]) -> None:
    assert warned(on, **options) == []
