"""A join that spreads hot keys, from route to commit, without Spark: tasks, buckets and
micro-batches run more than once, the query is set back, and attempts of long ago end late."""

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

from lsmstate.errors import LsmStateError
from lsmstate.joins.protocols import Spec
from lsmstate.joins.routing.skew.spread import RouteTable, SpreadKey
from lsmstate.joins.routing.skew.spread_router import SpreadRouting
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.options import Options
from lsmstate.remote.directory import RemoteDir
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned
from lsmstate.spark_integration.checkpoint.starts import Starts
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.skew.key_watch import SPREAD, skew_streams
from lsmstate.spark_integration.stateful_operator import body as stateful_body
from lsmstate.spark_integration.stateful_operator import route
from lsmstate.spark_integration.stateful_operator.frames import unpack_rows
from lsmstate.spark_integration.tables.versioned_tables import begin, newest_table
from lsmstate.state_location import StatePlace
from support.simulated_spark import State

BUCKETS = 4
BUCKET_IDS = (3, 10, 12, 15)
RETAINED = 3
KEY = pa.schema([("k", pa.int64())])

#: The rows of a micro-batch by stream: (key, number).
Rows = dict[str, list[tuple[int, ...]]]
Results = Counter[tuple[Any, ...]]
Pointers = dict[int, Any]


class Elsewhere(StatePlace):
    """A place that pyarrow writes to: no file is created exclusively, and a later one stays."""

    def __init__(self, home: Path) -> None:
        super().__init__(str(home / "state"), cache_dir=str(home))
        self._filesystem: Any = LocalFileSystem()
        self.files, self._path = RemoteDir(self._filesystem, self.url), self.url
        self.local_directory = None


class Ran(NamedTuple):
    """A micro-batch, and what its tasks were given."""

    batch_id: int
    rows: Rows
    pointers: Pointers
    """Before it."""
    starts: Starts


