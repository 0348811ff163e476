"""Conditions on several inputs that a multi-way join evaluates itself.

Such a condition is made of columns, literals, comparisons, AND, OR, NOT and a few functions. What
else it has of one input alone is computed below the join, as a column, where that happens for every
row anyway: not below an OR, whose other side may be there so that it is not evaluated.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lsmstate.joins.conditions.distances import DISTANCES
from lsmstate.joins.plan.conditions import (
    And,
    Column,
    Comparison,
    Expression,
    Literal,
    Not,
    Opaque,
    Or,
    columns_of,
    may_move,
)
from lsmstate.joins.plan.join_tree import Node

#: Operators by the names that the front end gives them.
_SIGNS: Final = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
    "IntegralDivide": "div",
}
#: Functions of which all arguments are evaluated.
_FUNCTIONS: Final = {"Abs": "abs", "Least": "least", "Greatest": "greatest", "DateDiff": "datediff"}
#: Functions of two columns whose distance is bounded.
_DISTANCES: Final = {
    **{name: name for name in DISTANCES},
    "Levenshtein": "levenshtein",
    "VectorL2Distance": "vector_l2_distance",
    "VectorCosineSimilarity": "vector_cosine_similarity",
}
_SUFFIXES: Final = {"IsNull": "IS NULL", "IsNotNull": "IS NOT NULL"}

#: Makes the column that holds an expression of the input at a position.
MakesColumn = Callable[[int, Expression], Column]


def is_known(
    condition: Expression, places: Mapping[Column, int], *, is_certain: bool = True
) -> bool:
    """Whether a multi-way join can evaluate it. ``places``: by column the position of its input.
    ``is_certain``: whether each row is in a combination for which it is evaluated."""
    read = {places[column] for column in columns_of(condition)}
    if len(read) < 2 or not may_move(condition):
        return False
    preparing = _Preparing(places, lambda _, __: Column("computed"))
    return preparing.of(condition, is_certain=is_certain) is not None


def split_known(
    conditions: Iterable[Expression], inputs: Sequence[Node], *, is_certain: bool = True
) -> tuple[list[Expression], list[Expression]]:
    """The conditions that a multi-way join of the inputs can evaluate, and the others; arguments
    as ``is_known`` has them."""
    places = {column: place for place, node in enumerate(inputs) for column in node.columns}
    known: list[Expression] = []
    rest: list[Expression] = []
    for each in conditions:
        is_one = is_known(each, places, is_certain=is_certain)
        (known if is_one else rest).append(each)
    return known, rest


def bounds_distance(condition: Expression) -> bool:
    """Whether it compares the distance of two columns, so that an index may find its pairs."""
    match condition:
        case Comparison(left, "<" | "<=" | ">" | ">=", right):
            return any(
                isinstance(side, Opaque) and _kind(_inside(side)) in _DISTANCES
                for side in (left, right)
            )
    return False


def _inside(side: Opaque) -> Opaque:
    """What a cast that widens is of."""
    inner = side.arguments[0] if side.widens else side
    return inner if isinstance(inner, Opaque) else side


def prepared(
    condition: Expression, places: Mapping[Column, int], make: MakesColumn
) -> Expression | None:
    """The condition as ``sql_text`` takes it.

    Args:
        condition: The condition.
        places: By column the position of its input.
        make: Makes a column for what is to be computed below the join.

    Returns:
        The condition over columns of the inputs; None if it cannot be evaluated by the join.
    """
    return _Preparing(places, make).of(condition, is_certain=True)


class _Preparing:
    def __init__(self, places: Mapping[Column, int], make: MakesColumn) -> None:
        self._places = places
        self._make = make

    def of(self, expression: Expression, *, is_certain: bool) -> Expression | None:
        """``is_certain``: whether it is evaluated for every combination."""
        match expression:
            case Column():
                return expression
            case Literal():
                return expression if expression.sql is not None else None
            case Comparison(left, operator, right):
                sides = [self._compared(side, is_certain) for side in (left, right)]
                if sides[0] is None or sides[1] is None:
                    return None
                return Comparison(sides[0], operator, sides[1])
            case And(operands) | Or(operands):
                is_one = is_certain and isinstance(expression, And)
                parts = self._all(operands, is_certain=is_one)
                return None if parts is None else replace(expression, operands=parts)
            case Not(operand):
                found = self.of(operand, is_certain=False)
                return None if found is None else Not(found)
            case Opaque():
                return self._opaque(expression, is_certain)

    def _opaque(self, expression: Opaque, is_certain: bool) -> Expression | None:
        kind = _kind(expression)
        is_column = expression.widens and isinstance(expression.arguments[0], Column)
        is_distance = kind in _DISTANCES and len(expression.arguments) == 2
        if (
            is_distance
            or kind in _SIGNS
            or kind in _FUNCTIONS
            or kind in ("UnaryMinus", *_SUFFIXES)
        ):
            parts = self._all(expression.arguments, is_certain=is_certain)
            if parts is not None:
                return replace(expression, arguments=parts)
        if expression.widens and isinstance(expression.arguments[0], Literal):
            return self.of(expression.arguments[0], is_certain=is_certain)
        read = {self._places[column] for column in columns_of(expression)}
        if len(read) == 1 and (is_certain or is_column):
            return self._make(read.pop(), expression)
        return None

    def _compared(self, side: Expression, is_certain: bool) -> Expression | None:
        """Comparing widens as such a cast does."""
        if _is_decimal_as_double(side):
            assert isinstance(side, Opaque)
            return side.arguments[0]
        if isinstance(side, Opaque) and side.widens:
            found = self.of(side.arguments[0], is_certain=is_certain)
            if found is not None:
                return found
        return self.of(side, is_certain=is_certain)

    def _all(
        self, parts: Sequence[Expression], *, is_certain: bool
    ) -> tuple[Expression, ...] | None:
        found = [self.of(part, is_certain=is_certain) for part in parts]
        return tuple(part for part in found if part is not None) if None not in found else None


def sql_text(condition: Expression, names: Mapping[Column, str]) -> str:
    """A prepared condition as SQL. ``names``: how its columns are called."""
    match condition:
        case Column():
            return names[condition]
        case Literal():
            assert condition.sql is not None, "a literal without SQL is not prepared"
            return condition.sql
        case Comparison(left, operator, right):
            return f"({sql_text(left, names)} {operator} {sql_text(right, names)})"
        case And(operands) | Or(operands):
            word = " AND " if isinstance(condition, And) else " OR "
            return f"({word.join(sql_text(operand, names) for operand in operands)})"
        case Not(operand):
            return f"(NOT {sql_text(operand, names)})"
        case Opaque():
            shown = [sql_text(argument, names) for argument in condition.arguments]
            kind = _kind(condition)
            if kind in _SIGNS:
                return f"({f' {_SIGNS[kind]} '.join(shown)})"
            if kind in _SUFFIXES:
                return f"({shown[0]} {_SUFFIXES[kind]})"
            if kind == "UnaryMinus":
                return f"(- {shown[0]})"
            return f"{(_FUNCTIONS | _DISTANCES)[kind]}({', '.join(shown)})"


def _is_decimal_as_double(side: Expression) -> bool:
    """Whether it is a decimal literal that is compared with doubles."""
    match side:
        case Opaque(name, (Literal(_, str(sql)),)):
            return bool(re.match(r"Cast\[double\b", name)) and sql.endswith("BD")
    return False


def _kind(expression: Opaque) -> str:
    """Its name without details, as in ``Add[...]``; empty for what gives null where others fail."""
    kind, _, details = expression.name.partition("[")
    return "" if kind.startswith("Try") or "TRY" in details.upper() else kind
