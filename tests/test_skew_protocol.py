"""A join with hot keys from route to commit, without Spark: micro-batches and tasks repeated."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from simulated_spark import State

from joins.routing import spread
from lsmstate.options import Options
from lsmstate.state_place import StatePlace
from spark_integration import route, stateful_body
from spark_integration.frames import unpack_rows
from spark_integration.join_function import CoercedSpec, join_function
from spark_integration.pinned import Pinned
from spark_integration.plan import InputPlan, StatefulPlan
from spark_integration.routes import PERIOD
from spark_integration.run import TaskRun
from spark_integration.skew import SKETCHES

NAMES = ("a", "b")
BUCKETS = 4
KEY = pa.schema([("k", pa.int64())])
ROWS = {name: pa.schema([("k", pa.int64()), (f"{name}_row", pa.int64())]) for name in NAMES}

#: The rows of a micro-batch by stream: (key, number).
Rows = dict[str, list[tuple[int, int]]]


class SkewedQuery:
    """What Spark does with one query: route tasks, buckets and pointers, each more than once."""

    def __init__(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random, backend: str
    ) -> None:
        self.home, self.rng = home, rng
        spec = CoercedSpec(ROWS, dict.fromkeys(NAMES, ("k",)), KEY)
        self.plan = StatefulPlan(
            operator="multiway_join",
            inputs=tuple(InputPlan(n, ROWS[n], KEY, (0,), pa.schema([]), ()) for n in NAMES),
            state=(*spec.stream_schemas, SKETCHES),
            output=spec.output_schema,
            settings={},
            keeps_null_keys=False,
            output_mode="append",
            options=Options(memory_bytes=16 << 20),
            backend=backend,
            buckets=BUCKETS,
            default_buckets=BUCKETS,
            state_dir=None,
            skew="spread",
        )
        self.function: Any = stateful_body.stateful_function(self.plan, join_function(spec))
        self.pointers: dict[int, Any] = {}
        self._tasks = 0
        self._run: TaskRun | None = None
        for module in (route, stateful_body):
            monkeypatch.setattr(module, "current_run", lambda _: self._run)

    def batch(self, batch_id: int, rows: Rows) -> Counter[tuple[Any, ...]]:
        """One micro-batch. What it shows is of one execution; a bucket's pointer may be another's,
        as where an earlier driver's tasks, which cut the input otherwise, end later."""
        found, pointers = self._executed(batch_id, rows)
        while self.rng.random() < 0.3:
            again, late = self._executed(batch_id, rows)
            assert again == found
            assert late.keys() == pointers.keys()
            pointers = {b: self.rng.choice([pointers[b], late[b]]) for b in pointers}
        self.accepted = {**self.pointers, **pointers}
        return found

    def _executed(
        self, batch_id: int, rows: Rows
    ) -> tuple[Counter[tuple[Any, ...]], dict[int, Any]]:
        """Results and pointers; of each task's and bucket's attempts any may be the one that
        counts."""
        frames = self._routed(batch_id, rows)
        pointers: dict[int, Any] = {}
        found: Counter[tuple[Any, ...]] = Counter()
        for bucket, mine in frames.groupby("bucket"):
            attempts = []
            for _ in range(self.rng.choice([1, 1, 2])):
                self._begin(batch_id, 0)
                state = State(self.pointers.get(bucket))
                shuffled = mine.sample(frac=1, random_state=self.rng.randrange(1000))
                attempts.append((self._results((bucket,), shuffled, state), state.getOption))
            assert all(rows == attempts[0][0] for rows, _ in attempts)
            shown, pointers[bucket] = self.rng.choice(attempts)
            found += shown
        return found, pointers

    def _routed(self, batch_id: int, rows: Rows) -> pd.DataFrame:
        found = []
        tasks = self.rng.choice([1, 2, 3])
        for number, name in enumerate(NAMES):
            for task in range(tasks):
                mine = rows[name][task::tasks]
                columns = [pa.array(c, pa.int64()) for c in zip(*mine, strict=True)]
                if mine:
                    batch = pa.RecordBatch.from_arrays(columns, schema=ROWS[name])
                    function = route.route_function(self.plan, number)
                    for _ in range(self.rng.choice([1, 1, 2])):  # retried: any output is as good
                        self._begin(batch_id, task)
                        output = list(function(iter([batch.slice(0, 3), batch.slice(3)])))
                    found += output
        return pa.Table.from_batches(found).to_pandas()

    def _results(self, key: Any, frames: Any, state: State) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        for frame in self.function(key, iter([frames]), state):
            for count, payload in zip(frame["rows"], frame["payload"], strict=True):
                if payload is not None:
                    batch = unpack_rows(payload, count, self.plan.output)
                    found.update(zip(*(c.to_pylist() for c in batch.columns), strict=True))
        return found

    def _begin(self, batch_id: int, partition: int) -> None:
        self._tasks += 1
        self._run = TaskRun(
            place=StatePlace(str(self.home)),
            pinned=Pinned(BUCKETS, 2, (3, 10, 12, 15)),
            flush_rows=10_000,
            retained_batches=3,
            batch_id=batch_id,
            partition=partition,
            attempt=f"0.{self._tasks}",
            task_attempt_id=self._tasks,
        )


def arriving(rng: random.Random, hot: list[int]) -> Rows:
    keys = {name: hot * 13 + [rng.randrange(1000) for _ in range(36)] for name in NAMES}
    for name in NAMES:
        rng.shuffle(keys[name])
    return {name: [(key, rng.getrandbits(40)) for key in keys[name]] for name in NAMES}


@pytest.mark.parametrize(
    ("seed", "backend"),
    [
        (1, "lsm"),
        *(pytest.param(seed, "lsm", marks=pytest.mark.stress) for seed in range(2, 7)),
        pytest.param(0, "memory", marks=pytest.mark.stress),
        pytest.param(7, "rocksdb", marks=pytest.mark.stress),
    ],
)
def test_results_are_exact_while_keys_are_spread_and_batches_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, backend: str
) -> None:
    monkeypatch.setattr(spread, "LEAST_ROWS", 100.0)
    rng = random.Random(seed)
    query = SkewedQuery(tmp_path, monkeypatch, rng, backend)
    arrived: Rows = {name: [] for name in NAMES}
    found: Counter[tuple[Any, ...]] = Counter()
    for batch_id in range(2 * PERIOD + 2):
        rows = arriving(rng, [5000] if batch_id < PERIOD else [5000, 6000])
        shown = query.batch(batch_id, rows)
        if rng.random() < 0.4:  # its commit was lost: it is repeated from the pointers before
            assert query.batch(batch_id, rows) == shown
        query.pointers = query.accepted
        found += shown
        for name in NAMES:
            arrived[name] += rows[name]
    assert found == joined(arrived)
    tables = sorted((tmp_path / "routes").glob("table-*"))
    for table, keys in zip(tables, (["5000"], ["5000", "6000"]), strict=True):
        assert [key for _, key, _ in json.loads(table.read_text())["settings"]["keys"]] == keys


def joined(rows: Rows) -> Counter[tuple[Any, ...]]:
    by_key: dict[int, list[int]] = {}
    for key, row in rows["b"]:
        by_key.setdefault(key, []).append(row)
    return Counter((key, a, key, b) for key, a in rows["a"] for b in by_key.get(key, []))
