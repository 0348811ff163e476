"""Sums that do not fit into their type, counts without rows, and groups beyond their memory."""

import math
import random
from collections import defaultdict
from contextlib import closing
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.predicate import Call
from lsmstate.joins.local.aggregates.exact import as_type, multiplied, together, whole, widened
from lsmstate.joins.local.aggregates.groups import Groups
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.cross_product import Side
from lsmstate.joins.local.parts.products import Product
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.aggregates import Aggregates, Partial
from lsmstate.joins.specs.multi_key import create_spec
from support.join_cases import attempt
from support.multi_key_cases import CHAIN, INTS, rows

BIGINT = pa.int64()
BIGINT_MAX = (1 << 63) - 1
WIDE = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("d", pa.decimal128(38, 2))])


def results_of(values, kind=BIGINT):
    """Results of one column ``s.x``."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["x"])
    return Results([batch], schema=batch.schema), {"s": batch.schema}


def handed_out(partial, values, kind=BIGINT):
    results, streams = results_of(values, kind)
    groups = Groups(Aggregates((), (partial,)), streams, 1 << 20)
    assert list(groups.add(results)) == []
    return [value for batch in groups.rows() for value in batch.column(0).to_pylist()]


X = Column("s", "x")


@pytest.mark.parametrize(
    "values",
    [
        [BIGINT_MAX, 1],
        [-BIGINT_MAX - 1, -1],
        [BIGINT_MAX] * 3,
        [BIGINT_MAX, BIGINT_MAX, -BIGINT_MAX, 5],
        [-BIGINT_MAX - 1],
    ],
)
def test_a_sum_beyond_bigint_comes_in_parts_that_add_up_to_it(values):
    parts = handed_out(Partial("sum", X), values)
    assert sum(parts) == sum(values)
    assert all(abs(part) <= BIGINT_MAX + 1 for part in parts)
    (wrapped,) = handed_out(Partial("sum", X, wraps=True), values)
    assert (wrapped - sum(values)) % (1 << 64) == 0


def test_no_sum_of_decimals_wraps_around():
    """Only a BIGINT does, without ANSI mode."""
    values = [Decimal(10**30).scaleb(-2)] * 3
    partial = Partial("sum", X, wraps=True)
    assert handed_out(partial, values, pa.decimal128(38, 2)) == [sum(values)]
    narrow = [Decimal(10**17)] * 200
    assert handed_out(partial, narrow, pa.decimal128(18, 0)) == [Decimal(2 * 10**19)]


def test_a_count_beyond_bigint_comes_in_parts():
    """Its sum overflows above, where less than that would be a wrong count."""
    rows = pa.RecordBatch.from_arrays([pa.array([0] * 3)], names=["x"])
    ones = np.ones(3, np.int64)
    side = Side(rows, np.arange(4), ones)
    partials = (Partial("count"), Partial("count", X), Partial("sum", X))
    groups = Groups(Aggregates((), partials), {"s": rows.schema}, 1 << 20)
    results = Results([], products=lambda _: iter([Product({"s": side}, ones << 61)] * 2))
    assert list(groups.add(results)) == []
    (found,) = groups.rows()
    for name in ("p0", "p1"):
        assert sum(found.column(name).to_pylist()) == 6 << 61
    assert found.column("p2").to_pylist() == [0, None, None]


def test_zero_counts_as_often_as_one_likes():
    often = widened(pa.array([1 << 62])).cast(pa.decimal256(38, 0))
    times = pc.multiply(often, pa.array([Decimal(4)], pa.decimal256(37, 0)))
    assert times.type == pa.decimal256(76, 0)
    assert multiplied(pa.array([0, None], pa.int64())[:1], times).to_pylist() == [Decimal(0)]


def test_an_aggregate_of_nothing_is_refused():
    with pytest.raises(InvalidArgumentError, match="neither groups nor values"):
        Aggregates((), ()).schema({"s": pa.schema([("x", pa.int64())])})


def test_groups_of_a_hot_key_take_bounded_memory(tmp_path, monkeypatch):
    """Both sides have more rows than a piece, and each row is a group."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    spec = create_spec(dict.fromkeys("abc", schema), "a.k = b.k AND b.k = c.k")
    columns = (Column("b", "x"), Column("c", "x"))
    aggregates = Aggregates(columns, (Partial("count"), Partial("sum", Column("a", "x"))))
    most, seen = 8_000, []
    combine = Groups._multiplied

    def spied(self, works, parts, times):
        seen.append(max(part.nbytes for part in parts))
        return combine(self, works, parts, times)

    monkeypatch.setattr(Groups, "_multiplied", spied)

    def batch(count):
        arrays = [pa.array(np.full(count, 7)), pa.array(np.arange(count))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = UMJoin(spec, store, piece_bytes=1_000)
        groups = Groups(aggregates, spec.streams, most)
        join.process(Batch("b", batch(900))).close()
        join.process(Batch("c", batch(40))).close()
        found = list(groups.add(join.process(Batch("a", batch(2)))))
        found += groups.rows()
    assert len(seen) > 2
    assert max(seen) < 2 * most
    table = pa.Table.from_batches(found)
    totals = table.group_by(["g0", "g1"]).aggregate([("p0", "sum"), ("p1", "sum")])
    assert totals.num_rows == 900 * 40
    assert set(totals["p0_sum"].to_pylist()) == {2}
    assert set(totals["p1_sum"].to_pylist()) == {1}


def test_parts_of_a_much_too_large_sum_overflow_whatever_they_are_added_to():
    parts = handed_out(Partial("sum", X), [BIGINT_MAX] * 100)
    assert len(parts) < 10
    assert sum(parts) - BIGINT_MAX - 1 > BIGINT_MAX


def test_sums_of_decimals_keep_all_digits():
    values = [Decimal(10**36 - 1).scaleb(-2)] * 3 + [None]
    assert handed_out(Partial("sum", X), values, pa.decimal128(38, 2)) == [sum(values[:3])]
    most = [Decimal(10**38 - 1)] * 2
    parts = handed_out(Partial("sum", X), most, pa.decimal128(38, 0))
    assert sum(map(int, parts)) == 2 * (10**38 - 1)


def test_averages_of_whole_numbers_are_sums_of_doubles():
    assert handed_out(Partial("sum", X, is_double=True), [BIGINT_MAX, BIGINT_MAX, None]) == [
        pytest.approx(2.0 * BIGINT_MAX)
    ]


def test_further_parts_change_nothing_else_of_their_group():
    results, streams = results_of([BIGINT_MAX, BIGINT_MAX, 1])
    partials = (Partial("count"), Partial("sum", X), Partial("min", X))
    groups = Groups(Aggregates((), partials), streams, 1 << 20)
    assert list(groups.add(results)) == []
    (found,) = groups.rows()
    assert found.column("p0").to_pylist() == [3, 0, 0]
    assert sum(found.column("p1").to_pylist()) == 2 * BIGINT_MAX + 1
    assert found.column("p2").to_pylist() == [1, None, None]


def test_arithmetic_equals_that_of_python():
    rng = random.Random(7)
    for _ in range(200):
        bits = rng.choice([5, 40, 63])
        values = [rng.choice([None, rng.getrandbits(bits) - (1 << bits - 1)]) for _ in range(5)]
        times = [rng.getrandbits(rng.choice([3, 30])) + 1 for _ in range(5)]
        left, right = pa.array(values, pa.int64()), pa.array(times, pa.int64())
        found = multiplied(left, right).to_pylist()
        wanted = [None if v is None else v * t for v, t in zip(values, times, strict=True)]
        assert [None if f is None else int(f) for f in found] == wanted
    decimals = pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(12, 2))
    assert whole(decimals[1:]).to_pylist() == [None, -225]
    both = together([whole(decimals), widened(pa.array([7], pa.int64()))])
    assert [None if v is None else int(v) for v in both.to_pylist()] == [150, None, -225, 7]
    back, more = as_type(whole(decimals), pa.decimal128(38, 2), wraps=False)
    assert (back.to_pylist(), more) == (decimals.to_pylist(), [])


