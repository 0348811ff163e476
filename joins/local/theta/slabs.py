"""A second range beside that of an index: which rows of a stretch it holds for, without a look at
each of them.

The rows of a piece are ranked by their second column. What a combination asks of that column is a
range of ranks, and ``RankedPairs`` finds the rows of its stretch that are in it.

Cost of a piece of n rows: n log(n) once, a search a combination, and the matches.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.expressions.ranked_rows import RankedPairs, RankedRows
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.conditions.restrictions import Range
from lsmstate.joins.local.parts.bound_rows import BLOCK_ROWS
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.limits import Limits, plain
from lsmstate.joins.local.theta.stretches import stretches

#: Rows of a small block, whose least and greatest ranks are known, and of a large, sorted one.
SMALL: Final = 256
LARGE: Final = 4096
#: Candidates a row of the piece from which ranking it pays.
WORTH: Final = 1

Pairs = Iterator[tuple[Numbers, Numbers]]


class SecondRange:
    """The second range of a step, for some combinations."""

    def __init__(self, second: Range, columns: Values, count: int) -> None:
        """``columns``: of the ``count`` combinations that are known."""
        low, high, known = second.limits(columns, count)
        self._second = second
        self._low = Limits.below(low, includes=second.includes_low)
        self._high = Limits.above(high, includes=second.includes_high)
        self._known = known

    def pairs(self, rows: pa.RecordBatch, lefts: Numbers, first: Numbers, stop: Numbers) -> Pairs:
        """Places of pairs that may match: all that do are among them.

        Args:
            rows: Stored rows.
            lefts: Combinations.
            first: Beside each, the first of its rows.
            stop: Beside each, the end of its rows.
        """
        if int((stop - first).sum()) < WORTH * rows.num_rows:
            return stretches(lefts, first, stop)
        return self._ranked_pairs(rows, lefts, first, stop)

    def _ranked_pairs(
        self, rows: pa.RecordBatch, lefts: Numbers, first: Numbers, stop: Numbers
    ) -> Pairs:
        count = rows.num_rows
        values = self._second.part.values(partial(_own_column, rows), count)
        is_valid = values.is_valid().to_numpy(zero_copy_only=False)
        places = np.argsort(plain(values))
        if not is_valid.all():
            places = places[is_valid[places]]  # a null has no rank
        ascending = plain(values)[places]
        low = np.zeros(len(lefts), np.int64)
        high = np.full(len(lefts), len(places), np.int64)
        if self._low is not None:
            low = self._low.places(ascending, lefts)
        if self._high is not None:
            high = self._high.places(ascending, lefts)
        held = np.flatnonzero(self._known[lefts] & (low < high))
        if not len(held):
            return
        ranked = RankedRows(places, count, SMALL, LARGE)
        found = RankedPairs(ranked, first[held], stop[held], low[held], high[held])
        for at, right in iter(partial(found.next, BLOCK_ROWS), None):
            yield lefts[held[at]], right


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)
