"""Aggregates of joins by any condition: equal to brute force, and counted where an index says what
matches."""

import random
from collections import Counter
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.local.aggregates.groups import Groups
from lsmstate.joins.local.parts.products import RangeProduct
from lsmstate.joins.local.theta.theta_join import ThetaJoin
from lsmstate.joins.protocols import Batch, Context
from lsmstate.joins.specs.aggregates import Aggregates, Partial
from lsmstate.joins.specs.theta import ThetaSpec
from support import theta_cases
from support.aggregate_cases import aggregate, alike, combined, expected, random_aggregates
from support.examples import examples
from support.join_cases import attempt
from support.theta_cases import SCHEMA, every, random_condition, rows


def check_one(seed: int, path: str, backend: str) -> None:
    rng = random.Random(seed)
    streams = ["a", "b", "c"][: rng.choice([2, 2, 3])]
    count = {2: 25, 3: 8}[len(streams)]
    tables = {name: rows(rng.randint(1, count), rng, rng.choice([2, 6, 20])) for name in streams}
    condition = every([random_condition(streams, rng) for _ in range(rng.choice([1, 1, 2]))])
    schemas = dict.fromkeys(streams, SCHEMA)
    # Of few streams, so that others are counted; without a column whose sums overflow.
    fit = SCHEMA.remove(SCHEMA.get_field_index("big"))
    shown = dict.fromkeys(rng.sample(streams, rng.randint(0, len(streams))), fit)
    aggregates = random_aggregates(shown, rng.randrange(1 << 30))
    if not aggregates.by and not aggregates.partials:
        aggregates = Aggregates((), (Partial("count"),))
    spec = ThetaSpec.create(schemas, condition.sql)
    store = attempt(path, spec, backend)
    join = ThetaJoin(spec, store, Context(piece_bytes=rng.choice([1 << 20, 3000, 1])))
    groups = Groups(aggregates, schemas, rng.choice([1, 400, 1 << 20]))
    parts = []
    waiting = {name: list(of) for name, of in tables.items()}
    while waiting:
        name = rng.choice(sorted(waiting))
        size = rng.choice([1, 3, 50])
        some, waiting[name] = waiting[name][:size], waiting[name][size:]
        if not waiting[name]:
            del waiting[name]
        parts += groups.add(join.process(Batch(name, theta_cases.batch(some))))
        parts += groups.rows()
    store.close()
    pairs = theta_cases.expected(condition, tables)
    results = {
        tuple(
            v for name, at in zip(streams, ids, strict=True) for v in tables[name][at].values()
        ): n
        for ids, n in pairs.items()
    }
    wanted = expected(schemas, aggregates, results)
    assert alike(combined(aggregates, parts), wanted), condition.sql


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_any_condition(seed: int) -> None:
    with TemporaryDirectory() as path:
        check_one(seed, path, "memory")


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["memory", "lsm", "rocksdb"])
@settings(max_examples=1500, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_many_conditions_on_every_store(backend: str, seed: int) -> None:
    with TemporaryDirectory() as path:
        check_one(seed, path, backend)


INTS = pa.schema(
    [("k", pa.int64()), ("x", pa.int64()), ("n", pa.int32()), ("t", pa.timestamp("us"))]
)


@pytest.mark.parametrize(
    "condition",
    [
        "a.k = b.k AND a.x BETWEEN b.x - 3 AND b.x + 3",
        "a.k = b.k AND abs(a.n - b.n) < 4",
        "a.k = b.k AND b.t BETWEEN a.t - INTERVAL 3 SECONDS AND a.t + INTERVAL 2 SECONDS",
        "a.k = b.k AND a.x < b.x",
        "abs(a.x - b.x) <= 2",
    ],
)
def test_a_band_is_counted_from_both_sides(condition: str, tmp_path: Any) -> None:
    """No row of a stream is read of which no column is needed."""
    rng = random.Random(3)
    spec = ThetaSpec.create({"a": INTS, "b": INTS}, condition)
    for stream in "ab":
        (step,) = spec.steps[stream]
        assert step.counting is not None
    store = attempt(str(tmp_path), spec, "memory")
    join = ThetaJoin(spec, store, Context())
    by, total = Column("a", "k"), Partial("sum", Column("a", "x"))
    aggregates = Aggregates((by,), (Partial("count"), total))
    groups = Groups(aggregates, {"a": INTS, "b": INTS}, 1 << 20)
    stored: dict[str, list[tuple[int, int, int, int]]] = {"a": [], "b": []}
    parts, read = [], []
    join.finder._store = _Watched(store, read)
    for stream in "abab":
        fresh = [
            (rng.randint(0, 3), rng.randint(-9, 9), rng.randint(-9, 9), rng.randint(-9, 9) * 10**6)
            for _ in range(60)
        ]
        stored[stream] += fresh
        columns = [pa.array(c, f.type) for c, f in zip(zip(*fresh, strict=True), INTS, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=INTS)
        before = len(read)
        parts += groups.add(join.process(Batch(stream, batch)))
        parts += groups.rows()
        if stream == "a":
            assert read[before:] == []  # rows of b are counted
        else:
            assert sum(read[before:]) <= len(stored["a"])  # each row of a is read once
    pairs = [(a, b) for a in stored["a"] for b in stored["b"] if _holds(condition, a, b)]
    groups_of: dict[Any, list[tuple[Any, int]]] = {}
    for a, _ in pairs:
        groups_of.setdefault((a[0],), []).append((a[1], 1))
    wanted = {key: [len(values), aggregate("sum", values)] for key, values in groups_of.items()}
    assert combined(aggregates, parts) == wanted
    store.close()


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("column", ["x", "n", "t", "d"])
def test_what_ranges_add_up_to_is_not_enumerated(
    first: str, column: str, tmp_path: Any, monkeypatch: Any
) -> None:
    """Groups of one side and sums of the other cost by the rows, whichever side comes last."""
    schema = INTS.append(pa.field("d", pa.float64()))
    spec = ThetaSpec.create({"a": schema, "b": schema}, "a.x BETWEEN b.x - 900 AND b.x + 900")
    store = attempt(str(tmp_path), spec, "memory")
    join = ThetaJoin(spec, store, Context())
    of = Column("b", column)
    partials = [Partial("count"), Partial("count", of), Partial("max", Column("a", "n"))]
    partials += [Partial("sum", Column("a", "x"))]
    if column in "xn" or (column == "d" and first == "b"):
        partials.append(Partial("sum", of))
    aggregates = Aggregates((Column("a", "k"),), tuple(partials))
    groups = Groups(aggregates, {"a": schema, "b": schema}, 1 << 20)

    def enumerated(_: Any) -> Any:
        raise AssertionError("pairs were enumerated")

    monkeypatch.setattr(RangeProduct, "enumerated", enumerated)
    rng = random.Random(5)
    tables, parts = {}, []
    for stream in (first, "ab".replace(first, "")):
        rows = [
            (
                rng.randint(0, 3),
                rng.randint(-999, 999),
                rng.choice([None, rng.randint(-9, 9)]),
                None,
                rng.choice([None, 1e300, float("inf"), 0.25]),
            )
            for _ in range(400)
        ]
        tables[stream] = rows
        columns = [
            pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        parts += groups.add(
            join.process(Batch(stream, pa.RecordBatch.from_arrays(columns, schema=schema)))
        )
        parts += groups.rows()
    store.close()
    pairs = product(tables["a"], tables["b"])
    results = Counter((*a, *b) for a, b in pairs if b[1] - 900 <= a[1] <= b[1] + 900)
    wanted = expected({"a": schema, "b": schema}, aggregates, results)
    assert alike(combined(aggregates, parts), wanted)


def _holds(condition: str, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if "a.k" in condition and a[0] != b[0]:
        return False
    if "BETWEEN b.x" in condition:
        return b[1] - 3 <= a[1] <= b[1] + 3
    if "a.n" in condition:
        return abs(a[2] - b[2]) < 4
    if "b.t" in condition:
        return a[3] - 3_000_000 <= b[3] <= a[3] + 2_000_000
    return a[1] < b[1] if "<" in condition and "abs" not in condition else abs(a[1] - b[1]) <= 2


class _Watched:
    """A store that notes how many rows are read by ranges."""

    def __init__(self, store: Any, read: list[int]) -> None:
        self._store = store
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def probe_ranges(self, *args: Any, **options: Any) -> Any:
        for piece in self._store.probe_ranges(*args, **options):
            self._read.append(piece.rows.num_rows)
            yield piece

    def iterate(self, *args: Any, **options: Any) -> Any:
        for keys, found in self._store.iterate(*args, **options):
            self._read.append(found.num_rows)
            yield keys, found