def test_nan_is_the_greatest_number():
    values = [1.5, math.nan, -math.inf, None]
    assert handed_out(Partial("min", X), values, pa.float64()) == [-math.inf]
    assert math.isnan(handed_out(Partial("max", X), values, pa.float32())[0])


@pytest.mark.parametrize(
    ("partial", "kind"),
    [
        (Partial("sum", X), pa.string()),
        (Partial("min", X), pa.list_(pa.int8())),
        (Partial("sum"), pa.int64()),
    ],
)
def test_what_cannot_be_aggregated_is_refused(partial, kind):
    streams = {"s": pa.schema([("x", kind)])}
    with pytest.raises(InvalidArgumentError):
        Aggregates((), (partial,)).schema(streams)
    with pytest.raises(InvalidArgumentError, match="group by"):
        Aggregates((X,), ()).schema({"s": pa.schema([("x", pa.list_(pa.int8()))])})


def test_groups_beyond_their_memory_are_handed_out_and_begun_anew():
    numbers = np.arange(300_000)
    batch = pa.RecordBatch.from_arrays([pa.array(numbers % 50_000)], names=["x"])
    pieces = [batch.slice(at, 10_000) for at in range(0, 300_000, 10_000)]
    aggregates = Aggregates((X,), (Partial("count"),))
    groups = Groups(aggregates, {"s": batch.schema}, 200_000)
    found = list(groups.add(Results(pieces, schema=batch.schema)))
    assert len(found) > 1
    assert all(piece.nbytes < 1 << 20 for piece in found)
    table = pa.Table.from_batches([*found, *groups.rows()])
    totals = table.group_by("g0").aggregate([("p0", "sum")])
    assert totals.num_rows == 50_000
    assert set(totals["p0_sum"].to_pylist()) == {6}


