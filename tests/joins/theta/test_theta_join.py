"""Joins by any condition in plain Python: equal to brute force, whatever the cut and the order."""

import random
from collections import Counter
from tempfile import TemporaryDirectory
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin
from lsmstate.joins.local.parts import placed_rows
from lsmstate.joins.local.theta import dense_ranges, kept_rows, slabs, step_ranges
from lsmstate.joins.options import State, Time
from lsmstate.joins.specs.theta import ThetaSpec
from support.examples import examples
from support.theta_cases import SCHEMA
from support.theta_runs import check_one, found_ids


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_condition_any_cut_and_any_restart(seed: int) -> None:
    # Second ranges are looked for in slabs from the first row on, in small ones or as they are, and
    # rows are kept in memory at once, or never.
    rng = random.Random(seed)
    worth, slab = rng.choice([(0, 2), (0, 6), (slabs.WORTH, slabs.ROWS)])
    with (
        TemporaryDirectory() as path,
        patch.object(slabs, "WORTH", worth),
        patch.object(slabs, "ROWS", slab),
        patch.object(kept_rows, "READ_PART", rng.choice([0, 1e9])),
        patch.object(placed_rows, "LOOKUPS", rng.choice([0, 0, 1e9])),
        patch.object(placed_rows, "LEAST", 0),
        patch.object(kept_rows, "CHUNK", rng.choice([1, 5, kept_rows.CHUNK])),
        patch.object(step_ranges, "LEAST_RANGES", step_ranges.LEAST_RANGES if worth else slab),
        patch.object(step_ranges, "CAP_BYTES", step_ranges.CAP_BYTES if worth else 1 << 60),
        patch.object(dense_ranges, "LEAST", worth or 1),
        patch.object(dense_ranges, "OVERLAP", 0 if not worth else dense_ranges.OVERLAP),
    ):
        check_one(seed, path)


