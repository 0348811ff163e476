"""What Spark does with one stateful operator, without Spark: attempts, pointers, restarts.

Spark gives each bucket its rows of a micro-batch and the last pointer it kept; of the attempts
that end it shows the rows of one and keeps the pointer of one, which need not be the same. What
is on disk of a micro-batch may be another attempt's than what a running query has in memory: a
restart finds the former.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.spark_integration.checkpoint.attempt import bucket_files
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.stateful_operator import body as stateful_body
from lsmstate.spark_integration.stateful_operator.frames import FramePacker, unpack_rows
from lsmstate.state_location import StatePlace

NAMES = ("a", "b", "c")
BUCKETS = 2
KEY = pa.schema([("k", pa.int64())])
ROWS = {name: pa.schema([("k", pa.int64()), (f"{name}_row", pa.int64())]) for name in NAMES}
MEMORY_BYTES = 64 << 20

#: The rows of a micro-batch: (stream, key, number of the row).
Rows = list[tuple[str, int, int]]


def join_plan() -> tuple[StatefulPlan, Any]:
    """Three streams by one key, and the function that joins them."""
    spec = JoinSpec(ROWS, {name: ["k"] for name in NAMES}, KEY)
    inputs = tuple(InputPlan(name, ROWS[name], KEY, (0,), pa.schema([]), ()) for name in NAMES)
    plan = StatefulPlan(
        operator="multiway_join",
        inputs=inputs,
        state=tuple(spec.stream_schemas),
        output=spec.output_schema,
        settings={},
        keeps_null_keys=False,
        output_mode="append",
        options=Options(memory_bytes=MEMORY_BYTES),
        backend="lsm",
        buckets=BUCKETS,
        default_buckets=BUCKETS,
        state_dir=None,
    )
    return plan, run_join(spec, plan.inputs)


class State:
    """Spark's GroupState, as far as it is used."""

    def __init__(self, kept: Any) -> None:
        self.getOption = kept

    def update(self, value: Any) -> None:
        self.getOption = value


class Attempt:
    """One call of the operator's function, frame by frame."""

    def __init__(self, spark: "SimulatedSpark", batch_id: int, bucket: int, rows: Rows) -> None:
        self.batch_id, self.bucket = batch_id, bucket
        self.rows: list[tuple[Any, ...]] = []
        self._state = State(spark.memory_pointer(bucket, batch_id - 1))
        self._frames: Iterator[pd.DataFrame] = spark.function(
            (bucket,), iter([frames_of(rows, bucket)]), self._state
        )
        self._run = spark.run_of(batch_id)
        self._spark = spark

    @property
    def pointer(self) -> Any:
        """What Spark would keep; the old one until the attempt has ended."""
        return self._state.getOption

    def step(self) -> bool:
        """Up to the next frame; False at the end. Whatever the function raises passes."""
        self._spark.current_run = self._run
        frame = next(self._frames, None)
        if frame is None:
            return False
        for count, payload in zip(frame["rows"], frame["payload"], strict=True):
            if payload is not None:
                batch = unpack_rows(payload, count, self._spark.plan.output)
                self.rows += [tuple(row.values()) for row in batch.to_pylist()]
        return True

    def run(self) -> "Attempt":
        while self.step():
            pass
        return self

    def close(self) -> None:
        """As Spark does where the rest of the rows is not wanted."""
        self._spark.current_run = self._run
        self._frames.close()  # type: ignore[attr-defined]


def frames_of(rows: Rows, bucket: int) -> pd.DataFrame:
    """The frames of one bucket, as they come out of the shuffle."""
    found: list[pa.RecordBatch] = []
    for number, name in enumerate(NAMES):
        mine = [(k, row) for stream, k, row in rows if stream == name and k % BUCKETS == bucket]
        if mine:
            packer = FramePacker(number, number)
            batch = pa.RecordBatch.from_arrays(
                [pa.array(column, pa.int64()) for column in zip(*mine, strict=True)],
                schema=ROWS[name],
            )
            found += packer.add(batch, np.full(len(mine), bucket, np.int64))
            found += packer.finish()
    return pa.Table.from_batches(found).to_pandas()


