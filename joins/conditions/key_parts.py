"""Expressions of one side of a comparison that rows can be ordered by, or looked up by.

An index is kept for rows that may find no partner, so what it holds must fail on no row. A whole
number that overflows equals nothing. In a range it becomes the greatest or the least one: whoever
meets such a row as a partner evaluates the condition as it is written, and that fails as Spark's
ANSI mode does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values, common_type, evaluated, type_of
from lsmstate.joins.conditions.key_types import cast_key, keeps_differences
from lsmstate.joins.conditions.predicate import (
    Call,
    Constant,
    Element,
    Expression,
    Field,
    all_parts,
    text_of,
)

#: Types of the streams' columns.
Streams = Mapping[str, pa.Schema]

_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_STEPS: Final = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A column of a key: an expression that fails on no row, in the type it is compared in."""

    expression: Expression
    type: pa.DataType

    def __str__(self) -> str:
        return text_of(self.expression)

    @property
    def may_fail(self) -> bool:
        """Whether the expression, as it is written, may overflow."""
        return _is_computed_whole(self.expression)

    def values(self, columns: Values, rows: int) -> pa.Array:
        """Of each row, the value. Cost: a pass an operator."""
        if self.may_fail:
            found = _whole_values(self.expression, columns, rows)
        else:
            found = evaluated(self.expression, columns, rows)
        return cast_key(found, self.type)

    def equal_values(self, columns: Values, rows: int) -> pa.Array:
        """The same to be equal to; null where it overflows."""
        values = self.values(columns, rows)
        if not self.fails(columns, rows):
            return values
        parts = (partial(_one_row, columns, at) for at in range(rows))
        failing = np.array([self.fails(part, 1) for part in parts], np.bool_)
        return pc.if_else(pa.array(failing), pa.scalar(None, values.type), values)

    def fails(self, columns: Values, rows: int) -> bool:
        """Whether the expression, as it is written, overflows on a row."""
        if not self.may_fail:
            return False
        try:
            evaluated(self.expression, columns, rows)
        except InvalidArgumentError:
            return True
        return False


def own_column(rows: pa.RecordBatch) -> Values:
    """The columns of rows, whatever stream they are said to be of."""
    return lambda column: rows.column(column.name)


def compared_parts(
    left: Expression, right: Expression, streams: Streams
) -> tuple[KeyPart, KeyPart] | None:
    """Both sides of a comparison in the type they are compared in; None if a side may fail on a
    row, or if no key has that type."""
    if not (never_fails(left, streams) and never_fails(right, streams)):
        return None
    kinds = type_of(left, streams), type_of(right, streams)
    if any(map(pa.types.is_null, kinds)):
        return None
    try:
        kind = _widest(common_type(*kinds))
        KeyCodec(pa.schema([("k", kind)]))
    except InvalidArgumentError:
        return None
    is_text = [pa.types.is_string(each) for each in kinds]
    is_cut = pa.types.is_decimal(kind) and not all(keeps_differences(each, kind) for each in kinds)
    if pa.types.is_nested(kind) or is_text[0] != is_text[1] or is_cut:
        return None
    return KeyPart(left, kind), KeyPart(right, kind)


def never_fails(expression: Expression, streams: Streams) -> bool:
    """Whether it has a value, or null, for every row."""
    return _is_total(expression, streams) or _is_whole(expression, streams)


def _widest(kind: pa.DataType) -> pa.DataType:
    """One type for all whole numbers, and one for all floating ones, which order them alike."""
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _is_total(expression: Expression, streams: Streams) -> bool:
    match expression:
        case Column():
            return True
        case Constant(value):
            return value is not None
        case Field(of) | Element(of, Constant(str())):
            return _is_total(of, streams)
        case Call("get_json_object" | "length" | "concat" | "date_bin", arguments):
            return all(_is_total(each, streams) for each in arguments)
        case Call("coalesce" | "least" | "greatest", arguments):
            return _are_alike(arguments, streams)
        case Call("+" | "-" | "*" | "negative" | "abs", arguments):
            is_float = pa.types.is_floating(type_of(expression, streams))
            return is_float and all(
                never_fails(each, streams) and _is_number(type_of(each, streams))
                for each in arguments
            )
    return False


def _are_alike(arguments: tuple[Expression, ...], streams: Streams) -> bool:
    kinds = {str(type_of(each, streams)) for each in arguments}
    return len(kinds) == 1 and all(_is_total(each, streams) for each in arguments)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_floating(kind))


def _is_whole(expression: Expression, streams: Streams) -> bool:
    """Whether it is computed of whole numbers by nothing but sums, differences and products."""
    match expression:
        case Column() | Constant():
            return bool(pa.types.is_signed_integer(type_of(expression, streams)))
        case Call("+" | "-" | "*" | "negative" | "abs", arguments):
            return all(_is_whole(each, streams) for each in arguments)
    return False


def _one_row(columns: Values, at: int, column: Column) -> pa.Array:
    return columns(column).slice(at, 1)


def _is_computed_whole(expression: Expression) -> bool:
    """Whether it is a sum, a difference or a product of nothing but columns and whole numbers."""
    if not isinstance(expression, Call):
        return False
    signs = ("+", "-", "*", "negative", "abs")
    calls = (part for part in all_parts(expression) if isinstance(part, Call))
    if not all(call.name in signs for call in calls):
        return False
    constants = (part for part in all_parts(expression) if isinstance(part, Constant))
    return all(type(constant.value) is int for constant in constants)


def _whole_values(expression: Expression, columns: Values, rows: int) -> pa.Array:
    """As BIGINT, the nearest one where it overflows. What has other columns is evaluated as it
    is."""
    kinds = [columns(part).type for part in all_parts(expression) if isinstance(part, Column)]
    if not all(map(pa.types.is_integer, kinds)):
        return evaluated(expression, columns, rows)
    try:
        return _whole(expression, columns, rows)
    except pa.ArrowInvalid:
        found = _unbounded(expression, columns, rows)
        near = [None if each is None else min(max(each, _LEAST), _MOST) for each in found]
        return pa.array(near, pa.int64())


def _whole(expression: Expression, columns: Values, rows: int) -> pa.Array:
    match expression:
        case Column():
            return columns(expression).cast(pa.int64())
        case Constant(value):
            return pa.repeat(pa.scalar(value, pa.int64()), rows)
        case Call("negative", (of,)):
            return pc.negate_checked(_whole(of, columns, rows))
        case Call("abs", (of,)):
            return pc.abs_checked(_whole(of, columns, rows))
        case Call(sign, (left, right)):
            return _STEPS[sign](_whole(left, columns, rows), _whole(right, columns, rows))
    raise AssertionError(f"{text_of(expression)} is not computed of whole numbers")


def _unbounded(expression: Expression, columns: Values, rows: int) -> "np.ndarray[Any, Any]":
    """As Python's numbers, which have no bounds; None for null."""
    match expression:
        case Column():
            return np.array([*columns(expression).to_pylist(), None], object)[:-1]
        case Constant(value):
            return np.full(rows, value, object)
    assert isinstance(expression, Call)
    sides = [_unbounded(each, columns, rows) for each in expression.arguments]
    found = np.empty(rows, object)
    for at in range(rows):
        values = [side[at] for side in sides]
        found[at] = None if None in values else _step(expression.name, values)
    return found


def _step(name: str, values: list[int]) -> int:
    if name in ("negative", "abs"):
        return -values[0] if name == "negative" else abs(values[0])
    left, right = values
    return {"+": left + right, "-": left - right}[name] if name != "*" else left * right
