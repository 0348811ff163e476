"""Tiles of pairs: what their programs rule out, beside NumPy on the array of all pairs."""

import random

import numpy as np
import pytest

from lsmstate.cython_ext.errors import InvalidArgumentError
from lsmstate.cython_ext.expressions.pair_tiles import PairTiles

UNARY = {"negative": np.negative, "abs": np.abs}
BINARY = {"+": np.add, "-": np.subtract, "*": np.multiply}
RULED_OUT = {"<": np.greater_equal, "<=": np.greater, ">": np.less_equal, ">=": np.less}


def expression(rng, left, right, depth):
    """A random program, and its values of all pairs."""
    kind = rng.choice(["left", "right", "number", "one", "two", "two"] if depth else ["left"])
    if kind == "number":
        number = rng.choice([0.5, -2.0, 3.0])
        return [number], np.float64(number)
    if kind in ("left", "right"):
        columns = left if kind == "left" else right
        at = rng.randrange(len(columns))
        values = columns[at]
        return [(kind, at)], values[:, None] if kind == "left" else values[None, :]
    program, value = expression(rng, left, right, depth - 1)
    if kind == "one":
        name = rng.choice(sorted(UNARY))
        return [*program, name], UNARY[name](value)
    more, other = expression(rng, left, right, depth - 1)
    name = rng.choice(sorted(BINARY))
    return [*program, *more, name], BINARY[name](value, other)


def pairs_of(tiles, most):
    found = [(np.zeros(0, np.int64),) * 2]
    while (piece := tiles.next(most)) is not None:
        assert len(piece[0]) <= most + 256
        found.append(piece)
    return [np.concatenate(side) for side in zip(*found, strict=True)]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    lefts, rights = rng.choice([0, 1, 7, 40]), rng.choice([0, 1, 255, 256, 257, 1000])
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0]

    def column(count):
        values = np.round(numbers.normal(0, 2, count), 1)
        return np.where(numbers.random(count) < 0.1, numbers.choice(special, count), values)

    left, right = [column(lefts) for _ in range(2)], [column(rights) for _ in range(3)]
    program, is_open = [], np.ones((lefts, rights), np.bool_)
    with np.errstate(all="ignore"):
        for _ in range(rng.choice([1, 1, 2])):
            (one, first), (two, second) = (expression(rng, left, right, 3) for _ in range(2))
            sign = rng.choice(sorted(RULED_OUT))
            program += [*one, *two, sign]
            is_open &= ~RULED_OUT[sign](first, second)
    found = pairs_of(PairTiles(program, left, right, lefts, rights), rng.choice([1, 100, 1 << 14]))
    assert sorted(zip(*(side.tolist() for side in found), strict=True)) == [
        (i, j) for i, j in np.argwhere(is_open).tolist()
    ]


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ([1.0, 2.0], "2 operands are left over"),
        (["+"], "lacks operands"),
        ([1.0, "<"], "lacks operands"),
        ([("left", 1), 1.0, "<"], "no column"),
        ([("right", -1), 1.0, "<"], "no column"),
        ([1.0] * 17, "more than 16"),
    ],
)
def test_what_is_no_program_is_refused(program, word):
    with pytest.raises(InvalidArgumentError, match=word):
        PairTiles(program, [np.zeros(3)], [np.zeros(2)], 3, 2)


def test_columns_of_another_length_are_refused():
    with pytest.raises(InvalidArgumentError, match="2 rows, not 3"):
        PairTiles([("left", 0), 1.0, "<"], [np.zeros(2)], [], 3, 2)