@dataclass
class SimulatedSpark:
    """One query: what came in, what was shown, and the pointers of every micro-batch."""

    root: Path
    retained: int
    plan: StatefulPlan = field(init=False)
    function: Callable[..., Iterator[pd.DataFrame]] = field(init=False)
    current_run: TaskRun | None = None
    #: By micro-batch.
    arrived: list[Rows] = field(default_factory=list)
    shown: list[list[tuple[Any, ...]]] = field(default_factory=list)
    in_memory: list[dict[int, Any]] = field(default_factory=list)
    on_disk: list[dict[int, Any]] = field(default_factory=list)
    #: The first micro-batch after which the query can be started again.
    oldest: int = 0
    _tasks: int = 0

    def __post_init__(self) -> None:
        self.plan, function = join_plan()
        self.function = stateful_body.stateful_function(self.plan, function)

    def run_of(self, batch_id: int) -> TaskRun:
        self._tasks += 1
        return TaskRun(
            place=StatePlace(str(self.root)),
            pinned=Pinned(BUCKETS, 1, tuple(range(BUCKETS))),
            flush_rows=10_000,
            retained_batches=self.retained,
            batch_id=batch_id,
            partition=0,
            attempt=f"0.{self._tasks}",
            task_attempt_id=self._tasks,
        )

    @property
    def next_batch(self) -> int:
        return len(self.shown)

    def attempt(self, rows: Rows, bucket: int, batch_id: int | None = None) -> Attempt:
        return Attempt(self, self.next_batch if batch_id is None else batch_id, bucket, rows)

    def accept(self, rows: Rows, attempts: dict[int, Attempt]) -> None:
        """End the micro-batch with the rows and the pointers of these attempts, by bucket."""
        pointers = {bucket: attempt.pointer for bucket, attempt in attempts.items()}
        self.arrived.append(rows)
        self.shown.append([row for attempt in attempts.values() for row in attempt.rows])
        self.in_memory.append(dict(pointers))
        self.on_disk.append(dict(pointers))
        self.oldest = max(self.oldest, self.next_batch - 1 - self.retained)

    def batch(self, rows: Rows) -> None:
        """A micro-batch in which nothing goes wrong."""
        self.accept(rows, {b: self.attempt(rows, b).run() for b in buckets_of(rows)})

    def overwrite(self, attempt: Attempt) -> None:
        """A late attempt of an accepted micro-batch replaces what is on disk of it."""
        if attempt.batch_id < self.next_batch:
            self.on_disk[attempt.batch_id][attempt.bucket] = attempt.pointer

    def restart(self, after_batch: int | None = None) -> None:
        """Go on from disk, after the last micro-batch or an earlier one that Spark still has."""
        count = self.next_batch if after_batch is None else after_batch + 1
        assert count > self.oldest
        for each in (self.arrived, self.shown, self.on_disk):
            del each[count:]  # type: ignore[attr-defined]
        self.in_memory = [dict(pointers) for pointers in self.on_disk]

    def memory_pointer(self, bucket: int, batch_id: int) -> Any:
        return newest(self.in_memory[: batch_id + 1], bucket)

    def check(self) -> None:
        """What was shown is the join of what came in, and every state Spark has can be read."""
        arrived = [row for rows in self.arrived for row in rows]
        shown = [row for rows in self.shown for row in rows]
        assert Counter(shown) == joined(arrived)
        rows_at = cache(self.rows_at)
        for batch_id in range(self.oldest, self.next_batch):
            expected = Counter(row for rows in self.arrived[: batch_id + 1] for row in rows)
            for pointers in (self.in_memory, self.on_disk):
                states = [newest(pointers[: batch_id + 1], bucket) for bucket in range(BUCKETS)]
                found = Counter(row for b, kept in enumerate(states) for row in rows_at(b, kept))
                assert found == expected, f"state after batch {batch_id}"

    def rows_at(self, bucket: int, kept: Any) -> Rows:
        """What a state holds; read by nobody the directory would remember."""
        if kept is None:
            return []
        with LsmStore.open_attempt(
            bucket_files(self.run_of(0), bucket),
            self.plan.state,
            pointer=kept[1],
            batch_id=0,
            attempt_id="reader",
            options=Options(memory_bytes=MEMORY_BYTES),
        ) as store:
            return [
                (name, row["k"], row[f"{name}_row"])
                for name in NAMES
                for piece in store.scan(name)
                for row in piece.to_pylist()
            ]

    def files(self) -> set[str]:
        """Everything below the root, by relative path."""
        return {str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file()}


def buckets_of(rows: Rows) -> list[int]:
    return sorted({key % BUCKETS for _, key, _ in rows})


def newest(pointers: list[dict[int, Any]], bucket: int) -> Any:
    return next((found[bucket] for found in reversed(pointers) if bucket in found), None)


def joined(rows: Rows) -> Counter[tuple[Any, ...]]:
    """The join of everything, by nested loops."""
    found: Counter[tuple[Any, ...]] = Counter()
    by_stream = {name: [(k, row) for stream, k, row in rows if stream == name] for name in NAMES}
    for key, a in by_stream["a"]:
        for other, b in by_stream["b"]:
            if other == key:
                for third, c in by_stream["c"]:
                    if third == key:
                        found[(key, a, key, b, key, c)] += 1
    return found
