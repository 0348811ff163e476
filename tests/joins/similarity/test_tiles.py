"""Tiles give all pairs within their bounds, with every set of instructions."""

import numpy as np
import pytest

from lsmstate.cython_ext.distances import tiles
from lsmstate.errors import InvalidArgumentError


@pytest.mark.parametrize("kind", [tiles.PRODUCT, tiles.SUM, tiles.GREATEST, tiles.COUNT])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 130])
def test_every_level_gives_the_pairs_of_numpy(kind: int, width: int) -> None:
    rng = np.random.default_rng(width)
    # Small whole numbers: float32 is exact, whatever the order.
    queries = rng.integers(-3, 4, (37, width)).astype(np.float32)
    rows = rng.integers(-3, 4, (29, width)).astype(np.float32)
    difference = np.abs(queries[:, None] - rows[None])
    scores = {
        tiles.PRODUCT: (queries[:, None] * rows[None]).sum(-1),
        tiles.SUM: -difference.sum(-1),
        tiles.GREATEST: -difference.max(-1),
        tiles.COUNT: -(difference != 0).sum(-1),
    }[kind]
    bounds = np.quantile(scores, 0.8, axis=1).astype(np.float32)
    limits = np.zeros(29, np.float32)
    if kind != tiles.GREATEST:
        limits = rng.integers(-2, 3, 29).astype(np.float32)
    expected = {(q, x) for q, x in np.argwhere(scores - limits >= bounds[:, None])}
    panels = tiles.Panels(kind, queries, bounds, 29)
    for level in range(tiles.LEVEL + 1):
        found = panels.candidates(rows, limits, level=level)
        pairs = list(zip(*(each.tolist() for each in found), strict=True))
        assert len(set(pairs)) == len(pairs)
        assert set(pairs) == expected
        some = panels.candidates(rows, limits, 5, 20, level)
        pairs = list(zip(*(each.tolist() for each in some), strict=True))
        assert {p for p in expected if 5 <= p[0] < 20} <= set(pairs) <= expected


def test_empty_blocks_have_no_pairs() -> None:
    panels = tiles.Panels(tiles.PRODUCT, np.zeros((0, 3), np.float32), np.zeros(0, np.float32), 4)
    none, _ = panels.candidates(np.zeros((2, 3), np.float32), np.zeros(2, np.float32))
    assert len(none) == 0


def test_blocks_that_do_not_fit_are_refused() -> None:
    queries, bounds = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    with pytest.raises(InvalidArgumentError, match="give a bound for each query"):
        tiles.Panels(tiles.PRODUCT, queries, bounds[:1], 4)
    panels = tiles.Panels(tiles.PRODUCT, queries, bounds, 4)
    with pytest.raises(InvalidArgumentError, match="give at most 4 rows of 3"):
        panels.candidates(np.zeros((5, 3), np.float32), np.zeros(5, np.float32))
