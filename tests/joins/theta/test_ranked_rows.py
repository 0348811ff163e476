"""Pairs by stretches and ranks, beside a look at each row."""

import random

import numpy as np
import pytest

from lsmstate.cython_ext.expressions.ranked_rows import RankedPairs, RankedRows


@pytest.mark.parametrize("seed", range(40))
def test_pairs_are_those_of_a_look_at_each_row(seed):
    chance = random.Random(seed)
    rng = np.random.default_rng(seed)
    small, large = chance.choice([(1, 1), (2, 6), (16, 64), (256, 4096)])
    count = chance.choice([1, 5, 64, 1000, 9000])
    ranked = rng.permutation(count)[: max(1, int(count * chance.choice([0.5, 1])))]
    lefts = 60
    ends = np.sort(rng.integers(0, count + 1, (lefts, 2)), axis=1)
    ends[rng.random(lefts) < 0.2] = (0, count)
    low = rng.integers(0, len(ranked) + 1, lefts)
    high = rng.integers(0, len(ranked) + 1, lefts)  # a range may be empty
    rows = RankedRows(ranked, count, small, large)
    assert rows.count == count
    found = RankedPairs(rows, *np.ascontiguousarray(ends.T), low, high)
    most = chance.choice([1, 7, 500, 1 << 14])
    pieces = []
    while (piece := found.next(most)) is not None:
        assert len(piece[0]) == len(piece[1]) <= most + 256
        pieces += zip(*(part.tolist() for part in piece), strict=True)
    ranks = np.full(count, len(ranked))
    ranks[ranked] = np.arange(len(ranked))
    expected = {
        (left, row)
        for left in range(lefts)
        for row in range(*ends[left])
        if low[left] <= ranks[row] < high[left]
    }
    assert len(pieces) == len(expected)
    assert set(pieces) == expected
