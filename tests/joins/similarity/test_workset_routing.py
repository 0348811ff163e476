"""Routing by worksets: pairs meet once, whatever tables follow each other, and loads are even."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.joins.similarity_balance import Buckets, batch, moving, s3j, spec_of, uniform, worksets
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.similarity.workset_routing import WorksetRouting
from lsmstate.joins.routing.balancing import balanced, bucket_loads
from support.similar_cases import all_distances


@pytest.mark.parametrize(("is_timed", "rows_first"), [(False, 3), (True, 60)])
def test_pairs_meet_once_whatever_tables_follow(is_timed: bool, rows_first: int) -> None:
    """Clusters that move, few rows in the first micro-batch, and reports that are lost."""
    rng, lost = np.random.default_rng(rows_first), random.Random(rows_first)
    spec = spec_of("l2", 0.05, window_seconds=3 if is_timed else None)
    buckets = Buckets(spec, 3, period=2)
    points, times, found, tables = [], [], [], set()
    first = 0
    for number in range(10):
        count = rows_first if number == 0 else 60
        some = np.round(moving(rng, count, number / 3), 2)
        at = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, count))
        rows = batch(some, first, at)
        told = None if lost.random() < 0.6 else frozenset(lost.sample(range(3), 2))
        mark = (number + 1) * 1_000_000 - 1 if is_timed else None
        found += [
            tuple(sorted((row["a_id"], row["b_id"])))
            for row in buckets.process({"a": rows}, mark, told)
        ]
        tables.add(str(buckets.table.to_json()))
        points.append(some)
        times.append(at)
        first += count
    assert buckets.messages < 2.5 * first or rows_first == 3
    buckets.close()
    every, at = np.concatenate(points), np.concatenate(times)
    apart = all_distances("l2", every, every)
    # Rounding may decide otherwise at exactly the threshold.
    may, must = apart <= 0.05 + 1e-12, apart <= 0.05 - 1e-12
    if is_timed:
        in_window = at[:, None] // 3_000_000 == at // 3_000_000
        may, must = may & in_window, must & in_window
    assert len(found) == len(set(found))
    assert set(map(tuple, np.argwhere(np.triu(must, 1)).tolist())) <= set(found)
    assert set(found) <= set(map(tuple, np.argwhere(np.triu(may, 1)).tolist()))
    assert len(tables) > 4


@pytest.mark.stress
@pytest.mark.parametrize("make", [uniform, moving])
def test_loads_are_even_after_three_windows(make: Any) -> None:
    metric, threshold = ("angular", 0.002) if make is uniform else ("l2", 0.01)
    assert list(worksets(make, metric, threshold, 200, 4))[-1] <= 1.3


def test_loads_of_s3j_are_even_after_three_windows() -> None:
    ratios = list(s3j(uniform, "angular", 0.002, 200, 4))
    assert ratios[-1] < min(1.3, ratios[0])


def test_moves_lessen_the_imbalance_and_shards_split_what_is_large() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        loads = rng.pareto(1.0, 40)
        places = tuple((int(b),) for b in rng.integers(0, 5, 40))
        after = balanced(loads, places, 5)
        before_full = bucket_loads(loads, places, 5)
        full = bucket_loads(loads, after, 5)
        average = loads.sum() / 5
        assert np.abs(full - average).sum() <= np.abs(before_full - average).sum() + 1e-9
        assert full.max() <= 1.3 * average
    assert balanced(np.zeros(3), ((0,), (0,), (1,)), 2) == ((0,), (0,), (1,))


def test_a_join_of_sets_has_no_worksets() -> None:
    schema = pa.schema([("v", pa.list_(pa.string()))])
    from lsmstate.joins.specs.similarity import SimilaritySpec

    spec = SimilaritySpec.of({"a": schema}, "a.v ~ b.v", metric="jaccard", threshold=0.5)
    with pytest.raises(InvalidArgumentError, match="routing='worksets' is for pairs of vectors"):
        WorksetRouting.of(spec)