@pytest.mark.parametrize("kind", ["correlated", "apart", "with equal values and nulls"])
def test_two_inequalities_equal_brute_force(kind: str) -> None:
    rng = np.random.default_rng(11)
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("u", pa.float64())])

    def made(count: int) -> pa.RecordBatch:
        x = rng.random(count) * 1000
        u = 0.3 * x + rng.normal(0, 1, count) if kind == "correlated" else rng.random(count) * 1000
        if kind == "with equal values and nulls":
            x, u = np.round(x / 100), np.round(u / 100)
            u[rng.random(count) < 0.1] = np.nan
            u[rng.random(count) < 0.1] = -0.0
        nulls = rng.random(count) < 0.1
        return pa.record_batch([np.arange(count), x, pa.array(u, mask=nulls)], schema=schema)

    stored, new = made(6000), made(150)
    with MultiwayJoin({"a": schema, "b": schema}, "a.x < b.x AND a.u > b.u") as join:
        for first in range(0, 6000, 1000):
            join.process("b", stored.slice(first, 1000)).close()
        found = found_ids(join, join.process("a", new), ["a", "b"])

    def columns(of: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        u = of.column("u").to_numpy(zero_copy_only=False)
        known = of.column("u").is_valid().to_numpy(zero_copy_only=False)
        return of.column("x").to_numpy(), np.where(np.isnan(u), np.inf, u), known

    (ax, au, ak), (bx, bu, bk) = columns(new), columns(stored)
    holds = (ax[:, None] < bx) & (au[:, None] > bu) & ak[:, None] & bk
    assert found == Counter(zip(*(at.tolist() for at in np.nonzero(holds)), strict=True))
    assert len(found) > 1000


INTS = pa.schema([("n", pa.int64())])


def test_a_product_is_bounded_by_most_results() -> None:
    numbers = {"n": list(range(40))}
    with MultiwayJoin({"a": INTS, "b": INTS}, on="TRUE", most_results=39) as join:
        assert join.process("a", numbers).count() == 0
        with pytest.raises(InvalidArgumentError, match="most_results=39 is the most for each row"):
            join.process("b", numbers).count()


def test_many_results_a_row_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with MultiwayJoin({"a": INTS, "b": INTS}, on="TRUE") as join:
        join.process("a", {"n": list(range(1001))}).close()
        assert join.process("b", {"n": [1]}).count() == 1001
    assert "1 rows of stream 'b' have more than 1,000 results each" in caplog.text


def test_a_row_of_a_self_join_meets_itself_and_pairs_come_in_both_orders() -> None:
    with MultiwayJoin({"a": INTS, "b": INTS}, on="abs(a.n - b.n) <= 1") as join:
        found = [row for name in "ab" for row in join.process(name, {"n": [1, 2]}).rows()]
    pairs = sorted((row["a_n"], row["b_n"]) for row in found)
    assert pairs == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_candidate_that_overflows_fails_and_other_rows_do_not() -> None:
    most = (1 << 63) - 1
    with MultiwayJoin({"a": INTS, "b": INTS}, on="a.n - b.n <= 5") as join:
        join.process("a", {"n": [most, -most]}).close()
        assert join.process("b", {"n": [0]}).count() == 1
        with pytest.raises(InvalidArgumentError, match="fails on a row"):
            join.process("b", {"n": [5]}).count()


@pytest.mark.parametrize("on", ["b.n BETWEEN a.n - 1 AND a.n + 1", "abs(a.n - b.n) <= 1"])
def test_sums_fail_on_great_numbers_alone(on: str) -> None:
    near = 1 << 60
    with MultiwayJoin({"a": INTS, "b": INTS}, on=on) as join:
        join.process("a", {"n": [0, near, near + 1, -near]}).close()
        assert join.process("b", {"n": [1]}).count() == 1
        assert join.process("b", {"n": [near + 1, -near - 1, 3]}).count() == 3
        join.process("a", {"n": [(1 << 63) - 1]}).close()
        found = join.process("b", {"n": [(1 << 63) - 2]})
        if "BETWEEN" in on:
            with pytest.raises(InvalidArgumentError, match="fails on a row"):
                found.count()
        else:
            assert found.count() == 1


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=str)
@pytest.mark.parametrize("on", ["b.n >= a.n - 5", "b.n BETWEEN a.n - 5 AND a.n"])
def test_a_bound_that_overflows_fails_on_candidates_whoever_comes_first(
    on: str, kind: pa.DataType, first: str
) -> None:
    least = -(1 << (kind.bit_width - 1))
    schema = pa.schema([("n", kind)])
    rows = {"a": {"n": [least + 2, 3]}, "b": {"n": [least + 1]}}
    second = "b" if first == "a" else "a"
    with MultiwayJoin({"a": schema, "b": schema}, on=on) as join:
        join.process(first, rows[first]).close()
        found = join.process(second, rows[second])
        with pytest.raises(InvalidArgumentError, match=r"a\.n - 5 fails on a row"):
            found.count()
    with MultiwayJoin({"a": schema, "b": schema}, on=on) as join:
        join.process("b", {"n": [2]}).close()
        assert join.process("a", {"n": [3, 4]}).count() == 2


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("kinds", [(pa.int64(), pa.int64()), (pa.int32(), pa.int64())], ids=str)
@pytest.mark.parametrize("backend", ["lsm", "memory", "rocksdb"])
def test_a_sum_that_overflows_equals_nothing(
    kinds: tuple[pa.DataType, pa.DataType], first: str, backend: str
) -> None:
    most = (1 << (kinds[0].bit_width - 1)) - 1
    streams = {name: pa.schema([("n", kind)]) for name, kind in zip("ab", kinds, strict=True)}
    beyond = most if kinds[0] == kinds[1] else most + 1
    rows = {"a": {"n": [most, 1]}, "b": {"n": [beyond, 2]}}
    second = "b" if first == "a" else "a"
    with MultiwayJoin(streams, on="a.n + 1 = b.n", state=State(backend=backend)) as join:
        join.process(first, rows[first]).close()
        assert join.process(second, rows[second]).to_table().column("a_n").to_pylist() == [1]


