"""The binary join tree against DuckDB: the joins, arrivals and restarts of UMJoin's own tests."""

import itertools
import random
from contextlib import closing

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.inner import binary_tree_join as tree_join
from lsmstate.joins.local.inner.binary_tree_join import TreeJoin
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.binary_tree import BinaryTree, all_orders
from lsmstate.joins.specs.multi_key import GraphSpec, create_spec
from lsmstate.joins.specs.one_key import JoinSpec
from support.examples import examples
from support.grouped import grouped
from support.join_cases import PIECES, QUICK, attempt, run
from support.multi_key_cases import CHAIN, INTS, graph_joins, rows
from support.one_key_cases import INT, batch_of, joins
from support.oracle import counted, joined, joined_graph


def check(case, seed, backend, piece_bytes):
    """One random order of the case gives DuckDB's rows."""
    spec, tables, *arrival = case
    tree = BinaryTree.create(spec, random.Random(seed).choice(all_orders(spec)))
    found = run(lambda store: TreeJoin(tree, store, piece_bytes), tree, tables, *arrival, backend)
    assert all(batch.schema == spec.output_schema for batch in found)
    oracle = joined if isinstance(spec, JoinSpec) else joined_graph
    assert counted(found) == oracle(spec, tables)


SEEDS = st.integers(0, 1000)


@settings(QUICK, max_examples=examples(25))
@given(joins() | graph_joins(), SEEDS, PIECES)
def test_the_result_equals_duckdb(case, seed, piece_bytes):
    check(case, seed, "memory", piece_bytes)


@settings(QUICK, max_examples=examples(12))
@given(joins() | graph_joins(), SEEDS, PIECES)
def test_the_result_equals_duckdb_on_lsm(case, seed, piece_bytes):
    check(case, seed, "lsm", piece_bytes)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["memory", "lsm", "rocksdb"])
@settings(QUICK, derandomize=False, max_examples=1000)
@given(joins() | graph_joins(), SEEDS, PIECES)
def test_many_random_results_equal_duckdb(backend, case, seed, piece_bytes):
    check(case, seed, backend, piece_bytes)


def test_every_tree_of_four_streams_gives_the_same_rows():
    streams = dict.fromkeys("abcd", INT)
    orders = all_orders(create_spec(streams, ["id"]))
    assert len(orders) == 15
    assert ["a", ["b", ["c", "d"]]] in orders
    batches = [(name, batch_of([1, 1, 2, 3 + n])) for n, name in enumerate("abcd")]
    expected = None
    for order in orders:
        with MultiwayJoin(
            streams, ["id"], algorithm="tree", order=order, state=State(backend="memory")
        ) as join:
            found = counted(p for name, batch in batches for p in join.process(name, batch))
        expected = expected or found
        assert found == expected, order
    assert expected.total() == 2**4 + 1


def test_orders_of_a_chain_have_no_cross_product():
    assert all_orders(create_spec(INTS, CHAIN)) == [["c", ["o", "l"]], [["c", "o"], "l"]]


def test_intermediate_results_are_stored_in_the_order_that_was_asked_for(tmp_path):
    spec = create_spec(dict.fromkeys("abc", INT), ["id"])
    ids = list(range(50))
    stored = {}
    for number, order in enumerate((["a", "b", "c"], [["a", "c"], "b"])):
        tree = BinaryTree.create(spec, order)
        with closing(attempt(tmp_path / str(number), tree, "lsm")) as store:
            join = TreeJoin(tree, store)
            for name, batch in {"a": ids, "b": ids * 4, "c": [1]}.items():
                list(join.process(Batch(name, batch_of(batch))))
            for name in store.streams:
                stored[name] = sum(piece.num_rows for piece in store.scan(name))
    assert stored == {"a": 50, "b": 200, "c": 1, "(a b)": 200, "(a c)": 1}


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_more_intermediate_results_than_memory_keeps_go_through_a_file(monkeypatch, kept_bytes):
    monkeypatch.setattr(tree_join, "KEPT_BYTES", kept_bytes)
    with MultiwayJoin(
        dict.fromkeys("abc", INT), ["id"], algorithm="tree", state=State(memory="8m")
    ) as join:
        list(join.process("a", batch_of([1, 2, 2, None])))
        list(join.process("b", batch_of([2, 2, 1])))
        got = [row for piece in join.process("c", batch_of([2])) for row in piece.to_pylist()]
    pairs = sorted((row["a_v"], row["b_v"]) for row in got)
    assert pairs == sorted(itertools.product(["v1", "v2"], ["v0", "v1"]))


def test_results_that_nobody_reads_still_become_state():
    with MultiwayJoin(
        dict.fromkeys("abc", INT), ["id"], algorithm="tree", piece_bytes=1, state=State(memory="8m")
    ) as join:
        list(join.process("a", batch_of([1, 1])))
        results = join.process("b", batch_of([1, 1]))
        join.commit()
        with pytest.raises(InvalidArgumentError, match="not consumed"):
            join.process("c", batch_of([1]))
        results.close()
        join.commit()
        assert sum(piece.num_rows for piece in join.process("c", batch_of([1]))) == 4


def test_a_kept_tree_goes_on_where_it_was_committed(tmp_path):
    streams, path = dict.fromkeys("abc", INT), str(tmp_path / "state")
    with MultiwayJoin(streams, ["id"], algorithm="tree", state=State(state_dir=path)) as join:
        list(join.process("a", batch_of([1])))
        list(join.process("b", batch_of([1])))
        join.commit()
    with MultiwayJoin(streams, ["id"], algorithm="tree", state=State(state_dir=path)) as join:
        assert sum(piece.num_rows for piece in join.process("c", batch_of([1, 2]))) == 1
    with pytest.raises(InvalidArgumentError, match="streams"):
        MultiwayJoin(
            streams, ["id"], algorithm="tree", order=["a", ["b", "c"]], state=State(state_dir=path)
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "tre"}, "did you mean 'tree'"),
        ({"order": ["c", "o", "l"]}, "applies to algorithm='tree'"),
        ({"algorithm": "tree", "order": ["c", "o"]}, "name every stream once: c, o, l"),
        ({"algorithm": "tree", "order": ["c", "o", "l", "o"]}, "name every stream once"),
        ({"algorithm": "tree", "order": ["c", "l", "o"]}, "c share no key with l"),
        ({"algorithm": "tree", "order": ["c", [], "o", "l"]}, "an empty list"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        MultiwayJoin(INTS, CHAIN, **grouped(**options))


def test_a_store_with_other_streams_is_refused(tmp_path):
    spec = GraphSpec.create(INTS, CHAIN)
    tree = BinaryTree.create(spec, ["c", "o", "l"])
    with (
        closing(attempt(tmp_path, spec, "memory")) as store,
        pytest.raises(InvalidArgumentError, match=r"the join needs c, o, \(c o\), l"),
    ):
        TreeJoin(tree, store)
    with MultiwayJoin(INTS, CHAIN, algorithm="tree") as join:
        assert list(join.process("c", rows("c", [1], ["x"]))) == []
