"""Conditions that no index helps, such as ``x*y + u*v < c``, on tiles of pairs.

A comparison of DOUBLE arithmetic is computed for a few rows of one side beside a few thousand of
the other, so that what it works on stays in the processor's cache. What it cannot rule out is a
candidate, nulls and NaN among it; the condition as it is evaluated elsewhere decides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values, type_of
from lsmstate.joins.conditions.key_parts import Streams
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.predicate import (
    Call,
    Compare,
    Constant,
    Expression,
    all_parts,
    columns_of,
)
from lsmstate.joins.local.parts.row_picks import Numbers

#: Pairs of a tile, and rows of the stored side in it.
TILE_PAIRS: Final = 1 << 14
TILE_ROWS: Final = 1 << 11

Floats = npt.NDArray[np.float64]

_OPERATORS: Final[Mapping[str, Callable[..., Any]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "negative": np.negative,
    "abs": np.abs,
}
#: What rules a pair out, by the sign of the comparison; nothing that is compared with NaN does.
_RULED_OUT: Final[Mapping[str, Callable[..., Any]]] = {
    "<": np.greater_equal,
    "<=": np.greater,
    ">": np.less_equal,
    ">=": np.less,
}


def tiled(conditions: Sequence[PairCondition], streams: Streams) -> tuple[Compare, ...]:
    """The comparisons of DOUBLE arithmetic among some conditions."""
    return tuple(
        each.predicate
        for each in conditions
        if isinstance(each.predicate, Compare) and _is_tiled(each.predicate, streams)
    )


def candidates(
    comparisons: Sequence[Compare], left: Values, lefts: int, right: pa.RecordBatch, target: str
) -> Iterator[tuple[Numbers, Numbers]]:
    """Places of pairs that no comparison rules out. ``left`` gives the columns of ``lefts``
    combinations, ``right`` has rows of the stream ``target``. Cost: some passes over a tile."""
    columns: dict[Column, Floats] = {}
    for column in (c for each in comparisons for c in columns_of(each)):
        if column.stream == target:
            columns[column] = _floats(right.column(column.name))[None, :]
        elif column not in columns:
            columns[column] = _floats(left(column))[:, None]
    waiting: list[tuple[Numbers, Numbers]] = []
    count = 0
    for first in range(0, right.num_rows, TILE_ROWS):
        wide = min(TILE_ROWS, right.num_rows - first)
        high = max(1, TILE_PAIRS // wide)
        for begin in range(0, lefts, high):
            part = {
                c: values[:, first : first + wide]
                if c.stream == target
                else values[begin : begin + high]
                for c, values in columns.items()
            }
            is_open = np.ones((min(high, lefts - begin), wide), np.bool_)
            with np.errstate(all="ignore"):
                for each in comparisons:
                    sides = _value(each.left, part), _value(each.right, part)
                    is_open &= ~_RULED_OUT[each.sign](*sides)
            found = np.flatnonzero(is_open)
            if len(found):
                high_at, wide_at = np.divmod(found, wide)
                waiting.append((begin + high_at, first + wide_at))
                count += len(found)
            if count >= TILE_PAIRS:
                yield _together(waiting)
                waiting, count = [], 0
    if waiting:
        yield _together(waiting)


def _together(pairs: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    lefts, rights = zip(*pairs, strict=True)
    return np.concatenate(lefts), np.concatenate(rights)


def _value(expression: Expression, columns: Mapping[Column, Floats]) -> Any:
    match expression:
        case Column():
            return columns[expression]
        case Constant(value):
            assert isinstance(value, int | float | Decimal)
            return np.float64(float(value))
    assert isinstance(expression, Call)
    return _OPERATORS[expression.name](*(_value(each, columns) for each in expression.arguments))


def _floats(values: pa.Array) -> Floats:
    """As DOUBLE, NaN for null."""
    found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64)


def _is_tiled(predicate: Compare, streams: Streams) -> bool:
    if predicate.sign not in _RULED_OUT:
        return False
    kinds = [type_of(side, streams) for side in (predicate.left, predicate.right)]
    if not any(map(pa.types.is_float64, kinds)):
        return False
    return all(_is_double(part, streams) for part in all_parts(predicate) if part != predicate)


def _is_double(part: Expression, streams: Streams) -> bool:
    match part:
        case Column():
            kind = type_of(part, streams)
            return bool(pa.types.is_float64(kind) or pa.types.is_signed_integer(kind))
        case Constant(value):
            is_number = isinstance(value, int | float | Decimal)
            return is_number and not isinstance(value, bool)
        case Call(name, _):
            return name in _OPERATORS and bool(pa.types.is_float64(type_of(part, streams)))
    return False