class SkewedQuery:
    """What Spark does with one query; ``pointers`` are those after its last micro-batch."""

    def __init__(
        self,
        home: Path,
        monkeypatch: pytest.MonkeyPatch,
        rng: random.Random,
        names: str = "ab",
        backend: str = "lsm",
    ) -> None:
        schemas = {n: pa.schema([("k", pa.int64()), (f"{n}_row", pa.int64())]) for n in names}
        spec = JoinSpec(schemas, dict.fromkeys(names, ("k",)), KEY)
        plan = StatefulPlan(
            operator="multiway_join",
            inputs=tuple(
                InputPlan(n, rows, KEY, (0,), pa.schema([]), ()) for n, rows in schemas.items()
            ),
            state=(*spec.stream_schemas, *skew_streams(SPREAD, len(names))),
            output=spec.output_schema,
            settings={},
            keeps_null_keys=False,
            output_mode="append",
            options=Options(memory_bytes=16 << 20),
            backend=backend,
            buckets=BUCKETS,
            default_buckets=BUCKETS,
            state_dir=None,
            skew=SPREAD,
            routing=SpreadRouting(tuple(names)),
        )
        on = " AND ".join(f"{names[0]}.k = {name}.k" for name in names[1:])
        self.set_up(home, monkeypatch, rng, schemas, spec, plan, on)

    def set_up(
        self,
        home: Path,
        monkeypatch: pytest.MonkeyPatch,
        rng: random.Random,
        schemas: dict[str, pa.Schema],
        spec: Spec,
        plan: StatefulPlan,
        on: str,
    ) -> None:
        """Begin with a join; ``on`` is what it means to DuckDB."""
        self.home, self.rng = home, rng
        self.place = self.place_of(home)
        self.schemas, self.spec, self.plan, self.on = schemas, spec, plan, on
        self.function: Any = stateful_body.stateful_function(
            self.plan, run_join(self.spec, self.plan.inputs)
        )
        #: By micro-batch: what was run, and shown.
        self.ran: list[Ran] = []
        self.shown: list[Results] = []
        #: What was run and given up when the query was set back.
        self.given_up: list[Ran] = []
        self.pointers: Pointers = {}
        self._starts = begin(self.place, 0)
        self._tasks = 0
        self._run: TaskRun | None = None
        for module in (route, stateful_body):
            monkeypatch.setattr(module, "current_run", lambda _: self._run)

    def place_of(self, home: Path) -> StatePlace:
        """Where the state lies."""
        return StatePlace(str(home))

    def batch(self, rows: Rows) -> None:
        """One micro-batch. What it shows is of one execution; a bucket's pointer may be another's,
        as where an earlier driver's tasks, which cut the input otherwise, end later."""
        batch_id = len(self.shown)
        found, pointers = self.executed(batch_id, rows, self.pointers)
        while self.rng.random() < 0.3:
            again, late = self.executed(batch_id, rows, self.pointers)
            assert again == found
            assert late.keys() == pointers.keys()
            pointers = {b: self.rng.choice([pointers[b], late[b]]) for b in pointers}
        self.ran.append(Ran(batch_id, rows, self.pointers, self._starts))
        self.shown.append(found)
        self.pointers = {**self.pointers, **pointers}

    def repeat_last(self) -> None:
        """Its commit was lost: the query starts again with it."""
        (ran,), (shown,) = self._cut(len(self.shown) - 1)
        self.batch(ran.rows)
        assert self.shown[-1] == shown

    def set_back(self, count: int) -> None:
        """Give up the last micro-batches; other rows come instead."""
        self.given_up += self._cut(len(self.shown) - count)[0]

    def zombie_of_given_up(self) -> None:
        """All tasks of a micro-batch that the query was set back from, once more."""
        starts, self._starts = self._starts, self._starts
        self._starts, batch_id, rows, before = self.rng.choice(self.given_up)
        try:
            with suppress(LsmStateError, OSError):
                self.executed(batch_id, rows, before)
        finally:
            self._starts = starts

    def zombie(self, ran: Ran) -> None:
        """All tasks of an old micro-batch once more; what they need may be gone by now."""
        newest, self._starts = self._starts, ran.starts
        with suppress(LsmStateError, OSError):
            self.executed(ran.batch_id, ran.rows, ran.pointers)
        self._starts = newest

    def check(self) -> None:
        """What was shown is what DuckDB finds."""
        names = list(self.schemas)
        with duckdb.connect() as db:
            for name, schema in self.schemas.items():
                db.register(name, table_of([r for ran in self.ran for r in ran.rows[name]], schema))
            columns = ", ".join(f"{name}.*" for name in names)
            found_by = f"SELECT {columns} FROM {', '.join(names)} WHERE {self.on}"
            expected = db.execute(found_by).fetchall()
        found: Results = Counter()
        for shown in self.shown:
            found.update(shown)
        assert found
        assert found == Counter(expected)

    def executed(self, batch_id: int, rows: Rows, before: Pointers) -> tuple[Results, Pointers]:
        """Results and pointers; of each task's and bucket's attempts any may be the one that
        counts."""
        frames = self.routed(batch_id, rows)
        pointers: Pointers = {}
        found: Results = Counter()
        for bucket, mine in frames.groupby("bucket") if frames is not None else ():
            attempts = []
            for _ in range(self.rng.choice([1, 1, 2])):
                state = State(before.get(bucket))
                shuffled = mine.sample(frac=1, random_state=self.rng.randrange(1000))
                attempts.append((self.called(batch_id, bucket, shuffled, state), state.getOption))
            assert all(rows == attempts[0][0] for rows, _ in attempts)
            shown, pointers[bucket] = self.rng.choice(attempts)
            found.update(shown)
        return found, pointers

    def called(self, batch_id: int, bucket: int, frames: pd.DataFrame, state: State) -> Results:
        """One attempt of one bucket."""
        self._begin(batch_id, 0)
        found: Results = Counter()
        for frame in self.function((bucket,), iter([frames]), state):
            for count, payload in zip(frame["rows"], frame["payload"], strict=True):
                if payload is not None:
                    batch = unpack_rows(payload, count, self.plan.output)
                    found.update(zip(*(c.to_pylist() for c in batch.columns), strict=True))
        return found

    def routed(self, batch_id: int, rows: Rows) -> pd.DataFrame | None:
        """The frames of all tasks; None where there was none."""
        found = []
        tasks = self.rng.choice([1, 2, 3])
        for number, (name, schema) in enumerate(self.schemas.items()):
            for task in range(tasks):
                mine = rows[name][task::tasks]
                if mine:
                    batch = table_of(mine, schema).to_batches()[0]
                    function = route.route_function(self.plan, number)
                    for _ in range(self.rng.choice([1, 1, 2])):  # retried: any output is as good
                        self._begin(batch_id, task)
                        output = list(function(iter([batch.slice(0, 3), batch.slice(3)])))
                    found += output
        return pa.Table.from_batches(found).to_pandas() if found else None

    def _cut(self, count: int) -> tuple[list[Ran], list[Results]]:
        """Start again with micro-batch ``count``; returns it and later ones."""
        cut = self.ran[count:], self.shown[count:]
        self.pointers = self.ran[count].pointers
        del self.ran[count:], self.shown[count:]
        self._starts = begin(self.place, count)
        return cut

    def _begin(self, batch_id: int, partition: int) -> None:
        self._run = self.run_of(batch_id, partition)

    def run_of(self, batch_id: int, partition: int = 0) -> TaskRun:
        """Of a task of its own."""
        self._tasks += 1
        return TaskRun(
            place=self.place,
            pinned=Pinned(BUCKETS, 2, BUCKET_IDS),
            flush_rows=10_000,
            retained_batches=RETAINED,
            batch_id=batch_id,
            partition=partition,
            attempt=f"0.{self._tasks}",
            task_attempt_id=self._tasks,
            starts=self._starts,
        )


def spread_keys(home: Path) -> tuple[SpreadKey, ...]:
    """The keys that are spread by the newest table."""
    table = newest_table(StatePlace(str(home)), SpreadRouting())
    assert isinstance(table, RouteTable)
    return table.keys


def table_of(rows: list[tuple[int, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=schema)


def arriving(rng: random.Random, hot: dict[int, dict[str, int]], others: dict[str, int]) -> Rows:
    """By stream: of each hot key so many rows, and so many with other keys."""
    found = {}
    for name, count in others.items():
        keys = [key for key, rows in hot.items() for _ in range(rows[name])]
        keys += [rng.randrange(1000) for _ in range(count)]
        rng.shuffle(keys)
        found[name] = [(key, rng.getrandbits(40)) for key in keys]
    return found
