"""Two ranges of a row: which rows both hold for, without a look at each of them.

Rows are ordered by one value, and in slabs of some thousand by the other one (``SlabPairs``). What
combinations ask of a value is a range of its *codes*, whole numbers in the order of conditions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.expressions.slab_pairs import SLAB, SlabPairs, Slabs, value_codes
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.conditions.key_parts import own_column
from lsmstate.joins.conditions.restrictions import Range
from lsmstate.joins.local.parts.bound_rows import BLOCK_ROWS
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.limits import plain
from lsmstate.joins.local.theta.stretches import stretches

#: Rows of a slab.
ROWS: Final = SLAB
#: Pairs that are looked at together, at most.
MOST: Final = 2 * BLOCK_ROWS
#: Candidates a row of the piece from which ordering it pays.
WORTH: Final = 1
_LEAST: Final = np.iinfo(np.int64).min
_MOST: Final = np.iinfo(np.int64).max

Pairs = Iterator[tuple[Numbers, Numbers]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Codes:
    """Of each combination the least and the greatest code of a range."""

    least: Numbers
    most: Numbers

    @classmethod
    def of(cls, asked: Range, columns: Values, count: int) -> tuple["Codes", Mask]:
        """The codes of a range, and which combinations have any. ``columns``: of the ``count``
        combinations."""
        low, high, known = asked.limits(columns, count)
        least, most = np.full(count, _LEAST), np.full(count, _MOST)
        known = known.copy()
        if low is not None:
            least = value_codes(plain(low))
            if not asked.includes_low:
                known &= least < _MOST
                least = least + 1
        if high is not None:
            most = value_codes(plain(high))
            if not asked.includes_high:
                known &= most > _LEAST
                most = most - 1
        return cls(least, most), known & (least <= most)

    def at(self, places: Numbers) -> "Codes":
        """Those of some combinations."""
        return Codes(self.least[places], self.most[places])


class SecondRange:
    """The second range of a step, for some combinations."""

    def __init__(self, second: Range, columns: Values, count: int) -> None:
        """``columns``: of the ``count`` combinations that are known."""
        self._part = second.part
        self._is_by_most = bool(second.upper)
        self._codes, self._known = Codes.of(second, columns, count)

    def pairs(
        self, rows: pa.RecordBatch, lefts: Numbers, first: Numbers, stop: Numbers
    ) -> tuple[Pairs, bool]:
        """Places of pairs that may match, and whether the second range holds for all of them.

        Args:
            rows: Stored rows.
            lefts: Combinations.
            first: Beside each, the first of its rows.
            stop: Beside each, the end of its rows.

        Cost:
            A sort of the rows, a look at each slab a combination, and the pairs.
        """
        if int((stop - first).sum()) < WORTH * rows.num_rows:
            return stretches(lefts, first, stop), False
        values = self._part.values(own_column(rows), rows.num_rows)
        second = plain(values)
        order = in_slabs(second, valid_places(values))
        slabs = Slabs(order, second[order], order, ROWS)
        held = np.flatnonzero(self._known[lefts] & (first < stop))
        places = Codes(first[held], stop[held] - 1)
        return self.asked(lefts[held], places).pairs(slabs), True

    def beside(self, first: Range, columns: Values, count: int) -> "AskedTwice":
        """What the combinations ask of rows by this range and another one."""
        codes, known = Codes.of(first, columns, count)
        lefts = np.flatnonzero(known & self._known)
        return self.asked(lefts, codes.at(lefts))

    def asked(self, lefts: Numbers, first: Codes) -> "AskedTwice":
        """What some combinations ask, and beside each its range of the first value."""
        second = self._codes.at(lefts)
        order = np.argsort(second.most if self._is_by_most else second.least)
        return AskedTwice(lefts[order], first.at(order), second.at(order), self._is_by_most)


@dataclass(frozen=True)
class AskedTwice:
    """What some combinations ask of both values of a row, in the order that ``SlabPairs`` needs."""

    lefts: Numbers
    first: Codes
    second: Codes
    is_by_most: bool

    def pairs(self, slabs: Slabs) -> Pairs:
        """Combinations, and beside each a row that both ranges hold for, in blocks."""
        first, second = self.first, self.second
        codes = (first.least, first.most, second.least, second.most)
        found = SlabPairs(slabs, self.lefts, *codes, self.is_by_most)
        return iter(partial(found.next, MOST - ROWS), None)


def valid_places(*values: pa.Array) -> Numbers:
    """The places where no value is null."""
    is_valid = np.ones(len(values[0]), np.bool_)
    for each in values:
        if each.null_count:
            is_valid &= np.asarray(each.is_valid().to_numpy(zero_copy_only=False))
    return np.flatnonzero(is_valid)


def in_slabs(second: npt.NDArray[Any], places: Numbers) -> Numbers:
    """The places in slab order: slab after slab, and in each ascending by the second value."""
    values = second[places]
    whole = len(places) // ROWS * ROWS
    order = np.empty(len(places), np.int64)
    inside = values[:whole].reshape(-1, ROWS).argsort(axis=1)
    order[:whole] = (inside + np.arange(0, whole, ROWS)[:, None]).ravel()
    order[whole:] = np.argsort(values[whole:]) + whole
    return places[order]
