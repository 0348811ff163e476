"""Conditions beside the keys of joins beyond inner ones, where they say whether two rows match.

condition := conjunct (OR conjunct)*            conjunct := part (AND part)*
part := NOT part | '(' condition ')' | operand sign operand | column IS [NOT] NULL
      | operand [NOT] BETWEEN operand AND operand | operand [NOT] IN '(' operand (',' operand)* ')'
operand := column | constant                     column := stream.column
constant := [-] number | 'text' | DATE 'yyyy-mm-dd' | TRUE | FALSE

They are evaluated here as Spark evaluates them: a comparison with null is unknown, and AND, OR and
NOT have three values; NaN equals NaN and is greater than all; -0.0 equals 0.0; text compares by
bytes. Only what is compared exactly alike is taken: columns of one type (or both whole numbers, or
both floating), and constants that the column's type has.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_classes import resolved
from lsmstate.joins.conditions.tokens import Column, Token, quoted, tokens_of

#: What a sign is, on numbers, and as Arrow calls it.
_SIGNS: Final = {
    "=": (operator.eq, pc.equal),
    "<>": (operator.ne, pc.not_equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}
_SPELLINGS: Final = {"==": "=", "!=": "<>", **{sign: sign for sign in _SIGNS}}
_REMEDY: Final = (
    "supported are comparisons of columns and constants of one type with AND, OR, NOT, IS NULL, "
    "BETWEEN and IN; compute anything else as a column before the join, or filter the result"
)
#: Year, or year and month, or all three and anything after a space or T.
_DATE: Final = re.compile(
    r"[+]?([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL
)
#: Whole numbers up to this are the same as FLOAT and as DOUBLE.
_EXACT_FLOAT: Final = 1 << 24

#: A column's values, for each pair of rows that is judged.
Values = Callable[[Column], pa.Array]


@dataclass(frozen=True, slots=True)
class Constant:
    value: int | Decimal | str | date | bool

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return f"'{self.value}'"
        if isinstance(self.value, date):
            return f"DATE '{self.value}'"
        if isinstance(self.value, Decimal):
            return f"{self.value:f}"  # with an exponent it would be a DOUBLE
        return str(self.value).upper()


Operand = Column | Constant


@dataclass(frozen=True, slots=True)
class _Compared:
    sign: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class _IsNull:
    column: Column


@dataclass(frozen=True, slots=True)
class _Not:
    part: "_Part"


@dataclass(frozen=True, slots=True)
class _Joined:
    word: str
    """AND or OR."""
    parts: tuple["_Part", ...]


_Part = _Compared | _IsNull | _Not | _Joined


@dataclass(frozen=True, slots=True)
class PairCondition:
    """Made by ``of``; a value."""

    part: _Part
    """What it says."""

    @classmethod
    def of(cls, text: str, columns: Mapping[str, Sequence[str]]) -> "PairCondition":
        """``columns`` of the streams. InvalidArgumentError names what is not supported."""
        parser = _Parser(text, columns)
        found = cls(parser.condition())
        parser.expect_end()
        if not found.columns:
            raise InvalidArgumentError(f"join condition {text!r} names no column: {_REMEDY}")
        return found

    @classmethod
    def compared(cls, left: Column, sign: str, right: Column) -> "PairCondition":
        """``left sign right``."""
        return cls(_Compared(sign, left, right))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All that it names, each once."""
        operands = (o for leaf in _leaves(self.part) for o in _operands(leaf))
        return tuple(dict.fromkeys(o for o in operands if isinstance(o, Column)))

    @property
    def streams(self) -> set[str]:
        """Those of its columns."""
        return {column.stream for column in self.columns}

    @property
    def needed(self) -> set[str]:
        """The streams without a row of which, so with nulls for all their columns, it is never
        true."""
        return _needed(self.part, is_true=True)

    def __str__(self) -> str:
        return _text(self.part)

    def check(self, streams: Mapping[str, pa.Schema]) -> None:
        """InvalidArgumentError for a column that is not stored, and for types that are not compared
        here as Spark compares them."""
        for stream, name in self.columns:
            if name not in streams[stream].names:
                raise InvalidArgumentError(
                    f"join condition {str(self)!r}: {stream}.{name} is an operation column, which "
                    "is not part of a row; leave it out"
                )
        for leaf in _leaves(self.part):
            if isinstance(leaf, _Compared):
                _check_types(leaf, streams)

    def holds(self, values: Values) -> npt.NDArray[np.bool_]:
        """Of each pair of rows whether it is true; not where it is unknown. Cost: a few vector
        operations a comparison."""
        known = _evaluated(self.part, values).fill_null(False)
        return np.asarray(known.to_numpy(zero_copy_only=False))


def _leaves(part: _Part) -> Iterator[_Compared | _IsNull]:
    stack = [part]
    while stack:
        found = stack.pop()
        if isinstance(found, _Not):
            stack.append(found.part)
        elif isinstance(found, _Joined):
            stack += reversed(found.parts)
        else:
            yield found


