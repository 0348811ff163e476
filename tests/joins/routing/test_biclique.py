"""A join of one stream with itself, and one of two, over buckets that see rows in any order."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.opening import open_store
from lsmstate.options import Options
from support.self_join.kind import NAME, SelfJoin, SelfSpec

ROWS = pa.schema([("n", pa.int64())])
SPEC = SelfSpec(ROWS)


def batch_of(numbers: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=ROWS)


def routed(
    routing: BicliqueRouting, tasks: list[list[int]], rng: random.Random
) -> dict[int, list[tuple[Role, list[int]]]]:
    """By bucket what a run of the route tasks sends, each of which sees its rows in some order."""
    router = routing.router(NAME, ROWS, ROWS)
    sent: dict[int, list[tuple[Role, list[int]]]] = {}
    for task in tasks:
        numbers = rng.sample(task, len(task))
        found = router.route(batch_of(numbers), batch_of(numbers))
        assert found.roles is not None
        for bucket in np.unique(found.buckets).tolist():
            for role in Role:
                mine = found.positions[(found.buckets == bucket) & (found.roles == role)]
                sent.setdefault(bucket, []).append((role, [numbers[p] for p in mine]))
    return {bucket: sorted(parts, key=lambda part: part[0]) for bucket, parts in sent.items()}


@pytest.mark.parametrize("seed", range(10))
def test_each_unordered_pair_is_found_once_whatever_runs_the_buckets_see(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    buckets = rng.choice([1, 2, 3, 5])
    routing = BicliqueRouting.of({NAME: 1}, buckets)
    fed: list[int] = []
    found: Counter[tuple[int, int]] = Counter()
    with ExitStack() as opened:
        stores = [
            opened.enter_context(
                open_store(
                    str(tmp_path / str(n)), SPEC.stream_schemas, backend="memory", options=Options()
                )
            )
            for n in range(buckets)
        ]
        for micro_batch in range(4):
            tasks = [[rng.randrange(12) for _ in range(rng.randrange(8))] for _ in range(3)]
            fed += [number for task in tasks for number in task]
            for bucket, store in enumerate(stores):
                # Each bucket's state may come from another run of the same tasks.
                sent = routed(routing, tasks, rng).get(bucket, [])
                join = SelfJoin(SPEC, store, Context(micro_batch=micro_batch))
                for role, numbers in sent:
                    for piece in join.process(Batch(NAME, batch_of(numbers), None, role)):
                        columns = (column.to_pylist() for column in piece.columns)
                        found.update(zip(*columns, strict=True))
    unordered = Counter(tuple(sorted(pair)) for pair in found.elements())
    assert unordered == Counter(tuple(sorted(pair)) for pair in combinations(fed, 2))
    assert all((b, a) not in found or a == b for a, b in found), "one orientation for a pair"


def test_of_two_streams_each_row_is_stored_once_and_probes_the_other_side() -> None:
    routing = BicliqueRouting.of({"a": 3, "b": 1}, 4)
    assert routing.units == {"a": (0, 3), "b": (3, 1)}
    for name, own, probed in (("a", {0, 1, 2}, {3}), ("b", {3}, {0, 1, 2})):
        rows = batch_of(list(range(200)))
        found = routing.router(name, ROWS, ROWS).route(rows, rows)
        assert found.roles is not None
        is_own = found.roles == Role.STORE
        assert found.positions[is_own].tolist() == list(range(200))
        assert set(found.buckets[is_own].tolist()) == own
        for position in range(200):
            mine = (found.positions == position) & ~is_own
            assert set(found.buckets[mine].tolist()) == probed
            assert set(found.roles[mine].tolist()) == {Role.PROBE}


def test_units_are_those_of_the_first_start() -> None:
    first = BicliqueRouting.of({"a": 1, "b": 1}, 6)
    later = BicliqueRouting.of({"a": 5, "b": 1}, 6)
    assert later.settled(6, first.adopted) == first


def shares(rows: dict[str, int], buckets: int) -> Iterator[Any]:
    yield from (count for _, count in BicliqueRouting.of(rows, buckets).units.values())


@pytest.mark.parametrize(
    ("rows", "buckets", "words"),
    [({"a": 1, "b": 1}, 1, "at least 2"), (dict.fromkeys("abc", 1), 9, "has one or two")],
)
def test_what_does_not_fit_is_refused(rows: dict[str, int], buckets: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        list(shares(rows, buckets))
