"""Counts and sums of joins whose results are taken back: with a sign, they are those of the results
that stand, as DuckDB finds them after the last batch."""

import random
import tempfile
from collections import Counter

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.predicate import Call, Case, Constant, Equal, Not
from lsmstate.joins.local.aggregates.groups import Groups
from lsmstate.joins.local.changes.multi_key_join import GraphChangeJoin
from lsmstate.joins.local.changes.one_key_join import ChangeJoin
from lsmstate.joins.local.rooted.change_join import RootedChangeJoin
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.aggregates import OPERATION_STREAM, Aggregates, Partial
from support.aggregate_cases import (
    PLAIN,
    alike,
    columns_of,
    combined,
    expected,
    random_aggregates,
    shown,
)
from support.changing_cases import batch_of, changing_graphs, changing_trees, table_of
from support.examples import examples
from support.join_cases import QUICK, attempt
from support.oracle import counted, database, joined_graph, joined_tree
from support.rooted_cases import by_duckdb, random_case

COMES = Equal(Column(OPERATION_STREAM, "op"), Constant("+I", pa.string()))
ONES = [Constant(sign, pa.int64()) for sign in (1, -1)]
WHOLE = (pa.types.is_signed_integer, pa.types.is_decimal)


def random_sums(spec, seed):
    """Groups by up to three columns, and counts and sums: of what stands, and the same with the
    sign of the operation. Of values that came, and of those that went, there is a count each."""
    rng = random.Random(seed)
    plain, numbers = columns_of(shown(spec), *PLAIN), columns_of(shown(spec), *WHOLE)
    by = tuple(rng.sample(plain, min(len(plain), rng.randint(0, 3))))
    standing, signed = [Partial("count")], [Partial("sum", Case(((COMES, ONES[0]),), ONES[1]))]
    for column in rng.sample(numbers, min(len(numbers), rng.randint(0, 3))):
        standing += [Partial("sum", column), Partial("count", column)]
        signed += [
            Partial("sum", Case(((COMES, column),), Call("negative", (column,)))),
            Partial("count", Case(((COMES, column),), None)),
            Partial("count", Case(((Not(COMES), column),), None)),
        ]
    return Aggregates(by, tuple(standing)), Aggregates(by, tuple(signed))


def settled(groups):
    """What signed counts and sums say of the groups that have results."""
    found = {}
    for key, (count, *rest) in groups.items():
        values = [count]
        for at in range(0, len(rest), 3):
            total, came, went = rest[at : at + 3]
            # The sum of no values is null, and of values that have all gone it is 0.
            values += [total if came > went else None, came - went]
        if count:
            found[key] = values
    return found


def run(case, join_over, backend, piece_bytes, handle):
    """Feeds a case to what ``join_over`` makes over a store; ``handle`` reads the results."""
    spec, batches, restarts = case
    with tempfile.TemporaryDirectory() as directory:
        store = pointer = None
        for number, (name, changes, _) in enumerate(batches):
            if store is None or restarts:
                if store is not None:
                    pointer = store.commit()
                    store.close()
                store = attempt(directory, spec, backend, number, pointer)
                join = join_over(spec, store, piece_bytes, unmatched="error")
            yield from handle(join.process(Batch(name, batch_of(spec, name, changes))))
        store.close()


def grouped_by(spec, aggregates, most_bytes):
    """What reads results into groups."""
    groups = Groups(aggregates, streams_of(spec), most_bytes)

    def handle(results):
        yield from groups.add(results)
        yield from groups.rows()

    return handle


def streams_of(spec):
    return {OPERATION_STREAM: pa.schema([("op", pa.string())]), **shown(spec)}


def check(kind, case, backend, piece_bytes, seed, most_bytes):
    spec, batches, _ = case
    standing, signed = random_sums(spec, seed)
    handle = grouped_by(spec, signed, most_bytes)
    parts = list(run(case, KINDS[kind], backend, piece_bytes, handle))
    tables = {name: table_of(spec.streams[name], rows) for name, rows in batches[-1][2].items()}
    with database() as db:
        results = ORACLES[kind](db, spec, tables)
    assert settled(combined(signed, parts)) == expected(shown(spec), standing, results)


def check_as_rows(kind, case, backend, piece_bytes, seed, most_bytes):
    """Any aggregates, the operation among what they are of, are those of all rows that come."""
    spec, *_ = case
    aggregates = random_aggregates(streams_of(spec), seed)
    rows = Counter()
    for piece in run(case, KINDS[kind], backend, piece_bytes, iter):
        rows.update(counted([piece]))
    parts = list(
        run(case, KINDS[kind], backend, piece_bytes, grouped_by(spec, aggregates, most_bytes))
    )
    assert alike(combined(aggregates, parts), expected(streams_of(spec), aggregates, rows))


KINDS = {"one key": ChangeJoin, "several keys": GraphChangeJoin, "rooted": RootedChangeJoin}
ORACLES = {
    "one key": joined_tree,
    "several keys": lambda db, spec, tables: joined_graph(spec.graph, tables),
    "rooted": by_duckdb,
}


@st.composite
def rooted(draw):
    return random_case(random.Random(draw(st.integers(0, 2**32))))


CASES = st.one_of(
    st.tuples(st.just("one key"), changing_trees()),
    st.tuples(st.just("several keys"), changing_graphs()),
    st.tuples(st.just("rooted"), rooted()),
)
SIZES = st.sampled_from([1, 400, 1 << 20])
SEEDS = st.integers(0, 1 << 30)


@settings(QUICK, max_examples=examples(30))
@given(CASES, SIZES, SEEDS, SIZES)
def test_with_a_sign_they_are_those_of_what_stands(case, piece_bytes, seed, most_bytes):
    check(*case, "memory", piece_bytes, seed, most_bytes)


@settings(QUICK, max_examples=examples(40))
@given(CASES, SIZES, SEEDS, SIZES)
def test_without_one_they_are_those_of_all_changes(case, piece_bytes, seed, most_bytes):
    check_as_rows(*case, "memory", piece_bytes, seed, most_bytes)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["memory", "lsm", "rocksdb"])
@settings(QUICK, derandomize=False, max_examples=300)
@given(CASES, SIZES, SEEDS, SIZES)
def test_many_on_every_store(backend, case, piece_bytes, seed, most_bytes):
    check(*case, backend, piece_bytes, seed, most_bytes)
    check_as_rows(*case, backend, piece_bytes, seed, most_bytes)
