"""Trees of joins by any condition with stored intermediate results: equal to brute force, and what
they store."""

import random
from collections import Counter
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.baselines.nested_loops import NestedLoops
from bench.joins.thesis_tables import stored_rows
from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.theta import theta_tree_join
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.theta_tree import ThetaTree
from support.examples import examples
from support.theta_cases import SCHEMA, batch, every, expected, random_condition, rows

Ids = Counter[tuple[int, ...]]
INTS = pa.schema([("n", pa.int64()), ("m", pa.int64())])
#: An interval, a distance, an inequality of three streams and one of one stream alone.
MIXED = "a.n BETWEEN b.n AND b.m AND abs(b.m - c.m) <= 1 AND a.m <> 3 AND a.n + b.n + c.n < 20"


def ids_of(results: Any, streams: list[str]) -> Ids:
    found: Ids = Counter()
    for piece in results:
        found.update(zip(*(piece.column(f"{s}_id").to_pylist() for s in streams), strict=True))
    return found


def random_order(streams: list[str], rng: random.Random) -> Any:
    parts: list[Any] = rng.sample(streams, len(streams))
    while len(parts) > 2:
        at = rng.randrange(len(parts) - 1)
        parts[at : at + 2] = [parts[at : at + 2]]
    return parts


def check_one(seed: int, path: str) -> None:
    rng = random.Random(seed)
    streams = ["a", "b", "c", "d"][: rng.choice([2, 3, 3, 4])]
    count = {2: 30, 3: 12, 4: 6}[len(streams)]
    tables = {name: rows(rng.randint(1, count), rng, rng.choice([2, 6, 20])) for name in streams}
    condition = every([random_condition(streams, rng) for _ in range(rng.choice([1, 2, 3]))])
    backend = rng.choice(["lsm", "memory"])
    order = random_order(streams, rng)

    def opened() -> MultiwayJoin:
        return MultiwayJoin(
            dict.fromkeys(streams, SCHEMA),
            condition.sql,
            algorithm="tree",
            order=order,
            piece_bytes=size,
            state=State(backend=backend, state_dir=path if backend == "lsm" else None),
        )

    size = rng.choice([1 << 20, 3000, 1])
    join, found = opened(), Counter[tuple[int, ...]]()
    waiting = {name: list(of) for name, of in tables.items()}
    try:
        while waiting:
            name = rng.choice(sorted(waiting))
            cut = rng.choice([1, 3, 50])
            part, waiting[name] = waiting[name][:cut], waiting[name][cut:]
            if not waiting[name]:
                del waiting[name]
            found += ids_of(join.process(name, batch(part)), streams)
            if backend == "lsm" and rng.random() < 0.2:
                join.commit()
                join.close()
                join = opened()
    finally:
        join.close()
    assert found == expected(condition, tables), (condition.sql, order)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_condition_in_any_order_equals_brute_force(seed: int) -> None:
    with TemporaryDirectory() as path:
        check_one(seed, path)


def fed(join: MultiwayJoin, streams: str = "abc", count: int = 7) -> list[tuple[Any, ...]]:
    found = []
    for name in streams:
        values = [{"n": n, "m": (n * 5 + len(name)) % count} for n in range(count)]
        found += [tuple(row.values()) for row in join.process(name, values).rows()]
    return sorted(found)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_trees_give_the_rows_of_a_join_without_them(
    kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theta_tree_join, "KEPT_BYTES", kept_bytes)
    streams = dict.fromkeys("abc", INTS)
    with MultiwayJoin(streams, MIXED) as join:
        expected_rows = fed(join)
    assert len(expected_rows) > 10
    for order in [*map(list, permutations("abc")), ["a", ["b", "c"]]]:
        with MultiwayJoin(streams, MIXED, algorithm="tree", order=order) as join:
            assert fed(join) == expected_rows
            assert join.counts["candidates"] > 0


