"""``order="best"`` of the binary join tree: what it counts, what it takes, what a state keeps."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import State
from lsmstate.joins.local.inner.binary_tree_join import TreeJoin
from lsmstate.joins.local.inner.binary_tree_order import best_tree, try_orders
from lsmstate.joins.multiway import MultiwayJoin
from lsmstate.joins.specs.binary_tree import BinaryTree, all_orders, stored_order
from lsmstate.joins.specs.multi_key import create_spec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.options import Options
from lsmstate.tools.recorded_streams import kept_streams
from support.examples import examples
from support.grouped import grouped
from support.join_cases import QUICK, run
from support.multi_key_cases import CHAIN, INTS, graph_joins, rows
from support.one_key_cases import INT, batch_of, joins
from support.oracle import counted, joined, joined_graph

BACKENDS = ["memory", "lsm", "rocksdb"]


def duckdb(spec, tables):
    return (joined if isinstance(spec, JoinSpec) else joined_graph)(spec, tables)


def parts_of(node):
    """A node of a tree and all below that are joins."""
    children = [child for child in (node.left, node.right) if hasattr(child, "spec")]
    return [node, *(part for child in children for part in parts_of(child))]


def stored_by_duckdb(spec, order, tables):
    """How many rows a tree stores beside the streams: the joins of all its nodes but the root."""
    inner = parts_of(BinaryTree.create(spec, order).root)[1:]
    total = 0
    for node in inner:
        names = [leaf.name for leaf in node.leaves]
        below = create_spec({n: spec.streams[n] for n in names}, ["id"])
        total += duckdb(below, {n: tables[n] for n in names}).total()
    return total


def ints(**ids):
    return {name: batch_of(values) for name, values in ids.items()}


def test_each_order_is_charged_for_the_intermediate_results_that_duckdb_finds():
    rng = random.Random(3)
    sample = ints(**{name: [rng.randrange(9) for _ in range(20)] for name in "abcd"})
    spec = create_spec(dict.fromkeys("abcd", INT), ["id"])
    tables = {name: pa.Table.from_batches([batch]) for name, batch in sample.items()}
    tried = try_orders(spec, sample)
    assert sorted(map(str, (cost.order for cost in tried.costs))) == sorted(
        map(str, all_orders(spec))
    )
    for cost in tried.costs:
        assert cost.stored_rows == stored_by_duckdb(spec, cost.order, tables), cost.order
        assert cost.fetched_rows > 0
    costs = [cost.cost_bytes for cost in tried.costs]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    assert try_orders(spec, sample) == tried


def test_the_selective_pair_meets_first_and_the_table_says_why():
    sample = ints(a=[1] * 30, b=[1] * 30, c=[1, *range(10, 39)])
    with MultiwayJoin(
        dict.fromkeys("abc", INT), ["id"], algorithm="tree", order="best", sample=sample
    ) as join:
        tried = join.tried_orders
        assert list(join.process("a", sample["a"])) == [], "the sample is not part of the join"
    assert tried.best in (["a", ["b", "c"]], [["a", "c"], "b"])
    lines = str(tried).splitlines()
    assert lines[0].split("  ")[-1] == "order"
    assert '[["a", "b"], "c"]' in lines[-1]
    assert lines[-1].split()[0] == "900"
    assert [line.split()[0] for line in lines[1:3]] == ["30", "30"]


@settings(QUICK, max_examples=examples(12))
@given(joins() | graph_joins())
def test_with_the_best_order_results_equal_duckdb(case):
    spec, tables, *arrival = case
    if len(spec.streams) > 4 or not any(table.num_rows for table in tables.values()):
        return
    sample = {name: one_batch(table) for name, table in tables.items()}
    tree, tried = best_tree(spec, sample, None, "lsm", Options())
    assert len(tried.costs) == len(all_orders(spec))
    found = run(lambda store: TreeJoin(tree, store), tree, tables, *arrival, "lsm")
    assert counted(found) == duckdb(spec, tables)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kept_state_keeps_its_best_order_whatever_a_later_sample_says(tmp_path, backend):
    """Reopened after every batch, with other samples or none."""
    path = str(tmp_path / "state")
    kind = {"algorithm": "tree", "order": "best", "path": path, "backend": backend}
    few, many = rows("c", [1], ["x"]), rows("c", [1] * 40, ["x"] * 40)
    others = {"o": rows("o", [2] * 6, [1] * 6, [0] * 6), "l": rows("l", [2] * 5, [0.5] * 5)}
    spec = create_spec(INTS, CHAIN)
    assert try_orders(spec, {"c": few, **others}).best == [["c", "o"], "l"]
    assert try_orders(spec, {"c": many, **others}).best == ["c", ["o", "l"]]
    assert kept_streams(path, backend=backend) is None
    with MultiwayJoin(INTS, CHAIN, **grouped(sample={"c": many, **others}, **kind)) as join:
        assert join.tried_orders.best == ["c", ["o", "l"]]
        join.commit()
    found = []
    for name, batch in [("c", few), *others.items(), ("c", few)]:
        for sample in (None, {"c": few, **others}):
            with MultiwayJoin(INTS, CHAIN, **grouped(sample=sample, **kind)) as join:
                assert join.tried_orders is None
                if sample is None:
                    found += join.process(name, batch)
                    join.commit()
        stored = kept_streams(path, backend=backend)
        assert stored_order(spec, list(stored), path) == ["c", ["o", "l"]]
    tables = {"c": pa.Table.from_batches([few, few])}
    tables |= {name: pa.Table.from_batches([b]) for name, b in others.items()}
    assert counted(found) == duckdb(spec, tables)


def test_an_order_named_by_hand_is_found_again_too(tmp_path):
    path, order = str(tmp_path), [["l", "o"], "c"]
    MultiwayJoin(INTS, CHAIN, algorithm="tree", order=order, state=State(state_dir=path)).close()
    MultiwayJoin(INTS, CHAIN, algorithm="tree", order="best", state=State(state_dir=path)).close()
    assert stored_order(create_spec(INTS, CHAIN), list(kept_streams(path)), path) == order


def test_a_kept_state_of_another_operator_is_refused(tmp_path):
    streams = dict.fromkeys("abc", INT)
    MultiwayJoin(streams, ["id"], state=State(state_dir=str(tmp_path))).close()
    with pytest.raises(InvalidArgumentError, match="a, b, c, which are not those of a tree"):
        MultiwayJoin(
            streams, ["id"], algorithm="tree", order="best", state=State(state_dir=str(tmp_path))
        )


SAMPLE = ints(a=[1], b=[1], c=[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "best"}, "give some rows of each stream"),
        ({"order": "best", "sample": {"a": SAMPLE["a"]}}, "sample has rows of a; .* a, b, c"),
        ({"order": "best", "sample": {**SAMPLE, "x": SAMPLE["a"]}}, "rows of a, b, c, x"),
        ({"order": "best", "sample": ints(a=[], b=[], c=[])}, "has no rows"),
        (
            {"order": "best", "sample": {**SAMPLE, "b": SAMPLE["b"].select(["id"])}},
            r"sample\['b'\]: columns missing 'v'",
        ),
        ({"order": ["a", "b", "c"], "sample": SAMPLE}, "sample applies to order='best'"),
        ({"sample": SAMPLE}, "this is order=None"),
        ({"algorithm": "umjoin", "order": "best", "sample": SAMPLE}, "applies to algorithm='tree'"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        MultiwayJoin(
            dict.fromkeys("abc", INT), ["id"], **grouped(**{"algorithm": "tree", **options})
        )


@pytest.mark.parametrize(
    ("streams", "words"), [("abcdefg", "7 streams has 10,395"), ("abcdefghij", "up to 34,459,425")]
)
def test_too_many_orders_are_refused_before_any_is_tried(streams, words):
    sample = ints(**{name: [1] for name in streams})
    with pytest.raises(InvalidArgumentError, match=words + " orders.*at most 945.*order="):
        MultiwayJoin(
            dict.fromkeys(streams, INT), ["id"], algorithm="tree", order="best", sample=sample
        )


def one_batch(table):
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
