"""Rows that stand for several results each, and the three things that are done with them.

- *lifted*: each row's own values of partial aggregates
- *grouped*: rows of one group become one
- *repeated*: each row counts several times

A sum of whole numbers is exact (``exact.py``). An order of numbers with NaN, which is the greatest,
is that of whole numbers too: ``lifted`` makes them, and ``as_floats`` takes them back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.joins.conditions.predicate import Expression
from lsmstate.joins.local.aggregates.exact import addable, multiplied, together, whole
from lsmstate.joins.specs.aggregates import Partial

#: The values of an expression, one for each row.
ValueOf = Callable[[Expression], pa.Array]

_NAN: Final = np.float64("nan")
_SIGN: Final = np.int64(np.iinfo(np.int64).max)
#: How values of a group become one, by the function.
_MERGES: Final = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True)
class Reduced:
    """Row i has the group that ``groups`` say, and the values of partial aggregates over all that
    it stands for."""

    groups: Sequence[pa.Array]
    values: Sequence[pa.Array]

    def __len__(self) -> int:
        return len((*self.groups, *self.values)[0])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.groups, *self.values))


def lifted(partials: Sequence[Partial], value_of: ValueOf, rows: int) -> list[pa.Array]:
    """The values of partial aggregates of each of some rows by itself."""
    return [_own(partial, value_of, rows) for partial in partials]


def ones(rows: int) -> pa.Array:
    return pa.array(np.ones(rows, dtype=np.int64))


def repeated(
    partials: Sequence[Partial], values: Sequence[pa.Array], times: pa.Array
) -> list[pa.Array]:
    """The values, where each row counts so many times, at least once."""
    return [
        value if partial.function in ("min", "max") else _multiplied(value, times)
        for partial, value in zip(partials, values, strict=True)
    ]


def grouped(partials: Sequence[Partial], found: Reduced) -> Reduced:
    """One row for each group, in any order."""
    if not len(found):
        return found
    groups = found.groups or [pa.repeat(pa.scalar(0, pa.int8()), len(found))]
    merges = [_MERGES[partial.function] for partial in partials]
    values = [
        addable(value) if merge == "sum" and not pa.types.is_floating(value.type) else value
        for value, merge in zip(found.values, merges, strict=True)
    ]
    keys = [f"g{at}" for at in range(len(groups))]
    names = [f"v{at}" for at in range(len(values))]
    table = pa.Table.from_arrays([*groups, *values], names=[*keys, *names])
    wanted = list(zip(names, merges, strict=True))
    made = table.group_by(keys, use_threads=False).aggregate(wanted)
    columns = {name: made.column(name).combine_chunks() for name in made.column_names}
    return Reduced(
        [columns[key] for key in keys][: len(found.groups)],
        [columns[f"{name}_{merge}"] for name, merge in wanted],
    )


def concatenated(parts: Sequence[Reduced]) -> Reduced:
    """The rows of all parts."""
    return Reduced(
        [pa.concat_arrays(list(arrays)) for arrays in zip(*(p.groups for p in parts), strict=True)],
        [together(list(arrays)) for arrays in zip(*(p.values for p in parts), strict=True)],
    )


def taken(found: Reduced, places: npt.NDArray[np.int64]) -> Reduced:
    """The rows at some places."""
    at = pa.array(places)
    return replace(
        found,
        groups=[array.take(at) for array in found.groups],
        values=[array.take(at) for array in found.values],
    )


def _own(partial: Partial, value_of: ValueOf, rows: int) -> pa.Array:
    if partial.of is None:
        return ones(rows)
    value = value_of(partial.of)
    if partial.function == "count":
        return value.is_valid().cast(pa.int64())
    if partial.function == "sum":
        return value.cast(pa.float64()) if pa.types.is_floating(value.type) else whole(value)
    return _ordered(value) if pa.types.is_floating(value.type) else value


def _multiplied(value: pa.Array, times: pa.Array) -> pa.Array:
    if pa.types.is_floating(value.type):
        return pc.multiply(value, times.cast(pa.float64(), safe=False))
    return multiplied(value, times)


def _ordered(values: pa.Array) -> pa.Array:
    """Numbers as whole ones in the same order, NaN last."""
    wide = values.cast(pa.float64())
    nulls = np.asarray(wide.is_null().to_numpy(zero_copy_only=False))
    numbers = np.array(wide.fill_null(0.0).to_numpy())
    numbers[np.isnan(numbers)] = _NAN
    bits = numbers.view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ _SIGN, bits), mask=nulls)


def as_floats(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The inverse of what ``lifted`` does with numbers that are compared."""
    nulls = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    bits = np.array(values.fill_null(0).to_numpy())
    numbers = np.where(bits < 0, bits ^ _SIGN, bits).view(np.float64)
    return pa.array(numbers, mask=nulls).cast(kind)