def test_each_input_is_stored_once_and_each_intermediate_result() -> None:
    streams = dict.fromkeys("abc", INTS)
    on = "a.n < b.n AND b.m = c.m AND a.m <> 3"
    with MultiwayJoin(streams, on, algorithm="tree") as join:
        fed(join)
        stored = stored_rows(join)
    kept = [n for n in range(7) if (n * 5 + 1) % 7 != 3]
    pairs = sum(n < other for n in kept for other in range(7))
    assert stored == {"a": len(kept), "b": 7, "(a b)": pairs, "c": 7}


def test_conditions_beside_equalities_thin_out_what_is_stored() -> None:
    """Equalities connect all three streams, and the tree evaluates the rest at its node."""
    on = "a.n = b.n AND b.n = c.n AND a.m < b.m"
    with MultiwayJoin(dict.fromkeys("abc", INTS), on, algorithm="tree") as join:
        for name, m in {"a": 1, "b": 2, "c": 1}.items():
            join.process(name, [{"n": n, "m": 1 if n == 3 else m} for n in range(5)]).close()
        assert stored_rows(join)["(a b)"] == 4


def test_a_kept_tree_goes_on_where_it_was_committed(tmp_path: Path) -> None:
    streams = dict.fromkeys("abc", INTS)
    state = State(state_dir=str(tmp_path / "state"))
    with MultiwayJoin(streams, MIXED, algorithm="tree", state=state) as join:
        fed(join, "ab")
        join.commit()
    with MultiwayJoin(streams, MIXED, algorithm="tree", state=state) as join:
        later = fed(join, "c")
    with MultiwayJoin(streams, MIXED) as join:
        assert fed(join) == later
    with pytest.raises(InvalidArgumentError, match="streams"):
        MultiwayJoin(streams, MIXED, algorithm="tree", order=["c", "a", "b"], state=state)


def test_conditions_stand_at_the_lowest_node_that_has_their_streams() -> None:
    spec = ThetaSpec.create(dict.fromkeys("abc", INTS), MIXED)
    below, root = ThetaTree.create(spec, ["a", "b", "c"]).nodes
    assert below.spec.on == "a.`0_n` >= b.`1_n` AND a.`0_n` <= b.`1_m` AND a.`0_m` <> 3"
    assert "abs(`(a b)`.`1_m` - c.`2_m`) <= 1" in root.spec.on
    assert "((`(a b)`.`0_n` + `(a b)`.`1_n`) + c.`2_n`) < 20" in root.spec.on


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": ["a", "b"]}, "name every stream once: a, b, c"),
        ({"order": "best"}, "order='best' is found for joins by equalities alone"),
    ],
)
def test_what_does_not_fit_is_refused(options: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        MultiwayJoin(dict.fromkeys("abc", INTS), MIXED, algorithm="tree", **options)


def test_the_thesis_s_nested_loops_find_the_same_and_its_formulas_are_what_is_counted() -> None:
    rng = random.Random(5)
    tables = {
        name: [(rng.randrange(9), rng.randrange(9)) for _ in range(40)] for name in ("a", "b", "c")
    }
    on = "a.n = b.n AND b.m < c.m"
    loops = NestedLoops(
        {"a": 2, "b": 2, "c": 2},
        [lambda left, right: left[0] == right[0], lambda left, right: left[3] < right[1]],
        nodes=8,
    )
    found: list[tuple[int, ...]] = []
    broadcast = 0
    with MultiwayJoin(dict.fromkeys("abc", INTS), on, algorithm="tree") as join:
        ours: list[tuple[int, ...]] = []
        for first in range(0, 40, 10):
            part = {name: of[first : first + 10] for name, of in tables.items()}
            found += loops.micro_batch(part)
            broadcast += loops.last_broadcast
            for name, of in part.items():
                batches = [{"n": n, "m": m} for n, m in of]
                ours += [tuple(row.values()) for row in join.process(name, batches).rows()]
        assert sorted(found) == sorted(ours)
        assert len(found) > 500
        stored = stored_rows(join)
    assert loops.stored == stored
    relations, intermediates = 3 * 40, stored["(a b)"]
    assert sum(loops.stored.values()) == relations + intermediates  # equation 4.2
    assert loops.messages == broadcast * (8 + 1)  # equation 4.3
    assert broadcast == relations + intermediates
    assert loops.pairs == 40 * 40 + intermediates * 40
