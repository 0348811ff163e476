"""Joins beyond inner over several buckets, to which the routers of Spark's side send the rows: what
all buckets give together is DuckDB's join."""

import random
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest

from support.join_cases import attempt, on_all_stores

pytest.importorskip("pyspark")


from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.kinds import local_join
from lsmstate.joins.local.changes.multi_key_join import GraphChangeJoin
from lsmstate.joins.local.rooted.change_join import RootedChangeJoin
from lsmstate.joins.protocols import Batch, Context
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.options import Options
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.joins.co_location import meeting
from lsmstate.spark_integration.joins.shares import with_shares
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.stateful_operator.task_router import router_of
from lsmstate.state_location import StatePlace
from support import rooted_cases
from support.changing_cases import apply, batch_of, changing_graphs, table_of
from support.final_cases import LAST, by_duckdb, final_joins
from support.final_cases import opened as opened_final
from support.oracle import database, joined_graph
from support.timed_cases import arrivals, numbers_of, watermark_before
from support.timed_cases import batch_of as timed_batch_of


def plan_of(graph, buckets):
    """Of an operator whose rows travel with all their keys beside them."""
    inputs = []
    for name, rows in graph.streams.items():
        key = graph.key_schema(graph.held_by(name))
        cast = pa.schema([field.with_name(f"key {field.name}") for field in key])
        positions = tuple(range(len(rows), len(rows) + len(key)))
        inputs.append(InputPlan(name, rows, key, positions, cast, ()))
    return StatefulPlan(
        operator="multiway_join",
        inputs=tuple(inputs),
        state=(),
        output=pa.schema([]),
        settings={},
        keeps_null_keys=False,
        output_mode="append",
        options=Options(),
        backend="memory",
        buckets=buckets,
        default_buckets=buckets,
        state_dir=None,
    )


class Grid:
    """The operators of all buckets, and the routers before them."""

    def __init__(self, plan, graph, operators):
        ids = tuple(range(plan.buckets))
        run = TaskRun(
            place=StatePlace("nowhere"),
            pinned=Pinned(plan.buckets, 1, ids, adopted=plan.adopted),
            flush_rows=10_000,
            retained_batches=2,
            batch_id=1,
            partition=0,
            attempt="0.1",
            task_attempt_id=1,
        )
        self._graph = graph
        self._sources = {source.name: source for source in plan.inputs}
        plan = plan.settled(plan.buckets, plan.adopted)
        self._routers = {name: router_of(plan, s, run) for name, s in self._sources.items()}
        self.operators = operators

    def process(self, name, rows, arriving):
        """Results of all buckets; ``rows`` as they are stored, ``arriving`` as the operators are
        given them."""
        keys = self._graph.key_batch(name, rows, self._graph.held_by(name))
        found = self._routers[name].route(rows, keys)
        for bucket in np.unique(found.buckets).tolist():
            mine = found.positions[found.buckets == bucket]
            yield from self.operators[bucket].process(Batch(name, arriving.take(pa.array(mine))))


def met(rng, graph, parts):
    """The plan of a join by its roots; of one bucket where no key is one by which all meet."""
    try:
        return meeting(plan_of(graph, rng.choice([2, 4, 6])), graph, parts, {}, None)
    except InvalidArgumentError as refusal:
        if "give buckets=1" not in str(refusal):
            raise
        return meeting(plan_of(graph, 1), graph, parts, {}, None)


@st.composite
def rooted_grids(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    spec, batches, _ = rooted_cases.random_case(rng)
    return spec, spec.graph, met(rng, spec.graph, spec.parts), batches


@st.composite
def graph_grids(draw):
    spec, batches, _ = draw(changing_graphs())
    plan = plan_of(spec.graph, draw(st.sampled_from([2, 4, 6])))
    return spec, spec.graph, with_shares(plan, spec.graph, {}, None), batches


def check_changes(join_over, expected, case, backend, piece_bytes):
    spec, graph, plan, batches = case
    shown = Counter()
    with tempfile.TemporaryDirectory() as home, ExitStack() as stores:
        operators = []
        for bucket in range(plan.buckets):
            store = stores.enter_context(attempt(f"{home}/{bucket}", spec, backend))
            operators.append(join_over(spec, store, piece_bytes, unmatched="error"))
        grid = Grid(plan, graph, operators)
        for name, changes, live in batches:
            rows = table_of(spec.streams[name], [row for _, row in changes]).combine_chunks()
            if len(rows):
                apply(
                    shown, grid.process(name, rows.to_batches()[0], batch_of(spec, name, changes))
                )
            tables = {n: table_of(spec.streams[n], found) for n, found in live.items()}
            assert +shown == expected(spec, tables), spec


def check_rooted(case, backend, piece_bytes):
    with database() as db:
        expected = partial(rooted_cases.by_duckdb, db)
        check_changes(RootedChangeJoin, expected, case, backend, piece_bytes)


def check_graph(case, backend, piece_bytes):
    def expected(spec, tables):
        return joined_graph(spec.graph, tables)

    check_changes(GraphChangeJoin, expected, case, backend, piece_bytes)


@st.composite
def final_grids(draw):
    while True:
        schemas, text, shown, rows, rng = draw(final_joins())
        with opened_final(schemas, text, None, "memory", 1 << 20) as join:
            spec = join.spec
        if isinstance(spec, FinalSpec):  # not of inner joins alone
            plan = met(rng, spec.graph, spec.parts)
            return spec, plan, (schemas, text, shown, rows, rng)


def check_final(case, backend, piece_bytes):
    spec, plan, (schemas, text, shown, rows, rng) = case
    found = Counter()
    with tempfile.TemporaryDirectory() as home, ExitStack() as stores:
        operators = [
            local_join(
                spec,
                stores.enter_context(attempt(f"{home}/{bucket}", spec, backend)),
                Context(piece_bytes=piece_bytes),
            )
            for bucket in range(plan.buckets)
        ]
        grid = Grid(plan, spec.graph, operators)

        def advance(watermark):
            watermark_us = spec.event_time.watermark_us(schemas, watermark)
            for operator in operators:
                yield from operator.advance(watermark_us)

        for name, mine, at in arrivals(rows, rng):
            batch = timed_batch_of(schemas[name], mine)
            found += numbers_of(grid.process(name, batch, batch), shown)
            watermark = watermark_before(rows[at:], list(schemas), rng)
            if watermark is not None:
                found += numbers_of(advance(watermark), shown)
        found += numbers_of(advance(LAST), shown)
    with database() as db:
        assert found == by_duckdb(db, schemas, text, shown, rows), text


test_changes_on_memory, test_changes_on_lsm, test_many_changes = on_all_stores(
    check_rooted, rooted_grids(), memory=12, lsm=1, many=300
)
test_inner_on_memory, test_inner_on_lsm, test_many_inner = on_all_stores(
    check_graph, graph_grids(), memory=3, lsm=1, many=300
)
test_final_on_memory, test_final_on_lsm, test_many_final = on_all_stores(
    check_final, final_grids(), memory=3, lsm=1, many=300
)
