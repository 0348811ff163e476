"""Stored rows by ranges of their keys, read from a store in key order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import evaluated
from lsmstate.joins.conditions.predicate import And, Compare, Equal, Expression
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.store import StoreReader


@dataclass(frozen=True)
class RangeBounds:
    """One range of keys per row; a null anywhere matches nothing."""

    equal: pa.RecordBatch | None
    low: pa.Array | None
    high: pa.Array | None
    includes_low: bool = True
    includes_high: bool = True


class RangeMatches(NamedTuple):
    """A piece of the stored rows in key order: range ``ranges[i]`` has the rows from ``first[i]``
    to ``stop[i]``."""

    rows: pa.RecordBatch
    ranges: Numbers
    first: Numbers
    stop: Numbers


def probe_ranges(
    store: StoreReader, stream: str, bounds: RangeBounds, max_bytes: int
) -> Iterator[RangeMatches]:
    """The rows that lie in the ranges."""
    sides = [*(bounds.equal.columns if bounds.equal is not None else ())]
    count = len(sides[0]) if sides else len(bounds.low if bounds.low is not None else bounds.high)
    for keys, rows in store.iterate(stream, max_bytes=max_bytes):
        found = []
        for at in range(count):
            mask = _in_range(keys, bounds, at)
            places = np.flatnonzero(mask)
            if len(places):
                found.append((at, int(places[0]), int(places[-1]) + 1))
        if found:
            ranges, first, stop = (np.array(each, np.int64) for each in zip(*found, strict=True))
            yield RangeMatches(rows, ranges, first, stop)


def _in_range(keys: pa.RecordBatch, bounds: RangeBounds, at: int) -> npt.NDArray[np.bool_]:
    compared: list[Expression] = []
    values: dict[Column, pa.Array] = {}

    def compare(column: pa.Array, place: int, kind: type | str) -> None:
        mine, other = Column("key", str(place)), Column(f"bound {len(compared)}", str(place))
        values[mine] = keys.column(place)
        values[other] = column.slice(at, 1).take(pa.array(np.zeros(len(keys), np.int64)))
        compared.append(
            Equal(mine, other) if kind == "=" else Compare(kind, mine, other)  # type: ignore[arg-type]
        )

    equal = bounds.equal.columns if bounds.equal is not None else []
    for place, column in enumerate(equal):
        compare(column, place, "=")
    if bounds.low is not None:
        compare(bounds.low, len(equal), ">=" if bounds.includes_low else ">")
    if bounds.high is not None:
        compare(bounds.high, len(equal), "<=" if bounds.includes_high else "<")
    found = evaluated(And(tuple(compared)), values.__getitem__, len(keys))
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False)).astype(np.bool_)