def fetched(store):
    return store.stats().counters.get("fetched_rows", 0)


def test_rows_of_a_stream_that_is_only_counted_are_not_read(tmp_path):
    """A million results of a key cost one row of another stream."""
    two = {"a": WIDE, "b": WIDE, "c": WIDE}
    spec = create_spec(two, "a.k = b.k AND b.k = c.k")
    aggregates = Aggregates(
        (Column("a", "n"),), (Partial("count"), Partial("sum", Column("a", "d")))
    )
    many = pa.RecordBatch.from_arrays(
        [pa.array([1] * 1000), pa.array([0] * 1000), pa.array([Decimal(1)] * 1000, WIDE.types[2])],
        schema=WIDE,
    )
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = UMJoin(spec, store)
        for name in "bc":
            join.process(Batch(name, many)).close()
        groups = Groups(aggregates, two, 1 << 20)
        assert list(groups.add(join.process(Batch("a", many.slice(0, 3))))) == []
        (found,) = groups.rows()
        assert fetched(store) == 0
    assert found.to_pylist() == [{"g0": 0, "p0": 3_000_000, "p1": Decimal(3_000_000)}]


def test_a_leaf_of_a_chain_is_only_counted(tmp_path):
    spec = create_spec(INTS, CHAIN)
    aggregates = Aggregates(
        (Column("c", "seg"),), (Partial("count"), Partial("sum", Column("o", "day")))
    )
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = GraphJoin(spec, store)
        join.process(Batch("c", rows("c", [1], ["x"]))).close()
        join.process(Batch("l", rows("l", [10] * 500, [0.5] * 500))).close()
        before = fetched(store)
        groups = Groups(aggregates, INTS, 1 << 20)
        list(groups.add(join.process(Batch("o", rows("o", [10, 11], [1, 1], [5, 6])))))
        (found,) = groups.rows()
        assert fetched(store) - before == 1
    assert found.to_pylist() == [{"g0": "x", "p0": 500, "p1": 2500}]


def test_expressions_over_several_streams(tmp_path):
    """Their columns are kept apart on each side, and the rest is counted."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    spec = create_spec({"a": schema, "b": schema}, "a.k = b.k")
    product = Call("*", (Column("a", "x"), Column("b", "x")))
    aggregates = Aggregates((), (Partial("sum", product), Partial("sum", Column("a", "x"))))
    assert aggregates.schema(spec.streams).names == ["p0", "p1"]
    rng = random.Random(3)
    left = [(rng.randrange(3), rng.randrange(9)) for _ in range(40)]
    right = [(rng.randrange(3), rng.randrange(9)) for _ in range(30)]

    def batch(pairs):
        arrays = [pa.array(list(column)) for column in zip(*pairs, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = UMJoin(spec, store)
        groups = Groups(aggregates, spec.streams, 1 << 20)
        for name, pairs in (("a", left), ("b", right)):
            list(groups.add(join.process(Batch(name, batch(pairs)))))
        (found,) = groups.rows()
    matches = [(x, y) for k, x in left for other, y in right if k == other]
    assert found.to_pylist() == [
        {"p0": sum(x * y for x, y in matches), "p1": sum(x for x, _ in matches)}
    ]


def test_groups_of_many_keys(tmp_path):
    """More keys than fit into one block of a hash table, some with several rows of each stream."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    spec = create_spec({"a": schema, "b": schema}, "a.k = b.k")
    aggregates = Aggregates(
        (Column("a", "k"),), (Partial("count"), Partial("sum", Column("b", "x")))
    )
    rng = np.random.default_rng(5)
    sides = {name: rng.integers(0, 200, (2, 300)) for name in "ab"}
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join, groups = UMJoin(spec, store), Groups(aggregates, spec.streams, 1 << 20)
        for name, columns in sides.items():
            batch = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=schema)
            list(groups.add(join.process(Batch(name, batch))))
        (found,) = groups.rows()
    wanted = defaultdict(lambda: [0, 0])
    for key in sides["a"][0]:
        for other, value in sides["b"].T:
            if key == other:
                wanted[int(key)][0] += 1
                wanted[int(key)][1] += int(value)
    got = {row["g0"]: [row["p0"], row["p1"]] for row in found.to_pylist()}
    assert len(got) == found.num_rows > 100
    assert got == wanted
