"""Trees of points give all pairs within a reach, with every set of instructions."""

import numpy as np
import pytest

from lsmstate.cython_ext.distances import near_points
from lsmstate.cython_ext.distances.near_points import NearPairs, PointTree
from lsmstate.errors import InvalidArgumentError
from support.sampling import each_value

ORDERS = {near_points.SQUARES: 2, near_points.LENGTHS: 1, near_points.GREATEST: np.inf}


def found_pairs(pairs: NearPairs, most: int = 1) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while (block := pairs.next(most)) is not None:
        assert len(block[0]) == len(block[1]) <= max(most, 32)
        found += zip(*(each.tolist() for each in block), strict=True)
    return found


@each_value(
    times=2, kind=list(ORDERS), width=[1, 2, 3, 10, 17], count=[1, 32, 33, 700], scale=[1e-30, 1.0]
)
def test_every_level_gives_the_pairs_of_numpy(
    kind: int, width: int, count: int, scale: float
) -> None:
    rng = np.random.default_rng(count + width)
    # A few clusters, and points that are equal.
    rows = rng.integers(0, 4, (count, width)) + rng.choice([0.0, 1e-3], (count, width))
    queries = rows[rng.integers(0, count, 90)] + rng.choice([0.0, 0.3], (90, width))
    apart = np.linalg.norm(queries[:, None] - rows[None], ORDERS[kind], axis=2)
    reach = float(np.quantile(apart, 0.2))
    expected = {(int(q), int(x)) for q, x in np.argwhere(apart <= reach)}
    near = {(int(q), int(x)) for q, x in np.argwhere(apart <= reach * (1 + 1e-5))}
    origin = rows[0] * scale
    trees = PointTree(queries * scale, origin), PointTree(rows * scale, origin)
    for level in range(near_points.LEVEL + 1):
        pairs = NearPairs(*trees, kind, reach * scale, level)
        found = found_pairs(pairs)
        assert len(set(found)) == len(found)
        assert expected <= set(found)
        if scale == 1.0:
            assert set(found) <= near
        assert len(found) <= pairs.compared


def test_few_pairs_are_compared() -> None:
    points = np.random.default_rng(1).random((20_000, 2))
    tree, some = PointTree(points, np.zeros(2)), PointTree(points[:1000], np.zeros(2))
    pairs = NearPairs(some, tree, near_points.SQUARES, 0.01)
    apart = np.linalg.norm(points[:1000, None] - points[None], axis=2)
    assert {(int(q), int(x)) for q, x in np.argwhere(apart <= 0.01)} <= set(found_pairs(pairs))
    assert pairs.compared < 20_000 * 1000 / 50
    assert 20_000 * 3 * 4 <= tree.nbytes < 20_000 * 20


@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_components_that_float32_cannot_tell_apart_lose_no_pair(shift: float) -> None:
    rng = np.random.default_rng(2)
    rows = rng.random((300, 3)) + np.array([0.0, shift, -shift])
    trees = PointTree(rows, np.zeros(3)), PointTree(rows[:50], np.zeros(3))
    apart = np.linalg.norm(rows[:50, None] - rows[None], axis=2)
    found = set(found_pairs(NearPairs(*trees[::-1], near_points.SQUARES, 0.01)))
    assert {(int(q), int(x)) for q, x in np.argwhere(apart <= 0.01)} <= found


def test_no_points_have_no_pairs() -> None:
    none, one = PointTree(np.empty((0, 2)), np.zeros(2)), PointTree(np.zeros((1, 2)), np.zeros(2))
    for trees in ((none, one), (one, none), (none, none)):
        assert NearPairs(*trees, near_points.SQUARES, 1.0).next(5) is None
    assert found_pairs(NearPairs(one, one, near_points.SQUARES, 0.0)) == [(0, 0)]


@pytest.mark.parametrize("value", [2e15, np.inf, np.nan])
def test_points_that_float32_cannot_compare_are_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match="lies further than"):
        PointTree(np.array([[0.0, value]]), np.zeros(2))


def test_trees_that_do_not_fit_are_refused() -> None:
    flat, deep = PointTree(np.zeros((1, 2)), np.zeros(2)), PointTree(np.zeros((1, 3)), np.zeros(3))
    for asked in ((flat, deep, 0, 1.0), (flat, flat, 3, 1.0), (flat, flat, 0, float("nan"))):
        with pytest.raises(InvalidArgumentError, match="give points of one dimension"):
            NearPairs(*asked)
    with pytest.raises(InvalidArgumentError, match="an origin of as many components"):
        PointTree(np.zeros((1, 2)), np.zeros(3))
