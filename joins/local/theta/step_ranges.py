"""The ranges of keys that a step looks up, and the keys that rows are stored under."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.lengths import least_low, length_classes
from lsmstate.joins.specs.theta import Step, ThetaIndex
from lsmstate.store import RangeBounds


def key_values(index: ThetaIndex, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The keys that rows are stored under; null where a row can match nothing."""
    values, count = partial(_own_column, rows), rows.num_rows
    columns = [part.values(values, count) for part in index.equal]
    if index.low is not None:
        low = index.low.values(values, count)
        if index.high is not None:
            high = index.high.values(values, count)
            classes = pa.array(length_classes(low, high))
            columns.append(pc.if_else(high.is_valid(), classes, pa.scalar(None, pa.int16())))
        columns.append(low)
    if not columns:
        columns = [pa.array(np.zeros(count, np.int8))]
    return pa.RecordBatch.from_arrays(columns, schema=index.key_schema)


class StepRanges:
    """Makes the ranges of one step."""

    def __init__(self, step: Step, lengths: Sequence[int]) -> None:
        """``lengths``: of an interval's index the length classes in use."""
        self._step = step
        self._lengths = lengths

    def of(self, columns: Values, count: int) -> Iterator[tuple[RangeBounds, Numbers]]:
        """For combinations whose columns are given: ranges, and of which combination each is."""
        step = self._step
        known = np.ones(count, np.bool_)
        equal = []
        for each in step.equal:
            assert not hasattr(each.bound, "terms")
            equal.append(each.bound.values(columns, count))
            known &= _valid(equal[-1])
        low, high = None, None
        if step.low is not None:
            low, high, is_known = step.low.limits(columns, count)
            known &= is_known
        reached = None
        if step.high is not None:
            reached, _, is_known = step.high.limits(columns, count)
            known &= is_known
        places = np.flatnonzero(known)
        if not len(places):
            return
        if len(places) < count:
            kept = pa.array(places)
            equal = [each.take(kept) for each in equal]
            low, high, reached = (e if e is None else e.take(kept) for e in (low, high, reached))
        names = step.index.key_schema.names
        if reached is not None:
            if not self._lengths:
                return
            yield self._intervals(equal, reached, high, places)
            return
        prefix = pa.RecordBatch.from_arrays(equal, names=names[: len(equal)]) if equal else None
        if step.low is None:
            yield RangeBounds(prefix, None, None), places
            return
        if step.low.takes_nan:
            # So no row is in both: here all but NaN, there NaN alone.
            assert high is not None
            high = pc.if_else(pc.is_nan(high), pa.scalar(np.inf), high)
        yield (
            RangeBounds(prefix, low, high, step.low.includes_low, step.low.includes_high),
            places,
        )
        if step.low.takes_nan:
            nan = pa.array(np.full(len(places), np.nan))
            yield RangeBounds(prefix, nan, nan), places

    def _intervals(
        self,
        equal: Sequence[pa.Array],
        reached: pa.Array,
        high: pa.Array | None,
        places: Numbers,
    ) -> tuple[RangeBounds, Numbers]:
        """A range per class of lengths."""
        step, count, classes = self._step, len(places), len(self._lengths)
        assert step.low is not None
        assert high is not None
        every = pa.array(np.tile(np.arange(count), classes))
        columns = [each.take(every) for each in equal]
        columns.append(pa.array(np.repeat(np.array(self._lengths, np.int16), count)))
        low = pa.concat_arrays([least_low(reached, each) for each in self._lengths])
        prefix = pa.RecordBatch.from_arrays(
            columns, names=step.index.key_schema.names[: len(columns)]
        )
        bounds = RangeBounds(prefix, low, high.take(every), includes_high=step.low.includes_high)
        return bounds, np.tile(places, classes)


def _valid(values: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)
