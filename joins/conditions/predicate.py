"""The tree of a condition: predicates of three values over expressions of columns.

A tree is a value. ``parser`` makes it of SQL text, ``evaluate`` judges rows by it, and ``classify``
says which parts of it are keys, time intervals and filters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal

import pyarrow as pa

from lsmstate.joins.conditions.columns import Column, quoted
from lsmstate.joins.conditions.literals import duration_text

#: Operators by their signs; every other call is written as a function.
OPERATORS: Final = ("+", "-", "*", "/", "%", "div")
#: Functions whose result is null where one of their arguments is.
NULL_IF_ANY: Final = frozenset(
    {*OPERATORS, "negative", "abs", "length", "concat", "datediff", "date_add"}
    | {"cast", "get_json_object"}
)
#: Types that text is cast to, by their names in Arrow.
_SQL_TYPES: Final = {
    "int64": "BIGINT",
    "double": "DOUBLE",
    "date32[day]": "DATE",
    "bool": "BOOLEAN",
}


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time."""

    length_us: int
    has_days: bool
    """Whether it was written with days or weeks, which a calendar may count otherwise."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of a type; None is null."""

    value: int | float | Decimal | str | bool | date | datetime | Duration | None
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct."""

    of: "Expression"
    name: str


@dataclass(frozen=True, slots=True)
class Element:
    """What a map has at a key, or an array at a place from 0."""

    of: "Expression"
    key: Constant


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function that is evaluated here."""

    name: str
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """The value in another type, as Spark's comparison makes it."""

    of: "Expression"
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first condition that is true."""

    choices: tuple[tuple["Expression", "Expression"], ...]
    otherwise: "Expression | None"


@dataclass(frozen=True, slots=True)
class Unknown:
    """What is not evaluated here. Spark may know it."""

    what: str
    """A function's name, or another part of SQL."""
    text: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class NullSafeEqual:
    """True of two nulls, and never unknown."""

    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Compare:
    sign: Literal["<>", "<", "<=", ">", ">="]
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Between:
    value: "Expression"
    low: "Expression"
    high: "Expression"


@dataclass(frozen=True, slots=True)
class Like:
    value: "Expression"
    pattern: "Expression"
    escape: str


@dataclass(frozen=True, slots=True)
class IsNull:
    value: "Expression"


@dataclass(frozen=True, slots=True)
class Not:
    part: "Expression"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Expression", ...]


Predicate = Equal | NullSafeEqual | Compare | Between | Like | IsNull | Not | And | Or
Expression = Column | Constant | Field | Element | Call | Cast | Case | Unknown | Predicate


def parts_of(expression: Expression) -> tuple[Expression, ...]:
    """The expressions it is made of, from left to right."""
    match expression:
        case Call(_, arguments):
            return arguments
        case Case(choices, otherwise):
            listed = tuple(part for choice in choices for part in choice)
            return listed if otherwise is None else (*listed, otherwise)
        case Field(of) | Element(of) | Cast(of):
            return (of,)
        case Equal(left, right) | NullSafeEqual(left, right) | Compare(_, left, right):
            return left, right
        case Between(value, low, high):
            return value, low, high
        case Like(value, pattern):
            return value, pattern
        case IsNull(value) | Not(value):
            return (value,)
        case And(parts) | Or(parts):
            return parts
        case Unknown(_, _, columns):
            return columns
    return ()


def all_parts(expression: Expression) -> Iterator[Expression]:
    """The expression and all that is in it, from left to right."""
    stack = [expression]
    while stack:
        found = stack.pop()
        yield found
        stack += reversed(parts_of(found))


def columns_of(expression: Expression) -> tuple[Column, ...]:
    """All columns that it names, each once."""
    found = (part for part in all_parts(expression) if isinstance(part, Column))
    return tuple(dict.fromkeys(found))


def streams_of(expression: Expression) -> set[str]:
    """The streams of its columns."""
    return {column.stream for column in columns_of(expression)}


def conjuncts_of(expression: Expression) -> tuple[Expression, ...]:
    """What has to be true, each by itself, for it to be true."""
    if isinstance(expression, And):
        return tuple(part for each in expression.parts for part in conjuncts_of(each))
    return (expression,)


def with_columns(expression: Expression, columns: Mapping[Column, Column]) -> Expression:
    """The expression over other columns."""
    if isinstance(expression, Column):
        return columns[expression]
    if isinstance(expression, Constant):
        return expression

    def changed(value: Any) -> Any:
        if isinstance(value, Expression) and not isinstance(value, Constant):
            return with_columns(value, columns)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return replace(
        expression, **{f.name: changed(getattr(expression, f.name)) for f in fields(expression)}
    )


