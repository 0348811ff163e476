"""The sketch of heavy hitters against exact counts."""

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.skew.heavy_hitters import SKETCH, HeavyHitters, merged
from support.join_cases import QUICK


def add(sketch: HeavyHitters, keys: list[int]) -> None:
    hashes = np.array(keys, np.uint64)
    sketch.add(hashes, lambda i: f"key {keys[i]}")


def check(sketch: HeavyHitters, exact: Counter[int]) -> None:
    total = exact.total()
    assert sketch.total == total
    assert sketch.error <= total / (sketch.capacity + 1)
    found = {hot.hash: hot for hot in sketch.hottest()}
    assert len(found) <= sketch.capacity
    for key, rows in exact.items():
        counted = found[key].rows if key in found else 0
        assert counted <= rows <= counted + sketch.error
        if rows > total / (sketch.capacity + 1):
            assert found[key].key == f"key {key}"


batches = st.lists(st.lists(st.integers(0, 12)), max_size=8)


@QUICK
@given(capacity=st.integers(1, 8), parts=st.lists(batches, min_size=1, max_size=3))
def test_every_count_is_within_the_error_batch_by_batch_and_merged(
    capacity: int, parts: list[list[list[int]]]
) -> None:
    sketches = []
    for part in parts:
        sketch, exact = HeavyHitters(capacity), Counter[int]()
        for batch in part:
            add(sketch, batch)
            exact.update(batch)
            check(sketch, exact)
        sketches.append(sketch)
    check(merged(sketches, capacity), Counter(key for part in parts for b in part for key in b))


def test_the_hot_keys_of_a_zipf_stream_are_found_in_little_memory() -> None:
    rng = np.random.default_rng(7)
    sketch, exact = HeavyHitters(), Counter[int]()
    for _ in range(20):
        keys = rng.zipf(1.2, 20_000).astype(np.uint64)
        sketch.add(keys, lambda i, keys=keys: f"key {keys[i]}")
        exact.update(keys.tolist())
    check(sketch, exact)
    assert [hot.hash for hot in sketch.hottest(5)] == [key for key, _ in exact.most_common(5)]
    assert sketch.nbytes < 64 * (16 + 24)


def test_a_sketch_goes_on_where_it_was_kept() -> None:
    rng = random.Random(3)
    kept, straight = HeavyHitters(4), HeavyHitters(4)
    for _ in range(10):
        keys = [min(rng.randrange(30), rng.randrange(30)) for _ in range(50)]
        for sketch in (kept, straight):
            sketch.fade(0.5)
            add(sketch, keys)
        row = pa.RecordBatch.from_pylist([kept.to_row()], schema=SKETCH).to_pylist()[0]
        kept = HeavyHitters.from_row(row, 4)
    assert kept.to_row() == straight.to_row()
    assert kept.hottest() == straight.hottest()


def test_what_was_hot_fades_and_long_keys_are_cut() -> None:
    sketch = HeavyHitters(2)
    add(sketch, [1] * 1000)
    for _ in range(12):
        sketch.fade(0.5)
        add(sketch, [2] * 10)
    assert [hot.hash for hot in sketch.hottest()] == [2, 1]
    wide = HeavyHitters()
    wide.add(np.array([1], np.uint64), lambda _: "x" * 70_000)
    assert wide.nbytes < 100


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="capacity=0"):
        HeavyHitters(0)
