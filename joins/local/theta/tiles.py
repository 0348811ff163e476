"""Conditions that no index helps, such as ``x*y + u*v < c``, on tiles of pairs.

A comparison of DOUBLE arithmetic is compiled into steps for ``PairTiles``. What it cannot rule out
is a candidate, nulls and NaN among it; the condition as it is evaluated elsewhere decides.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.expressions.pair_tiles import PairTiles
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
)
from lsmstate.joins.local.parts.bound_rows import BLOCK_ROWS
from lsmstate.joins.local.parts.row_picks import Numbers

#: What a program of tiles has.
_OPERATORS: Final = ("+", "-", "*", "negative", "abs")
_SIGNS: Final = ("<", "<=", ">", ">=")
#: Operands that may wait in a program at a time, two of a comparison among them.
_DEEPEST: Final = 12


Floats = npt.NDArray[np.float64]


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
    combinations, ``right`` has rows of the stream ``target``. Cost: some passes over the pairs."""
    known, stored = _Columns(), _Columns()
    program: list[Step] = []
    for each in comparisons:
        for side in (each.left, each.right):
            program += _steps(side, known, stored, target)
        program.append(each.sign)
    pairs = PairTiles(
        program,
        [_floats(left(column)) for column in known.places],
        [_floats(right.column(column.name)) for column in stored.places],
        lefts,
        right.num_rows,
    )
    return iter(partial(pairs.next, BLOCK_ROWS), None)


#: A constant, a column of a side, or an operator.
Step = float | str | tuple[str, int]


class _Columns:
    """Columns of one side in the order in which they are first named."""

    def __init__(self) -> None:
        self.places: dict[Column, int] = {}

    def place(self, column: Column) -> int:
        return self.places.setdefault(column, len(self.places))


def _steps(
    expression: Expression, known: _Columns, stored: _Columns, target: str
) -> Iterator[Step]:
    """The expression in postfix order."""
    match expression:
        case Column(stream, _) if stream == target:
            yield "right", stored.place(expression)
        case Column():
            yield "left", known.place(expression)
        case Constant(value):
            assert isinstance(value, int | float | Decimal)
            yield float(value)
        case Call(name, arguments):
            for each in arguments:
                yield from _steps(each, known, stored, target)
            yield name


def _floats(values: pa.Array) -> Floats:
    """As DOUBLE, NaN for null."""
    found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64)


def _is_tiled(predicate: Compare, streams: Streams) -> bool:
    if predicate.sign not in _SIGNS or _depth(predicate) > _DEEPEST:
        return False
    kinds = [type_of(side, streams) for side in (predicate.left, predicate.right)]
    if not any(map(pa.types.is_float64, kinds)):
        return False
    return all(_is_double(part, streams) for part in all_parts(predicate) if part != predicate)


def _depth(part: Expression) -> int:
    """Operands that wait at most while a part is computed."""
    sides = part.arguments if isinstance(part, Call) else ()
    if isinstance(part, Compare):
        sides = part.left, part.right
    return max((at + _depth(each) for at, each in enumerate(sides)), default=1)


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