def _needed(part: _Part, *, is_true: bool) -> set[str]:
    """The streams that need a row for the part to be true, or to be false."""
    if isinstance(part, _Not):
        return _needed(part.part, is_true=not is_true)
    if isinstance(part, _Joined):
        found = [_needed(each, is_true=is_true) for each in part.parts]
        return set.union(*found) if (part.word == "AND") == is_true else set.intersection(*found)
    if isinstance(part, _IsNull) and is_true:
        return set()
    return {o.stream for o in _operands(part) if isinstance(o, Column)}


def _operands(leaf: _Compared | _IsNull) -> tuple[Operand, ...]:
    return (leaf.column,) if isinstance(leaf, _IsNull) else (leaf.left, leaf.right)


def _text(part: _Part) -> str:
    if isinstance(part, _Compared):
        return f"{_shown(part.left)} {part.sign} {_shown(part.right)}"
    if isinstance(part, _IsNull):
        return f"{_shown(part.column)} IS NULL"
    if isinstance(part, _Not):
        return f"NOT ({_text(part.part)})"
    return "(" + f" {part.word} ".join(map(_text, part.parts)) + ")"


def _shown(operand: Operand) -> str:
    return ".".join(map(quoted, operand)) if isinstance(operand, Column) else str(operand)


def _evaluated(part: _Part, values: Values) -> pa.BooleanArray:
    if isinstance(part, _IsNull):
        return values(part.column).is_null()
    if isinstance(part, _Not):
        return pc.invert(_evaluated(part.part, values))
    if isinstance(part, _Joined):
        join = pc.and_kleene if part.word == "AND" else pc.or_kleene
        first, *rest = (_evaluated(each, values) for each in part.parts)
        for each in rest:
            first = join(first, each)
        return first
    left, right = (
        values(operand) if isinstance(operand, Column) else operand.value
        for operand in (part.left, part.right)
    )
    return _compared(part.sign, left, right)


def _compared(sign: str, left: Any, right: Any) -> pa.BooleanArray:
    """One of the two is a column at least."""
    kind = next(side.type for side in (left, right) if isinstance(side, pa.Array))
    if pa.types.is_floating(kind):
        return _compared_floats(sign, left, right)
    if pa.types.is_integer(kind):
        kind = pa.int64()
    return _SIGNS[sign][1](*(_of_type(side, kind) for side in (left, right)))


def _compared_floats(sign: str, left: Any, right: Any) -> pa.BooleanArray:
    """As numbers of which NaN is the greatest."""
    on_numbers = _SIGNS[sign][0]
    numbers, is_nan = [], []
    unknown = np.zeros(1, dtype=np.bool_)
    for side in (left, right):
        if isinstance(side, pa.Array):
            unknown = unknown | side.is_null().to_numpy(zero_copy_only=False)
            side = side.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        else:
            side = np.float64(side)
        is_nan.append(np.isnan(side).astype(np.int8))
        numbers.append(side)
    either = np.logical_or(*is_nan)
    found = np.where(either, on_numbers(*is_nan), on_numbers(*numbers))
    return pa.array(found, mask=unknown)


def _of_type(side: Any, kind: pa.DataType) -> Any:
    if isinstance(side, pa.Array):
        return side if side.type == kind else side.cast(kind)
    return pa.scalar(Decimal(side) if pa.types.is_decimal(kind) else side, kind)


def _check_types(leaf: _Compared, streams: Mapping[str, pa.Schema]) -> None:
    kinds = [
        streams[side.stream].field(side.name).type if isinstance(side, Column) else None
        for side in (leaf.left, leaf.right)
    ]
    columns = [kind for kind in kinds if kind is not None]
    fits = bool(columns) and all(map(_is_comparable, columns))
    if fits and len(columns) == 2:
        alike = (pa.types.is_signed_integer, pa.types.is_floating)
        fits = kinds[0] == kinds[1] or any(all(map(is_one, columns)) for is_one in alike)
    elif fits:
        (constant,) = (s.value for s in (leaf.left, leaf.right) if isinstance(s, Constant))
        fits = _has(columns[0], constant)
    if fits and pa.types.is_boolean(columns[0]):
        fits = leaf.sign in ("=", "<>")
    if not fits:
        shown = " and ".join(
            _shown(side) + (f" ({kind})" if kind is not None else "")
            for side, kind in zip((leaf.left, leaf.right), kinds, strict=True)
        )
        raise InvalidArgumentError(
            f"join condition {_text(leaf)!r}: {shown} are not compared here, since Spark might "
            f"compare them in another way; cast them to one type before the join: {_REMEDY}"
        )


def _is_comparable(kind: pa.DataType) -> bool:
    one_of = (
        *(pa.types.is_signed_integer, pa.types.is_boolean, pa.types.is_decimal128),
        *(pa.types.is_date32, pa.types.is_timestamp, pa.types.is_string, pa.types.is_large_string),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_float32, pa.types.is_float64),
    )
    return any(is_one(kind) for is_one in one_of)


