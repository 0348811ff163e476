"""Ranges of an index that leave no gap: all rows from their least limit to the greatest are read in
one go, instead of key by key.

So two inequalities, each of which holds for half of all rows, read them at the speed of a scan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.limits import Limits, plain
from lsmstate.joins.specs.theta import ThetaIndex
from lsmstate.store import MultimapStore

#: Ranges from which a look at how they overlap pays.
LEAST: Final = 16
#: How often a value between the least and the greatest limit is in a range, on the average.
OVERLAP: Final = 4

#: Rows, ranges that hold some of them, and beside each where its rows begin and end.
Matches = Iterator[tuple[pa.RecordBatch, Numbers, Numbers, Numbers]]


@dataclass(frozen=True)
class DenseRanges:
    """Ranges of the bounded column of an index that has no equal columns."""

    low: pa.Array | None
    high: pa.Array | None
    includes_low: bool = True
    includes_high: bool = True
    length: int | None = None
    """Of an interval's index: the class of lengths."""

    def matches(self, store: MultimapStore, index: ThetaIndex, piece_bytes: int) -> Matches:
        """Read the rows in key order. Cost: a scan of them, and a search a range and piece."""
        assert index.low is not None
        low = Limits.below(self.low, includes=self.includes_low)
        high = Limits.above(self.high, includes=self.includes_high)
        bounds = self._bounds()
        for _, rows in store.iterate(index.name, **bounds, max_bytes=piece_bytes):
            values = plain(index.low.values(partial(_own_column, rows), rows.num_rows))
            if high is not None and high.greatest < values[0]:
                return
            count = len(self.low) if self.low is not None else len(self.high or ())
            first = np.zeros(count, np.int64) if low is None else low.places(values)
            stop = np.full(count, len(values)) if high is None else high.places(values)
            held = np.flatnonzero(first < stop)
            if len(held):
                yield rows, held, first[held], stop[held]

    def _bounds(self) -> dict[str, Any]:
        """What ``iterate`` takes: keys before and behind all ranges are not read."""
        prefix = () if self.length is None else (self.length,)
        least = () if self.low is None else (self.low[int(np.argsort(plain(self.low))[0])].as_py(),)
        return {
            "low": (*prefix, *least) or None,
            "high": None if self.length is None else (self.length + 1,),
        }


def is_readable(kind: pa.DataType) -> bool:
    """Whether keys of this type can be told as values of Python, and NumPy orders them."""
    is_stamp = pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz is None
    return bool(is_stamp or pa.types.is_int64(kind) or pa.types.is_float64(kind))


def leave_no_gap(low: pa.Array, high: pa.Array) -> bool:
    """Whether ranges of numbers overlap a lot, and what they hold together is one range."""
    with np.errstate(all="ignore"):
        begin, end = (plain(each).astype(np.float64) for each in (low, high))
        held = begin <= end
        begin, end = begin[held], end[held]
        if len(begin) < LEAST:
            return False
        total = float((end - begin).sum())
        if not total < np.inf or total < OVERLAP * float(end.max() - begin.min()):
            return False
        order = np.argsort(begin)
        reached = np.maximum.accumulate(end[order])
        return bool((begin[order][1:] <= reached[:-1]).all())


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)
