"""Attempts, pointers and no-data batches of a join that forgets, without Spark."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lsmstate.joins.specs.event_time import EventTime, time_bounds
from lsmstate.options import Options
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.joins.event_time import timed_join_function, timed_output
from lsmstate.spark_integration.joins.inner import CoercedSpec
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.plan.bucket import BucketFunction
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.stateful_operator.build import body as stateful_body
from lsmstate.spark_integration.stateful_operator.frames import FramePacker, unpack_rows
from lsmstate.state_location import StatePlace
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
TIME = pa.timestamp("us", "UTC")
ROWS = {n: pa.schema([("k", pa.int64()), ("at", TIME), (f"n{n}", pa.int64())]) for n in "ab"}
MINUTE_MS = 60_000
RETAINED = 3
INTERVAL = "b.at BETWEEN a.at - INTERVAL 10 MINUTES AND a.at + INTERVAL 5 MINUTES"
#: (stream, key, minute, number)
Row = tuple[str, int, int, int]


class State:
    """Spark's GroupState, as far as it is used."""

    def __init__(self, kept: Any, watermark_ms: int) -> None:
        self.getOption = kept
        self.timeout_ms: int | None = None
        self._watermark_ms = watermark_ms

    def update(self, value: Any) -> None:
        self.getOption = value

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        return self._watermark_ms

    def setTimeoutTimestamp(self, timestamp_ms: int) -> None:  # noqa: N802
        assert timestamp_ms >= max(1, self._watermark_ms), "Spark refuses it"
        self.timeout_ms = timestamp_ms


class Query:
    """One bucket of a query, batch by batch."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        plan: StatefulPlan,
        function: BucketFunction,
    ) -> None:
        self.root = root
        self.plan = plan
        self._function = stateful_body.stateful_function(plan, function)
        self._runs = 0
        self._batch = 0
        monkeypatch.setattr(stateful_body, "current_run", lambda _plan: self._run())

    def _run(self) -> TaskRun:
        self._runs += 1
        return TaskRun(
            place=StatePlace(str(self.root)),
            pinned=Pinned(1, 1, (0,)),
            flush_rows=10_000,
            retained_batches=RETAINED,
            batch_id=self._batch,
            partition=0,
            attempt=f"0.{self._runs}",
            task_attempt_id=self._runs,
        )

    def broken_off(self, batch: int, rows: list[Row], kept: Any, watermark_ms: int) -> None:
        """An attempt that is given up once it has handed over something."""
        self._batch = batch
        frames = self._function((0,), iter(frames_of(rows)), State(kept, watermark_ms))
        next(frames)
        frames.close()

    def attempt(
        self, batch: int, rows: list[Row], kept: Any, watermark_ms: int
    ) -> tuple[list[dict[str, Any]], State]:
        self._batch = batch
        state = State(kept, watermark_ms)
        shown = []
        frames: Iterator[pd.DataFrame] = self._function((0,), iter(frames_of(rows)), state)
        for frame in frames:
            for count, payload in zip(frame["rows"], frame["payload"], strict=True):
                if payload is not None:
                    shown += unpack_rows(payload, count, self.plan.output).to_pylist()
        return shown, state


def plan_of(
    state: tuple[StreamSchema, ...], output: pa.Schema, result_time: str | None = None
) -> StatefulPlan:
    """An operator of the two streams in time, with one bucket."""
    return StatefulPlan(
        operator="multiway_join",
        inputs=tuple(InputPlan(n, ROWS[n], KEY, (0,), pa.schema([]), ()) for n in "ab"),
        state=state,
        output=output,
        settings={},
        keeps_null_keys=False,
        output_mode="append",
        options=Options(memory_bytes=8 << 20),
        backend="lsm",
        buckets=1,
        default_buckets=1,
        state_dir=None,
        watches_time=True,
        result_time=result_time,
    )


def timed_query(root: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    """With a result time."""
    spec = CoercedSpec(ROWS, dict.fromkeys("ab", ("k",)), KEY)
    bounds, _ = time_bounds(ROWS, [INTERVAL])
    timing = EventTime.create(spec, {"a": "at", "b": "at"}, bounds, {}, "drop", True)
    plan = plan_of(timing.store_streams(spec), timed_output(spec, timing, "latest"), "latest")
    late = LateRows.of(plan.inputs, timing, None)
    function = timed_join_function(spec, plan.inputs, timing, late, "latest")
    return Query(root, monkeypatch, plan, function)


def frames_of(rows: list[Row]) -> list[pd.DataFrame]:
    found: list[pa.RecordBatch] = []
    for number, name in enumerate("ab"):
        mine = [(k, at * MINUTE_MS * 1000, n) for stream, k, at, n in rows if stream == name]
        if mine:
            packer = FramePacker(number, number)
            columns = zip(*mine, strict=True)
            batch = pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, ROWS[name], strict=True)],
                schema=ROWS[name],
            )
            found += packer.add(batch, np.zeros(len(mine), np.int64))
            found += packer.finish()
    return [pa.Table.from_batches(found).to_pandas()] if found else []


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