def _has(kind: pa.DataType, constant: Any) -> bool:
    """Whether a constant is a value of the type, or one that Spark makes of it unchanged."""
    if isinstance(constant, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(constant, str):
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if isinstance(constant, date):
        return bool(pa.types.is_date32(kind))
    if pa.types.is_signed_integer(kind):
        return isinstance(constant, int) and -(1 << 63) <= constant < 1 << 63
    if pa.types.is_float32(kind) and isinstance(constant, int):
        return abs(constant) <= _EXACT_FLOAT
    if pa.types.is_floating(kind):
        return bool(abs(constant) < 1 << 63)
    if pa.types.is_decimal128(kind):
        try:
            pa.scalar(Decimal(constant), kind)
        except pa.ArrowInvalid:
            return False
        return True
    return False


def _date(text: str) -> date | None:
    """The date that a constant names, as Spark reads it; None for years below 1 or above 9999."""
    found = _DATE.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day = (int(part or 1) for part in found.groups())
    try:
        return date(year, month, day)
    except ValueError:
        return None


class _Parser:
    """Reads from left to right; ``self._at`` is the token that comes next."""

    def __init__(self, text: str, columns: Mapping[str, Sequence[str]]) -> None:
        self._text = text.strip()
        self._columns = columns
        self._tokens = tokens_of(text)
        self._at = 0

    def condition(self) -> _Part:
        return self._joined("OR", lambda: self._joined("AND", self._part))

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._refusal("AND, OR or the end")

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _joined(self, word: str, inner: Callable[[], _Part]) -> _Part:
        parts = [inner()]
        while self._accept(word):
            parts.append(inner())
        return parts[0] if len(parts) == 1 else _Joined(word, tuple(parts))

    def _part(self) -> _Part:
        if self._accept("NOT"):
            return _Not(self._part())
        if self._accept("("):
            found = self.condition()
            self._expect(")")
            return found
        left = self._operand()
        if self._accept("IS"):
            is_not = self._accept("NOT")
            self._expect("NULL")
            if not isinstance(left, Column):
                raise self._refusal("a column before IS NULL")
            return _Not(_IsNull(left)) if is_not else _IsNull(left)
        is_not = self._accept("NOT")
        if is_not or self._is_word("BETWEEN", "IN"):
            found = self._range_or_list(left)
            return _Not(found) if is_not else found
        sign = _SPELLINGS.get(self._next.text)
        if sign is None:
            raise self._refusal("a comparison such as '<'")
        self._at += 1
        return _Compared(sign, left, self._operand())

    def _range_or_list(self, left: Operand) -> _Part:
        if self._accept("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            high = self._operand()
            return _Joined("AND", (_Compared(">=", left, low), _Compared("<=", left, high)))
        self._expect("IN")
        self._expect("(")
        parts = [_Compared("=", left, self._operand())]
        while self._accept(","):
            parts.append(_Compared("=", left, self._operand()))
        self._expect(")")
        return parts[0] if len(parts) == 1 else _Joined("OR", tuple(parts))

    def _operand(self) -> Operand:
        token, after = self._next, self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        if token.kind == "name" and after.text == ".":
            stream = resolved("stream", token.value, self._columns)
            name = self._tokens[self._at + 2]
            if name.kind != "name":
                raise self._refusal("a column such as a.id")
            self._at += 3
            return Column(stream, resolved("column", name.value, self._columns[stream], stream))
        is_negative = self._accept("-")
        token = self._next
        self._at += 1
        if token.kind == "number":
            value = Decimal(token.text) if "." in token.text else int(token.text)
            return Constant(-value if is_negative else value)
        if not is_negative and token.kind == "string":
            return Constant(self._string(token))
        if not is_negative and token.is_keyword("DATE") and self._next.kind == "string":
            found = _date(self._string(self._next))
            if found is None:
                raise self._refusal("a date such as '2026-01-31'")
            self._at += 1
            return Constant(found)
        for word in ("TRUE", "FALSE"):
            if not is_negative and token.is_keyword(word):
                return Constant(word == "TRUE")
        self._at -= 1
        raise self._refusal("a column such as a.id, or a constant")

    def _string(self, token: Token) -> str:
        text = token.text[1:-1]
        if "\\" in text or "'" in text:
            raise self._refusal("text without quotes and backslashes in it")
        return text

    def _is_word(self, *words: str) -> bool:
        return any(map(self._next.is_keyword, words))

    def _accept(self, word: str) -> bool:
        is_next = self._next.text == word or self._next.is_keyword(word)
        if word.isalpha() and is_next:
            is_next = self._tokens[self._at + 1].text != "."  # else a stream of that name
        self._at += is_next
        return is_next

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._refusal(word)

    def _refusal(self, expected: str) -> InvalidArgumentError:
        found = self._next.text or "the end"
        return InvalidArgumentError(
            f"join condition {self._text!r}: {expected} expected, found {found!r}; {_REMEDY}"
        )
