"""deduplicate in plain Python, against a set; keys that are forgotten come back."""

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import State, Time, deduplicate

ROWS = pa.schema([("k", pa.float64()), ("j", pa.string()), ("n", pa.int64())])
TIMED = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us"))])
START = datetime(2026, 1, 1)


@pytest.mark.parametrize("backend", ["lsm", "rocksdb", "memory"])
def test_the_first_row_of_each_key_stays_over_restarts(backend: str, tmp_path: Path) -> None:
    """A null equals a null, and 0.0 equals -0.0."""
    rng = random.Random(3)
    path = None if backend == "memory" else str(tmp_path)
    state = State(backend=backend, state_dir=path)
    seen: set[tuple[Any, ...]] = set()
    first, duplicates = deduplicate(ROWS, ["k", "j"], state=state), 0
    for _ in range(20):
        if path is not None and rng.random() < 0.4:
            first.commit()
            first.close()
            first = deduplicate(ROWS, ["K", "j"], state=state)
        keys = [(rng.choice([None, 0.0, -0.0, 1.5, 7.0]), rng.choice("abcd")) for _ in range(9)]
        rows = [{"k": k, "j": j, "n": n} for n, (k, j) in enumerate(keys)]
        expected = []
        for row in rows:
            if (row["k"], row["j"]) not in seen:
                expected.append(row)
            seen.add((row["k"], row["j"]))
        before = first.counts["duplicates"]
        assert first.process(rows).to_table().to_pylist() == expected
        assert first.counts["duplicates"] - before == len(rows) - len(expected)
        duplicates += len(rows) - len(expected)
    first.close()
    assert duplicates > 100


def test_a_key_is_forgotten_when_its_time_is_over(tmp_path: Path) -> None:
    time = Time(event_time={"rows": "at"}, within="1 hour")

    def opened() -> Any:
        return deduplicate(TIMED, "k", time=time, state=State(state_dir=str(tmp_path)))

    def row(minutes: int) -> dict[str, Any]:
        return {"k": 1, "at": START + timedelta(minutes=minutes)}

    with opened() as first:
        assert first.process([row(0), row(5)]).to_table().num_rows == 1
        first.advance(START + timedelta(minutes=59))
        assert first.process([row(60), row(10)]).to_table().num_rows == 0
        assert first.counts == {"duplicates": 2, "late_rows": 1}
        first.advance(START + timedelta(minutes=60))
        first.commit()
    with opened() as first:
        assert first.process([row(61)]).to_table().num_rows == 1
        assert first.process([row(60)]).to_table().num_rows == 0
        assert first.counts["late_rows"] == 1


@pytest.mark.parametrize(
    ("keys", "options", "said"),
    [
        ([], {}, "keys=[]: give a column"),
        (["k", "K"], {}, "column 'k' stands twice"),
        ("x", {}, "there is no column 'x'"),
        ("k", {"time": Time(within="1 hour")}, "go together"),
        ("k", {"time": Time(event_time={"a": "at"}, within="1 h")}, 'give {"rows": "at"}'),
        ("k", {"time": Time(event_time={"rows": "k"}, within="1 hour")}, "is int64; name a column"),
        ("k", {"time": Time(late="side")}, "late='side' has no effect on deduplicate"),
        ("k", {"stat": 1}, "there is no option 'stat'; did you mean 'state'?"),
    ],
)
def test_mistakes(keys: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        deduplicate(TIMED, keys, **options)
    assert said in str(caught.value)


def test_a_watermark_without_event_times_is_refused() -> None:
    with (
        deduplicate(ROWS, "k") as first,
        pytest.raises(InvalidArgumentError, match="keys are kept for ever"),
    ):
        first.advance(START)
