"""Expressions of a plan as trees that a join computes itself, with Spark's meaning in ANSI mode."""

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions import predicate as p
from lsmstate.joins.conditions.columns import Column as StreamColumn
from lsmstate.joins.conditions.evaluate import type_of
from lsmstate.joins.conditions.parser import parse_condition
from lsmstate.joins.plan.conditions import (
    And,
    Column,
    Comparison,
    Expression,
    Literal,
    Not,
    Opaque,
    Or,
)

_OPERATORS: Final = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
    "IntegralDivide": "div",
}
_FUNCTIONS: Final = {
    "Abs": "abs",
    "UnaryMinus": "negative",
    "Least": "least",
    "Greatest": "greatest",
    "Coalesce": "coalesce",
    "DateDiff": "datediff",
    "Length": "length",
}
_DETAILS: Final = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_TYPES: Final = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
#: Digits of whole numbers by their bits.
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}


class Computing:
    """Turns expressions over the columns of a multi-way join into trees over columns of streams."""

    def __init__(
        self, columns: Mapping[Column, StreamColumn], streams: Mapping[str, pa.Schema]
    ) -> None:
        self._columns = columns
        self._streams = streams

    def of(self, expression: Expression) -> p.Expression:
        """The tree. InvalidArgumentError, with the part, for what is not computed here."""
        match expression:
            case Column():
                return self._columns[expression]
            case Literal(sql=sql):
                if sql is None:
                    raise _unknown(expression)
                return parse_condition(sql, {})
            case Comparison(left, sign, right):
                return _compared(sign, self.of(left), self.of(right))
            case And(operands):
                return p.And(tuple(map(self.of, operands)))
            case Or(operands):
                return p.Or(tuple(map(self.of, operands)))
            case Not(operand):
                return p.Not(self.of(operand))
            case Opaque():
                return self._opaque(expression)

    def type_of(self, tree: p.Expression) -> pa.DataType:
        """The type of a tree; of a column that in which it is stored."""
        if isinstance(tree, StreamColumn):
            return self._streams[tree.stream].field(tree.name).type
        return type_of(tree, self._streams)

    def _opaque(self, expression: Opaque) -> p.Expression:
        kind = expression.name.partition("[")[0]
        if kind == "Cast":
            return self._cast(expression)
        if "TRY" in expression.name.upper():
            raise _unknown(expression)
        if kind in _OPERATORS or kind in _FUNCTIONS:
            name = _OPERATORS.get(kind) or _FUNCTIONS[kind]
            return p.Call(name, tuple(map(self.of, expression.arguments)))
        match kind, tuple(map(self.of, expression.arguments)):
            case "IsNull", (value,):
                return p.IsNull(value)
            case "IsNotNull", (value,):
                return p.Not(p.IsNull(value))
            case "In", (value, *listed) if listed:
                equal = tuple(p.Equal(value, each) for each in listed)
                return p.Or(equal) if len(equal) > 1 else equal[0]
            case "If", (condition, value, other):
                return p.Case(((condition, value),), other)
            case "CaseWhen", parts:
                choices = tuple(zip(parts[::2], parts[1::2], strict=False))
                return p.Case(choices, parts[-1] if len(parts) % 2 else None)
        raise _unknown(expression)

    def _cast(self, expression: Opaque) -> p.Expression:
        """A cast to a type that holds all values of the other one."""
        inner = self.of(expression.arguments[0])
        found = _DETAILS.match(expression.name)
        assert found is not None, "a cast names its type"
        decimal = _DECIMAL.match(found[2])
        name = found[2].partition(",")[0]
        kind = (
            _TYPES.get(name) if decimal is None else pa.decimal128(int(decimal[1]), int(decimal[2]))
        )
        if kind is not None and isinstance(inner, p.Constant) and type(inner.value) is int:
            whole = kind.precision - kind.scale if pa.types.is_decimal(kind) else 0
            if abs(inner.value) < 10**whole:
                return inner  # beside a decimal it has its own digits
        if kind is None or not _holds(self.type_of(inner), kind):
            raise _unknown(expression)
        return p.Cast(inner, kind)


def _compared(sign: str, left: p.Expression, right: p.Expression) -> p.Expression:
    match sign:
        case "=":
            return p.Equal(left, right)
        case "<=>":
            return p.NullSafeEqual(left, right)
        case "<>" | "<" | "<=" | ">" | ">=":
            return p.Compare(sign, left, right)
    raise AssertionError(f"{sign} is no comparison")


def _holds(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether Spark casts between the types without an error, and as is done here."""
    if narrow == wide or pa.types.is_null(narrow):
        return True
    if pa.types.is_signed_integer(narrow):
        if pa.types.is_decimal(wide):
            return bool(wide.precision - wide.scale >= _DIGITS[narrow.bit_width])
        if pa.types.is_floating(wide):
            return bool(wide.bit_width == 64)
        return bool(pa.types.is_signed_integer(wide) and wide.bit_width > narrow.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(whole and wide.scale >= narrow.scale)
    return bool(pa.types.is_float32(narrow) and pa.types.is_float64(wide))


def _unknown(expression: Expression) -> InvalidArgumentError:
    return InvalidArgumentError(f"{expression} is not computed inside the join")