def needed_streams(expression: Expression, *, is_true: bool = True) -> set[str]:
    """The streams without a row of which, so with nulls for all their columns, it is never true;
    or never false."""
    match expression:
        case Not(part):
            return needed_streams(part, is_true=not is_true)
        case And(parts) | Or(parts):
            found = [needed_streams(each, is_true=is_true) for each in parts]
            of_all = isinstance(expression, And) == is_true
            return set.union(*found) if of_all else set.intersection(*found)
        case IsNull(value):
            return set() if is_true else _nulled(value)
        case Between(value, low, high):
            sides = Compare(">=", value, low), Compare("<=", value, high)
            return needed_streams(And(sides), is_true=is_true)
    return _nulled(expression)


def _nulled(expression: Expression) -> set[str]:
    """The streams with nothing but nulls of which it is null."""
    match expression:
        case Column(stream):
            return {stream}
        case Field(of) | Element(of) | Cast(of):
            return _nulled(of)
        case Call(name, arguments):
            found = [_nulled(each) for each in arguments]
            return set.union(*found) if name in NULL_IF_ANY else set.intersection(*found)
        case Equal(left, right) | Compare(_, left, right) | Like(left, right):
            return _nulled(left) | _nulled(right)
        case Not(part):
            return _nulled(part)
    return set()


def text_of(expression: Expression) -> str:
    """The expression as SQL. What reads it makes the same tree of it."""
    match expression:
        case Column():
            return str(expression)
        case Constant(value, kind):
            return _constant_text(value, kind)
        case Field(of, name):
            return f"{_operand_text(of)}.{quoted(name)}"
        case Element(of, key):
            return f"{_operand_text(of)}[{text_of(key)}]"
        case Cast(of, kind):
            return f"CAST({text_of(of)} AS {_SQL_TYPES.get(str(kind), str(kind))})"
        case Call("negative", (of,)):
            return f"-{_operand_text(of)}"
        case Call(name, arguments) if name in OPERATORS:
            left, right = map(_operand_text, arguments)
            return f"{left} {name} {right}"
        case Call(name, arguments):
            return f"{name}({', '.join(map(text_of, arguments))})"
        case Case(choices, otherwise):
            listed = " ".join(f"WHEN {text_of(a)} THEN {text_of(b)}" for a, b in choices)
            last = "" if otherwise is None else f" ELSE {text_of(otherwise)}"
            return f"CASE {listed}{last} END"
        case Unknown(_, text):
            return text
    return _predicate_text(expression)


def _predicate_text(predicate: Expression) -> str:
    match predicate:
        case Equal(left, right):
            return f"{_operand_text(left)} = {_operand_text(right)}"
        case NullSafeEqual(left, right):
            return f"{_operand_text(left)} <=> {_operand_text(right)}"
        case Compare(sign, left, right):
            return f"{_operand_text(left)} {sign} {_operand_text(right)}"
        case Between(value, low, high):
            of, first, last = map(_operand_text, (value, low, high))
            return f"{of} BETWEEN {first} AND {last}"
        case Like(value, pattern, escape):
            shown = "" if escape == "\\" else f" ESCAPE {_string_text(escape)}"
            return f"{_operand_text(value)} LIKE {_operand_text(pattern)}{shown}"
        case IsNull(value):
            return f"{_operand_text(value)} IS NULL"
        case Not(part):
            return f"NOT ({text_of(part)})"
        case And(parts) | Or(parts):
            word = " AND " if isinstance(predicate, And) else " OR "
            return "(" + word.join(map(text_of, parts)) + ")"
    raise AssertionError(f"{predicate} is no predicate")


def _operand_text(expression: Expression) -> str:
    """In parentheses where another operator beside it could take a part of it."""
    shown = text_of(expression)
    is_operator = isinstance(expression, Call) and expression.name in (*OPERATORS, "negative")
    is_predicate = isinstance(expression, Predicate) and not isinstance(expression, And | Or)
    is_open = isinstance(expression, Unknown)
    return f"({shown})" if is_operator or is_predicate or is_open else shown


def _constant_text(value: object, kind: pa.DataType) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return _string_text(value)
    if isinstance(value, datetime):
        return f"TIMESTAMP_NTZ '{value}'"
    if isinstance(value, date):
        return f"DATE '{value}'"
    if isinstance(value, Duration):
        return duration_literal(value)
    if isinstance(value, Decimal):
        shown = f"{value:f}"  # with an exponent it would be a DOUBLE
        is_long = not -(1 << 63) <= value < 1 << 63
        return shown if "." in shown or is_long else f"{shown}BD"
    if isinstance(value, float):
        return f"{value!r}D" if pa.types.is_float64(kind) else f"{value!r}F"
    if isinstance(value, int) and not isinstance(value, bool):
        suffixes = {8: "Y", 16: "S", 64: "L" if -(1 << 31) <= value < 1 << 31 else ""}
        return f"{value}{suffixes.get(kind.bit_width, '')}"
    return str(value).upper()


def _string_text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def duration_literal(value: Duration) -> str:
    """``INTERVAL 1 DAY 2 HOURS``."""
    if value.length_us < 0:
        return f"(-{duration_literal(Duration(-value.length_us, value.has_days))})"
    return f"INTERVAL {duration_text(value.length_us, has_days=value.has_days)}"
