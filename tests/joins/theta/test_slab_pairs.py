"""Pairs by two ranges, beside a look at each row."""

import random

import numpy as np
import pytest

from lsmstate.cython_ext.expressions.slab_pairs import SlabPairs, Slabs, value_codes

SPECIAL = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 5e-324, -5e-324]


def test_codes_are_ordered_as_conditions_order_numbers() -> None:
    ascending = [-np.inf, -1e300, -1.5, -5e-324, 0.0, 5e-324, 1.5, 1e300, np.inf, np.nan]
    codes = value_codes(np.array(ascending))
    assert (np.diff(codes) > 0).all()
    pairs = value_codes(np.array([0.0, np.nan])), value_codes(np.array([-0.0, -np.nan]))
    assert (pairs[0] == pairs[1]).all()
    whole = np.array([-(1 << 63), 0, (1 << 63) - 1])
    assert value_codes(whole).tolist() == whole.tolist()
    assert len(value_codes(np.zeros(0))) == 0


def values(chance: random.Random, rng: np.random.Generator, count: int) -> np.ndarray:
    if chance.random() < 0.5:
        return rng.integers(-20, 20, count)
    found = np.round(rng.normal(0, 5, count), 1)
    special = rng.random(count) < 0.2
    found[special] = rng.choice(SPECIAL, count)[special]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_pairs_are_those_of_a_look_at_each_row(seed: int) -> None:
    chance = random.Random(seed)
    rng = np.random.default_rng(seed)
    slab = chance.choice([1, 3, 64, 4096])
    count = chance.choice([0, 1, 5, 64, 1000, 9000])
    first, second = values(chance, rng, count), values(chance, rng, count)
    order = np.arange(count)
    for begin in range(0, count, slab):
        here = order[begin : begin + slab]
        order[begin : begin + slab] = here[np.argsort(value_codes(second)[here])]
    first, second = first[order], second[order]
    lefts = chance.choice([0, 1, 60])
    is_by_most = chance.random() < 0.5

    def limits() -> np.ndarray:
        some = value_codes(values(chance, rng, 2 * lefts))
        some[rng.random(2 * lefts) < 0.2] = chance.choice([-(1 << 63), (1 << 63) - 1])
        return np.sort(some.reshape(lefts, 2), axis=1)

    asked, second_asked = limits(), limits()
    if chance.random() < 0.5:  # no limit on one side
        second_asked[:, 0 if is_by_most else 1] = -(1 << 63) if is_by_most else (1 << 63) - 1
    by = np.argsort(second_asked[:, 1 if is_by_most else 0])
    asked, second_asked = asked[by], second_asked[by]
    places = rng.permutation(count) + 7 if chance.random() < 0.5 else None
    slabs = Slabs(first, second, places, slab)
    assert (slabs.count, slabs.slab) == (count, slab)
    names = np.arange(lefts) * 2
    columns = [np.ascontiguousarray(each) for each in (*asked.T, *second_asked.T)]
    found = SlabPairs(slabs, names, *columns, is_by_most)
    most = chance.choice([1, 7, 500, 1 << 14])
    pairs = []
    while (piece := found.next(most)) is not None:
        assert len(piece[0]) == len(piece[1]) <= most + slab
        pairs += zip(*(part.tolist() for part in piece), strict=True)
    codes, second_codes = value_codes(first), value_codes(second)
    expected = [
        (int(names[left]), int(row if places is None else places[row]))
        for left in range(lefts)
        for row in range(count)
        if asked[left, 0] <= codes[row] <= asked[left, 1]
        and second_asked[left, 0] <= second_codes[row] <= second_asked[left, 1]
    ]
    assert sorted(pairs) == sorted(expected)