def test_an_equality_with_a_range_beside_it_reads_what_matches() -> None:
    a = pa.schema([("k", pa.int64()), ("low", pa.int64()), ("high", pa.int64())])
    b = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    with MultiwayJoin({"a": a, "b": b}, on="a.k = b.k AND b.t BETWEEN a.low AND a.high") as join:
        join.process("b", {"k": [1] * 5000, "t": list(range(5000))}).close()
        found = join.process("a", {"k": [1, 2], "low": [7, 7], "high": [9, 9]}).to_table()
        assert found.column("t").to_pylist() == [7, 8, 9]
        assert join.counts["candidates"] == 3
        assert join.process("b", {"k": [1, 1], "t": [8, 10]}).to_table().num_rows == 1


def test_one_long_interval_does_not_slow_down_points() -> None:
    a = pa.schema([("x", pa.float64())])
    b = pa.schema([("low", pa.float64()), ("high", pa.float64())])
    low = [float(n) for n in range(2000)]
    with MultiwayJoin({"a": a, "b": b}, on="a.x BETWEEN b.low AND b.high") as join:
        join.process("b", {"low": low, "high": [n + 0.5 for n in low[:-1]] + [1e9]}).close()
        assert join.process("a", {"x": [1500.25]}).count() == 1
        assert join.counts["candidates"] < 10


def test_rows_that_one_range_is_asked_of_often_are_kept_in_memory() -> None:
    schema = pa.schema([("id", pa.int64()), ("k", pa.float64()), ("name", pa.string())])
    rng = np.random.default_rng(5)

    def made(first: int, count: int) -> pa.RecordBatch:
        k = np.round(rng.normal(0, 50, count), 1)
        k[rng.random(count) < 0.05] = np.nan
        columns = [np.arange(first, first + count), pa.array(k, mask=rng.random(count) < 0.05)]
        return pa.record_batch([*columns, [f"{n}" for n in range(count)]], schema=schema)

    tables: dict[str, list[pa.RecordBatch]] = {"a": [], "b": []}
    found: Counter[tuple[int, ...]] = Counter()
    with MultiwayJoin({"a": schema, "b": schema}, "b.k BETWEEN a.k - 0.2 AND a.k + 0.2") as join:
        ranges = join._join._stored._kept.ranges  # type: ignore[attr-defined]
        for n in range(8):
            for name, count in (("a", 300), ("b", 3000)):
                tables[name].append(made(count * n, count))
                found += found_ids(join, join.process(name, tables[name][-1]), ["a", "b"])
        kept = {index.stream for index, rows in ranges._kept.items() if rows.is_kept}
        assert kept == {"a"}  # few rows of it look into the other one
    with duckdb.connect() as db:
        for name in tables:
            db.register(name, pa.Table.from_batches(tables[name]))
        rows = db.sql("SELECT a.id, b.id FROM a, b WHERE b.k BETWEEN a.k - 0.2 AND a.k + 0.2")
        assert found == Counter(rows.fetchall())
    assert len(found) > 1000


