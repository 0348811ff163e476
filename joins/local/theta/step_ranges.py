"""The ranges of keys that a step looks up, and the keys that rows are stored under."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.conditions.key_parts import KeyPart
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.dense_ranges import (
    LEAST,
    DenseRanges,
    is_readable,
    leave_no_gap,
)
from lsmstate.joins.local.theta.lengths import least_low, length_classes
from lsmstate.joins.local.theta.limits import plain
from lsmstate.joins.local.theta.zones import Zones, asked_zones, taken
from lsmstate.joins.specs.theta import Step, ThetaIndex, Zone
from lsmstate.store import MultimapStore, RangeBounds

#: Ranges that may be looked up at once in any case; each takes some 100 bytes.
LEAST_RANGES: Final = 1 << 14
#: Bytes of the memory cap for each range that may be looked up at once.
CAP_BYTES: Final = 512
Item = TypeVar("Item")


def key_values(index: ThetaIndex, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The keys that rows are stored under; null where a row can match nothing."""
    values, count = partial(_own_column, rows), rows.num_rows
    columns = [part.equal_values(values, count) for part in index.equal]
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


def most_ranges(store: MultimapStore) -> int:
    """How many ranges may be looked up at once: they take a quarter of the memory cap."""
    return max(LEAST_RANGES, store.stats().memory_limit_bytes // CAP_BYTES)


class StepRanges:
    """Makes the ranges of one step."""

    def __init__(
        self,
        step: Step,
        lengths: Sequence[int],
        most_ranges: int,
        *,
        may_be_dense: bool,
        may_repeat: bool,
        zones: Sequence[Zone] = (),
    ) -> None:
        """
        Args:
            step: The step.
            lengths: Of an interval's index the length classes in use.
            most_ranges: How many ranges may be looked up at once.
            may_be_dense: Whether ranges that leave no gap are to be told as such.
            may_repeat: Whether a row may lie in ranges that are looked up apart.
            zones: The step's, if blocks of rows are to be left out.
        """
        self._step = step
        self._lengths = lengths
        self._most_ranges = most_ranges
        self._may_be_dense = may_be_dense and not step.equal
        self._may_repeat = may_repeat
        self._zones = zones

    def of(
        self, columns: Values, count: int
    ) -> Iterator[tuple[RangeBounds | DenseRanges, Numbers]]:
        """For combinations whose columns are given: ranges, and of which combination each is."""
        step = self._step
        known = np.ones(count, np.bool_)
        equal = []
        for each in step.equal:
            assert isinstance(each.bound, KeyPart)
            equal.append(each.bound.equal_values(columns, count))
            known &= _valid(equal[-1])
        low, high = None, None
        if step.low is not None:
            low, high, is_known = step.low.limits(columns, count)
            known &= is_known
        reached = None
        if step.high is not None:
            reached, _, is_known = step.high.limits(columns, count)
            known &= is_known
        zones, is_known = asked_zones(self._zones, columns, count)
        places = np.flatnonzero(known & is_known)
        if not len(places):
            return
        if len(places) < count:
            kept = pa.array(places)
            equal = [each.take(kept) for each in equal]
            low, high, reached = (e if e is None else e.take(kept) for e in (low, high, reached))
            zones = taken(zones, kept)
        names = step.index.key_schema.names
        if reached is not None:
            if not self._lengths:
                return
            assert high is not None
            yield from self._intervals(equal, reached, high, zones, places)
            return
        prefix = pa.RecordBatch.from_arrays(equal, names=names[: len(equal)]) if equal else None
        if step.low is None:
            yield from self._bounded(RangeBounds(prefix), places)
            return
        if step.low.takes_nan:
            # So no row is in both: here all but NaN, there NaN alone.
            assert high is not None
            high = pc.if_else(pc.is_nan(high), pa.scalar(np.inf), high)
        includes = step.low.includes_low, step.low.includes_high
        is_open = self._may_be_dense and (low is None or high is None)
        if is_open and is_readable(step.low.part.type):
            yield DenseRanges(low, high, *includes), places
        else:
            bounds = RangeBounds(prefix, low, high, *includes, zones=zones)
            yield from self._bounded(bounds, places)
        if step.low.takes_nan:
            nan = pa.array(np.full(len(places), np.nan))
            yield from self._bounded(RangeBounds(prefix, nan, nan, zones=zones), places)

    def _intervals(
        self,
        equal: Sequence[pa.Array],
        reached: pa.Array,
        high: pa.Array,
        zones: Zones,
        places: Numbers,
    ) -> Iterator[tuple[RangeBounds | DenseRanges, Numbers]]:
        """A range per class of lengths."""
        step, count = self._step, len(places)
        assert step.low is not None
        if not equal:  # then the ranges of all classes ascend, and are sorted already
            order = np.argsort(plain(high))
            by_high = pa.array(order)
            reached, high, places = reached.take(by_high), high.take(by_high), places[order]
            zones = taken(zones, by_high)
        includes_high = step.low.includes_high
        may_be_dense = self._may_be_dense and is_readable(reached.type)
        if may_be_dense and count >= LEAST:
            zones = {}  # what leaves gaps then is narrow, and most rows in it match
        lows: dict[int, pa.Array] = {}
        for each in self._lengths:
            low = least_low(reached, each)
            if may_be_dense and leave_no_gap(low, high):
                yield DenseRanges(low, high, includes_high=includes_high, length=each), places
            else:
                lows[each] = low
        # Classes share no keys, so nothing is read twice if some of them are looked up at a time.
        together = max(1, self._most_ranges // count)
        for some in batched(lows.items(), together):
            every = pa.array(np.tile(np.arange(count), len(some)))
            columns = [each.take(every) for each in equal]
            columns.append(pa.array(np.repeat(np.array([n for n, _ in some], np.int16), count)))
            prefix = pa.RecordBatch.from_arrays(
                columns, names=step.index.key_schema.names[: len(columns)]
            )
            low = pa.concat_arrays([low for _, low in some])
            bounds = RangeBounds(
                prefix,
                low,
                high.take(every),
                includes_high=includes_high,
                zones=taken(zones, every),
            )
            yield from self._bounded(bounds, np.tile(places, len(some)))

    def _bounded(
        self, bounds: RangeBounds, owners: Numbers
    ) -> Iterator[tuple[RangeBounds, Numbers]]:
        """The same in parts of a bounded size, in the order of lower bounds: few rows are in ranges
        of several parts."""
        if len(owners) <= self._most_ranges or not self._may_repeat:
            yield bounds, owners
            return
        equal, low, high = bounds.equal, bounds.low, bounds.high
        assert equal is None or isinstance(equal, pa.RecordBatch)
        assert low is None or isinstance(low, pa.Array)
        assert high is None or isinstance(high, pa.Array)
        columns = [] if equal is None else list(equal.columns)
        columns += [each for each in (low, high) if each is not None]
        names = [str(at) for at in range(len(columns))]
        order = pc.sort_indices(
            pa.RecordBatch.from_arrays(columns, names), [(name, "ascending") for name in names]
        )
        for start in range(0, len(owners), self._most_ranges):
            some = order.slice(start, self._most_ranges)
            part = replace(
                bounds,
                equal=None if equal is None else equal.take(some),
                low=None if low is None else low.take(some),
                high=None if high is None else high.take(some),
                zones=taken(bounds.zones, some),
            )
            yield part, owners[some.to_numpy()]


def batched(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """The items, so many at a time."""
    left = iter(items)
    while some := list(islice(left, count)):
        yield some


def _valid(values: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)
