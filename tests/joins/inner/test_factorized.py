"""Products hold the results that were factored, and few of them where the results are products."""

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.joins.local.parts.cross_product import Side, cross_product
from lsmstate.joins.local.parts.factorized import Products, factorized
from support.examples import examples


def results_of(products: Products) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for number in range(len(products)):
        lists = [
            places[starts[number] : starts[number + 1]].tolist()
            for places, starts in zip(products.places, products.starts, strict=True)
        ]
        assert all(lists)
        found.update(product(*lists))
    return found


LISTS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@st.composite
def mixed_results(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray]:
    """Products and single results one after the other, and pieces of them."""
    streams = draw(st.integers(1, 4))
    order = draw(st.permutations(range(streams)))
    rows: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(0, 5))):
        lists = draw(st.lists(LISTS, min_size=streams, max_size=streams))
        rows += product(*lists)
    rows += draw(st.lists(st.tuples(*[st.integers(0, 2)] * streams), max_size=9))
    places = np.array(rows, dtype=np.int64).reshape(len(rows), streams)
    cuts = draw(st.sets(st.integers(1, len(rows) - 1))) if len(rows) > 1 else set()
    first = [0] if rows else []
    return [places[:, s].copy() for s in order], np.array([*first, *sorted(cuts)], dtype=np.int64)


@settings(max_examples=examples(400), deadline=None)
@given(mixed_results())
def test_products_are_the_results_piece_by_piece(case):
    places, cuts = case
    bounds = [*cuts.tolist(), len(places[0])]
    pieces = [
        Counter(zip(*(p[start:end].tolist() for p in places), strict=True))
        for start, end in pairwise(bounds)
    ]
    found = factorized(places, cuts)
    assert results_of(found) == sum(pieces, Counter())
    # No product has results of two pieces: their numbers add up to those of the pieces, in order.
    counts = np.ones(len(found), dtype=np.int64)
    for starts in found.starts:
        counts *= np.diff(starts)
    assert set(np.cumsum(counts).tolist()) >= set(bounds[1:])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_each_key_is_one_product_whichever_stream_changes_fastest(order):
    rng = np.random.default_rng(7)
    counts = [rng.integers(1, 5, 200) for _ in order]
    bounds = [np.concatenate([[0], np.cumsum(count)]) for count in counts]
    rows = [np.arange(bound[-1]) for bound in bounds]
    sides = [Side(None, b, np.ones_like(r)) for b, r in zip(bounds, rows, strict=True)]
    (picked,) = cross_product([sides[s] for s in order], 1 << 30)
    found = factorized([picked.places[order.index(s)] for s in range(3)], np.zeros(1, np.int64))
    for places, row, starts, bound in zip(found.places, rows, found.starts, bounds, strict=True):
        assert np.array_equal(places, row)
        assert np.array_equal(starts, bound)


def test_results_that_share_no_row_are_products_of_one():
    at = [np.arange(50), np.arange(50)[::-1].copy()]
    assert len(factorized(at, np.zeros(1, np.int64))) == 50


def test_a_row_that_matches_many_is_one_product():
    """A range join: each arrived row with a stretch of the other stream's."""
    left = np.repeat(np.arange(20), 100)
    right = np.concatenate([np.arange(n, n + 100) for n in range(20)])
    found = factorized([left, right], np.zeros(1, np.int64))
    assert len(found) == 20
    assert len(found.places[0]) == 20