def test_options_of_joins_by_keys_are_refused() -> None:
    streams = {"a": INTS, "b": INTS}
    for options, words in (
        ({"time": Time(retention={"a": "1 day"})}, "stream 'a' has no event time"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            MultiwayJoin(streams, on="a.n < b.n", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="the function soundex is not known here"):
        MultiwayJoin(streams, on="a.n < b.n AND soundex(a.n) = 'x'")
    with pytest.raises(InvalidArgumentError, match="is never true"):
        MultiwayJoin(streams, on="a.n < b.n AND 1 = 2")


def test_the_explanation_names_keys_ranges_and_checks() -> None:
    streams = {"a": SCHEMA, "b": SCHEMA}
    on = "a.s = b.s AND abs(a.d - b.d) <= 2 AND a.i > 3 AND a.i <> b.n"
    told = "\n".join(ThetaSpec.create(streams, on).explained())
    assert "condition a.s = b.s: key of b, key of a" in told
    assert "range in b, checked on candidates" in told
    assert "condition a.i > 3: filters rows before they are stored" in told
    assert "condition a.i <> b.n: checked on candidates" in told
    assert "a row of a looks into b by a range" in told


def test_points_among_intervals_of_many_lengths_fit_under_a_small_cap() -> None:
    """A range for each point and class of lengths, all at once, took more than the cap."""
    a = pa.schema([("x", pa.int64())])
    b = pa.schema([("low", pa.int64()), ("high", pa.int64())])
    rng = np.random.default_rng(5)
    low = rng.integers(0, 1 << 60, 400)
    intervals = pa.table([low, low + (1 << rng.integers(0, 50, 400))], schema=b)
    points = np.concatenate([low, rng.integers(0, 1 << 60, 20_000)])
    with MultiwayJoin(
        {"a": a, "b": b}, "a.x BETWEEN b.low AND b.high", state=State(memory="8m")
    ) as join:
        join.process("b", intervals).close()
        found = join.process("a", {"x": points.tolist()}).count()
    high = intervals.column("high").to_numpy()
    assert found == int(((points[:, None] >= low) & (points[:, None] <= high)).sum())


def test_ranges_that_leave_no_gap_are_scanned_and_others_are_not() -> None:
    numbers = np.arange(400) * 1.0
    apart = numbers + 1000 * (numbers >= 200)
    for low, high, is_dense in (
        (numbers - 40, numbers, True),
        (numbers - 0.5, numbers, False),  # gaps
        (apart - 40, apart, False),
        (numbers - 40, np.full(400, np.inf), False),  # no length
        (numbers, numbers - 1, False),  # empty
    ):
        assert dense_ranges.leave_no_gap(pa.array(low), pa.array(high)) == is_dense
    a = pa.schema([("x", pa.float64()), ("u", pa.float64())])
    b = pa.schema([("y", pa.float64()), ("v", pa.float64())])
    reads: list[str] = []

    def noted(self: object, *given: object, **named: object) -> object:
        reads.append("scan")
        return matches(self, *given, **named)  # type: ignore[arg-type]

    matches = dense_ranges.DenseRanges.matches
    with (
        patch.object(dense_ranges.DenseRanges, "matches", noted),
        MultiwayJoin({"a": a, "b": b}, "a.x < b.y AND a.u > b.v") as join,
    ):
        join.process("b", {"y": numbers.tolist(), "v": (0.3 * numbers).tolist()}).close()
        new = {"x": numbers[:300].tolist(), "u": (0.3 * numbers[:300] + 1).tolist()}
        found = join.process("a", new).to_table()
    expected = (numbers[:300, None] < numbers) & (0.3 * numbers[:300, None] + 1 > 0.3 * numbers)
    assert found.num_rows == int(expected.sum())
    assert reads


def test_arithmetic_without_an_index_equals_brute_force() -> None:
    rng = np.random.default_rng(4)
    x, u, y, v = (rng.normal(size=n) for n in (70, 70, 3000, 3000))
    x[3], y[5], y[6], v[7] = np.nan, np.nan, np.inf, -np.inf
    a, b = pa.table({"x": x, "u": u}), pa.table({"y": y, "v": v})
    a = a.set_column(1, "u", pa.array(u, mask=np.arange(70) == 9))
    on = "a.x * b.y + a.u * b.v < -3.5"
    with MultiwayJoin({"a": a.schema, "b": b.schema}, on=on) as join:
        join.process("b", b).close()
        found = join.process("a", a).to_table()
    with np.errstate(all="ignore"):
        holds = x[:, None] * y + u[:, None] * v < -3.5
    holds[9] = False
    rows, columns = np.nonzero(holds)
    expected = sorted(zip(x[rows], y[columns], strict=True))
    assert sorted(zip(*(found.column(n).to_pylist() for n in "xy"), strict=True)) == expected
    assert len(expected) > 500


@pytest.mark.parametrize(
    ("clause", "condition"),
    [
        ("a CROSS JOIN b", "TRUE"),
        ("a JOIN b ON a.n < b.n OR a.n = 3", "a.n < b.n OR a.n = 3"),
        ("FROM b INNER JOIN a ON a.n < b.n AND a.n > 1", "a.n < b.n AND a.n > 1"),
        ("a JOIN c ON a.n < c.n CROSS JOIN b", "a.n < c.n"),
        (
            "a JOIN b ON a.n = b.n JOIN c ON abs(c.n - a.n) <= 1",
            "a.n = b.n AND abs(c.n - a.n) <= 1",
        ),
    ],
)
def test_a_from_clause_of_inner_joins_is_its_condition(clause: str, condition: str) -> None:
    streams = dict.fromkeys("abc" if "c." in clause else "ab", INTS)

    def found(on: str) -> Counter[tuple[int, ...]]:
        rows: Counter[tuple[int, ...]] = Counter()
        with MultiwayJoin(streams, on) as join:
            for name in streams:
                for piece in join.process(name, [{"n": n} for n in (1, 2, 3, 3)]):
                    rows.update(zip(*(c.to_pylist() for c in piece.columns), strict=True))
        return rows

    assert found(clause) == found(condition)
    assert found(clause)


def test_other_joins_without_an_equality_are_refused() -> None:
    for clause, word in {
        "a LEFT JOIN b ON a.n < b.n": "use emit='changes'",
        "a LEFT JOIN b ON a.n < b.n JOIN c ON c.n = b.n": "no equality",
        "a NATURAL JOIN b": "NATURAL JOIN",
        "a CROSS JOIN x": "x",
    }.items():
        with pytest.raises(InvalidArgumentError, match=word):
            MultiwayJoin(dict.fromkeys("abc" if " c " in clause else "ab", INTS), clause)


@pytest.mark.parametrize(
    ("on", "most", "word"),
    [
        ("a.n < b.n", "x", "a number above 0"),
        ("a.n < b.n", 0, "a number above 0"),
        ("a.n < b.n", True, "a number above 0"),
        ("a.n = b.n", 2, "leave it out"),
    ],
)
def test_a_wrong_bound_of_results_is_refused(on: str, most: object, word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        MultiwayJoin({"a": INTS, "b": INTS}, on, most_results=most)  # type: ignore[arg-type]


def test_intervals_as_long_as_numbers_go() -> None:
    """Whoever has no end writes the greatest number for it."""
    most = np.finfo(np.float64).max
    ends = [(0.0, most), (-most, 5.0), (-most, most), (2.0, 5e307), (1.0, 2.0), (-np.inf, np.inf)]
    values = [-most, -1.0, 1.5, 4.0, 1e300, most, np.inf, np.nan]
    intervals = pa.schema([("low", pa.float64()), ("high", pa.float64())])
    points = pa.schema([("x", pa.float64())])
    schemas = {"a": intervals, "b": points}
    state = State(backend="memory")
    with MultiwayJoin(schemas, "b.x BETWEEN a.low AND a.high", state=state) as join:
        rows = pa.RecordBatch.from_arrays(
            [pa.array(each) for each in zip(*ends, strict=True)], schema=intervals
        )
        assert sum(piece.num_rows for piece in join.process("a", rows)) == 0
        numbers = pa.RecordBatch.from_arrays([pa.array(values)], schema=points)
        results = pa.Table.from_batches(join.process("b", numbers), join.output_schema)
    columns = [results.column(name).to_pylist() for name in ("low", "high", "x")]
    # NaN is the greatest number, so it is in none of them.
    wanted = [(*each, x) for each in ends for x in values if each[0] <= x <= each[1]]
    assert sorted(zip(*columns, strict=True)) == sorted(wanted)
