"""Several joins in one operator, without Spark: each sees its own rows, and says whose they are."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.joins.routing.hash_router import HashRouter
from lsmstate.joins.routing.shares import JoinGraph, choose
from lsmstate.joins.routing.shares_router import SharesRouter, SharesRouting
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.memory_backend.store import MemoryStore
from lsmstate.options import Options
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.joins.request import InnerJoin
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.joins.several import (
    GROUP,
    function_of_all,
    plan_of_all,
    rows_column,
)
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import InputPlan
from lsmstate.spark_integration.stateful_operator.task_router import router_of
from lsmstate.state_location import StatePlace
from support.simulated_spark import join_plan

KEY = pa.schema([("k", pa.int64())])


def join(*names: str) -> InnerJoin:
    """Of streams by their one key."""
    rows = {name: pa.schema([("k", pa.int64()), (f"{name}_row", pa.string())]) for name in names}
    spec = JoinSpec(rows, dict.fromkeys(names, ("k",)), KEY)
    inputs = tuple(InputPlan(n, rows[n], KEY, (0,), pa.schema([]), ()) for n in names)
    plan = replace(
        join_plan()[0],
        inputs=inputs,
        state=tuple(spec.stream_schemas),
        output=spec.output_schema,
        settings={"streams": list(names), "backend": "memory"},
        backend="memory",
    )
    return InnerJoin(plan, None, run_join(spec, plan.inputs), None)  # type: ignore[arg-type]


JOINS = [join("a", "b"), join("c", "d")]
OUTPUT = pa.schema(
    [
        pa.field(GROUP, pa.int32(), nullable=False),
        *(pa.field(rows_column(n), pa.struct(list(j.plan.output))) for n, j in enumerate(JOINS)),
    ]
)
PLAN = plan_of_all([join.plan for join in JOINS], OUTPUT)


def test_each_join_finds_its_own_rows(tmp_path: Path) -> None:
    def batches() -> Iterator[InputBatch]:
        for name, keys in {"a": [1, 2], "b": [2, 2], "c": [1, 2], "d": [1, 3]}.items():
            columns: dict[str, Any] = {"k": keys, f"{name}_row": [f"{name}{k}" for k in keys]}
            source = next(source for source in PLAN.inputs if source.name == name)
            rows = pa.RecordBatch.from_pydict(columns, schema=source.rows)
            yield InputBatch(name, rows, source.keys_of(rows))

    with MemoryStore.open(str(tmp_path), PLAN.state, options=Options()) as store:
        found = list(function_of_all(JOINS)(Bucket(0, 0, OUTPUT), batches(), store) or ())
    rows = pa.Table.from_batches(found, OUTPUT).to_pylist()
    of_a = {"a_k": 2, "a_row": "a2", "b_k": 2, "b_row": "b2"}
    of_c = {"c_k": 1, "c_row": "c1", "d_k": 1, "d_row": "d1"}
    first, second = ({GROUP: 0, "rows0": of_a, "rows1": None}, {GROUP: 1, "rows0": None})
    assert rows == [first, first, {**second, "rows1": of_c}]


def test_each_join_is_routed_by_its_own_shares(tmp_path: Path) -> None:
    graph = JoinGraph(rows={"c": 3, "d": 1}, classes={"c.k": ("c", "d")})
    shares = choose(graph, 4, None)
    by_shares = replace(JOINS[1].plan, routing=SharesRouting(graph, shares))
    plan = plan_of_all([JOINS[0].plan, by_shares], OUTPUT)
    pinned = Pinned(4, 2, (0, 1, 2, 3), adopted=plan.adopted)
    run = TaskRun(
        place=StatePlace(str(tmp_path)),
        pinned=pinned,
        flush_rows=10_000,
        retained_batches=3,
        batch_id=0,
        partition=0,
        attempt="0.0",
        task_attempt_id=0,
    )
    plan = plan.settled(4, plan.adopted)
    routers = [router_of(plan, source, run) for source in plan.inputs]
    assert [type(router) for router in routers] == [*[HashRouter] * 2, *[SharesRouter] * 2]


def test_the_settings_of_each_are_pinned() -> None:
    assert PLAN.settings == {
        "backend": "memory",
        "streams of join 1": ["a", "b"],
        "streams of join 2": ["c", "d"],
    }
