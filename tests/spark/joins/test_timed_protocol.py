"""Attempts, pointers and no-data batches of a join that forgets, without Spark."""

import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lsmstate.joins.specs.event_time import EventTime, TimedSpec, time_bounds
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.spark_integration.joins.event_time import ResultTimes, timed_output
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.joins.run_join import run_join
from support.timed_protocol_cases import INTERVAL, KEY, MINUTE_MS, ROWS, Query, Row, plan_of


def timed_query(root: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    """With a result time."""
    joined = JoinSpec(ROWS, dict.fromkeys("ab", ("k",)), KEY)
    bounds, _ = time_bounds(ROWS, [INTERVAL])
    timing = EventTime.create(joined, {"a": "at", "b": "at"}, bounds, {}, "drop", True)
    spec = TimedSpec(joined, timing)
    plan = plan_of(spec.stream_schemas, timed_output(spec, "latest"), "latest")
    late = LateRows.of(plan.inputs, timing, None)
    times = partial(ResultTimes, spec)
    function = run_join(spec, plan.inputs, late=late, result_times=times)
    return Query(root, monkeypatch, plan, function)


def expected(rows: list[Row]) -> Counter[tuple[int, int]]:
    return Counter(
        (n, n2)
        for stream, k, at, n in rows
        for stream2, k2, at2, n2 in rows
        if stream == "a" and stream2 == "b" and k == k2 and -10 <= at2 - at <= 5
    )


def without_ticks(shown: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["na"], row["nb"]) for row in shown if not row["lsmstate.tick"]]


def test_a_repeated_batch_gives_the_same_rows_and_files_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(4)
    query = timed_query(tmp_path, monkeypatch)
    kept: Any = None
    arrived: list[Row] = []
    shown: Counter[tuple[int, int]] = Counter()
    watermark_ms = latest = 0
    files = []
    for batch in range(40):
        rows: list[Row] = []
        if batch % 5 != 4:  # else a batch without data
            for _ in range(25):
                at = batch * 4 + rng.randrange(4) + 60
                rows.append((rng.choice("ab"), rng.randrange(5), at, len(arrived) + len(rows)))
            rows.append((rng.choice("ab"), 1, max(1, watermark_ms // MINUTE_MS - 30), -1))
        attempts = [query.attempt(batch, rows, kept, watermark_ms) for _ in range(2)]
        assert attempts[0][0] == attempts[1][0]
        found, state = rng.choice(attempts)  # Spark shows one, and keeps the pointer of either
        kept = rng.choice(attempts)[1].getOption
        assert state.timeout_ms == max(1, watermark_ms)
        arrived += [row for row in rows if row[3] >= 0]
        shown += Counter(pair for pair in without_ticks(found) if -1 not in pair)
        for row in found:
            assert row["latest"].timestamp() * 1000 > watermark_ms or row["lsmstate.tick"]
        latest = max([latest, *(at for _, _, at, _ in rows)])
        ticks = [row["latest"] for row in found if row["lsmstate.tick"]]
        assert len(ticks) == 1
        if rows:
            assert ticks[0].timestamp() * 1000 == max(latest * MINUTE_MS, watermark_ms)
        watermark_ms = latest * MINUTE_MS
        files.append(sum(path.is_file() for path in tmp_path.rglob("*")))
    assert shown == expected(arrived)
    assert max(files[20:]) <= max(files[:20]) + 5
