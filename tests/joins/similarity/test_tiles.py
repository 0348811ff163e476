"""Tiles give all pairs within their bounds, with every set of instructions."""

import numpy as np
import pytest

from lsmstate.cython_ext.distances import byte_tiles, tiles
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.similarity.byte_panels import ByteVectorPanels, byte_rows
from support.similar_cases import all_distances


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


@pytest.mark.parametrize("width", [1, 6, 64, 385])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_bytes_lose_no_pair_with_any_level(width: int, scale: float) -> None:
    rng = np.random.default_rng(width)
    near = rng.standard_normal((40, width))
    queries = np.concatenate([near + 0.05 * rng.standard_normal((40, width)), near[:9]]) * scale
    rows = np.concatenate([near, rng.standard_normal((33, width)), np.zeros((1, width))]) * scale
    apart = all_distances("l2", queries / scale, rows / scale) * scale
    threshold = float(np.quantile(apart, 0.1))
    cosines = 1 - all_distances("cosine", queries, rows)
    least = float(np.nanquantile(cosines, 0.9))
    units = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    for panels, stored, close in (
        (ByteVectorPanels.of(queries, threshold), byte_rows(rows, None), apart <= threshold),
        (ByteVectorPanels.of(units, None), byte_rows(rows, least), cosines >= least),
    ):
        assert panels is not None
        assert stored is not None
        expected = set(map(tuple, np.argwhere(close).tolist()))
        for level in range(byte_tiles.LEVEL + 1):
            found = [
                pair
                for some in panels.candidates(stored, slice(0, len(rows)), 0, len(queries), level)
                for pair in zip(*(each.tolist() for each in some), strict=True)
            ]
            assert len(set(found)) == len(found)
            assert expected <= set(found)
            if width >= 64:
                assert len(found) < 0.5 * close.size


def test_bytes_are_whole_numbers_and_errors() -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 7))
    vectors[3] = 0
    for most in (byte_tiles.ROW_MOST, byte_tiles.QUERY_MOST):
        numbers, scales, lengths, lost = byte_tiles.quantized(vectors, most)
        assert numbers.shape == (20, 8)
        assert np.abs(numbers).max() == most
        assert not numbers[:, 7].any()
        rest = vectors - numbers[:, :7] * scales[:, None]
        assert np.allclose(lost, np.linalg.norm(rest, axis=1), rtol=1e-9)
        assert np.allclose(lengths, np.linalg.norm(vectors, axis=1))
        assert scales[3] == 0


def test_blocks_of_bytes_that_do_not_fit_are_refused() -> None:
    numbers, terms = np.zeros((2, 4), np.int8), np.zeros((2, 4), np.float32)
    with pytest.raises(InvalidArgumentError, match="give four terms for each query"):
        byte_tiles.BytePanels(numbers, terms[:1], 4)
    panels = byte_tiles.BytePanels(numbers, terms, 4)
    with pytest.raises(InvalidArgumentError, match="give at most 4 rows of 4"):
        panels.candidates(np.zeros((5, 4), np.int8), np.zeros((5, 4), np.float32))
