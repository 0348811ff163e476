"""A second range beside that of an index: which rows of a stretch it holds for, without a look at
each of them.

The rows of a piece are ranked by their second column, so of a whole piece the matching rows are a
stretch of ranks. Most stretches are whole pieces. Of another one, the ranks of aligned blocks are
sorted, and in each block the matching ranks are a stretch again. Rows at its ends, less than a
block, are compared by their ranks.

Cost of a piece of n rows: n log(n) once, two binary searches a stretch or block, and the matches.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.conditions.restrictions import Range
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.stretches import stretches, together

#: Rows of a block.
BLOCK: Final = 512
#: Candidates a row of the piece from which ranking it pays.
WORTH: Final = 64

Pairs = Iterator[tuple[Numbers, Numbers]]


class SecondRange:
    """The second range of a step, for some combinations."""

    def __init__(self, second: Range, columns: Values, count: int) -> None:
        """``columns``: of the ``count`` combinations that are known."""
        low, high, known = second.limits(columns, count)
        self._second = second
        self._low = None if low is None else plain(low)
        self._high = None if high is None else plain(high)
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
        return together(self._ranked_pairs(rows, lefts, first, stop))

    def _ranked_pairs(
        self, rows: pa.RecordBatch, lefts: Numbers, first: Numbers, stop: Numbers
    ) -> Pairs:
        is_known = self._known[lefts]
        if not is_known.all():
            lefts, first, stop = lefts[is_known], first[is_known], stop[is_known]
        values = self._second.part.values(partial(_own_column, rows), rows.num_rows)
        ranked = _Ranked(values)
        low, high = self._ranks(ranked, lefts)
        is_whole = (first == 0) & (stop == rows.num_rows)
        whole = np.flatnonzero(is_whole & (low < high))
        yield from _at(ranked.places, stretches(lefts[whole], low[whole], high[whole]))
        some = np.flatnonzero(~is_whole & (low < high))
        if len(some):
            yield from ranked.within(lefts[some], first[some], stop[some], low[some], high[some])

    def _ranks(self, ranked: "_Ranked", lefts: Numbers) -> tuple[Numbers, Numbers]:
        """The ranks in the range of each combination: from, and up to."""
        low = np.zeros(len(lefts), np.int64)
        high = np.full(len(lefts), len(ranked.ascending), np.int64)
        if self._low is not None:
            side = "left" if self._second.includes_low else "right"
            low = _found(ranked.ascending, self._low[lefts], side)
        if self._high is not None:
            side = "right" if self._second.includes_high else "left"
            high = _found(ranked.ascending, self._high[lefts], side)
        return low, high


class _Ranked:
    """Rows by their ranks; nulls come last, behind all ranks that are looked for."""

    def __init__(self, values: pa.Array) -> None:
        self._count = len(values)
        valid = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        known = plain(values)[valid]
        order = np.argsort(known, kind="stable")
        self.ascending = known[order]
        #: Of each rank the row.
        self.places = valid[order]
        self._ranks = np.full(self._count, self._count, np.int64)
        self._ranks[self.places] = np.arange(len(valid))

    def within(
        self, lefts: Numbers, first: Numbers, stop: Numbers, low: Numbers, high: Numbers
    ) -> Pairs:
        """Pairs of stretches that are not the whole piece."""
        head, tail = -(-first // BLOCK), stop // BLOCK
        is_short = head >= tail  # no whole block
        ends = np.where(is_short, stop, head * BLOCK), np.where(is_short, stop, tail * BLOCK)
        for start, end in ((first, ends[0]), (ends[1], stop)):
            for at, rows in stretches(np.arange(len(lefts)), start, end):
                held = (self._ranks[rows] >= low[at]) & (self._ranks[rows] < high[at])
                yield lefts[at[held]], rows[held]
        yield from self._in_blocks(lefts, head, np.maximum(head, tail), low, high)

    def _in_blocks(
        self, lefts: Numbers, head: Numbers, tail: Numbers, low: Numbers, high: Numbers
    ) -> Pairs:
        """Of each left, the rows of its whole blocks with a rank from low to high."""
        whole = self._count // BLOCK * BLOCK
        width = self._count + 1
        ranks = np.sort(self._ranks[:whole].reshape(-1, BLOCK), axis=1).ravel()
        keys = ranks + np.repeat(np.arange(whole // BLOCK) * width, BLOCK)
        for at, block in stretches(np.arange(len(lefts)), head, tail):
            start = np.searchsorted(keys, block * width + low[at])
            end = np.searchsorted(keys, block * width + high[at])
            for here, rank in stretches(lefts[at], start, end):
                yield here, self.places[ranks[rank]]


def plain(values: pa.Array) -> npt.NDArray[Any]:
    """As NumPy orders them; whatever for null. NaN is the greatest there, too."""
    if pa.types.is_floating(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return np.asarray(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def _found(ascending: npt.NDArray[Any], wanted: npt.NDArray[Any], side: Any) -> Numbers:
    return np.searchsorted(ascending, wanted, side=side).astype(np.int64)


def _at(places: Numbers, pairs: Pairs) -> Pairs:
    return ((lefts, places[ranks]) for lefts, ranks in pairs)


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)
