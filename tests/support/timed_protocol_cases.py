"""One bucket of a join that forgets, called batch by batch as Spark calls it, without Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lsmstate.options import Options
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.bucket import BucketFunction
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.stateful_operator import body as stateful_body
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
