"""Conditions evaluated over Arrow columns, as Spark evaluates them in ANSI mode.

- A comparison with null is unknown; AND, OR and NOT have three values.
- NaN equals NaN and is greater than all; -0.0 equals 0.0; text compares by bytes.
- Values of two types are compared in the type that Spark casts both to (BIGINT and DOUBLE as
  DOUBLE, text and a number as a number).
- Overflow, division by zero and text that is no number are errors. They are errors of the rows
  that are asked for: the right side of AND is not evaluated where the left side is false.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.rows.arrow_read import plain_column, plain_type
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.decimal_words import computed
from lsmstate.joins.conditions.distances import DISTANCES, distances
from lsmstate.joins.conditions.key_types import cast_key, common_key_type
from lsmstate.joins.conditions.literals import date_of, time_of
from lsmstate.joins.conditions.predicate import (
    And,
    Between,
    Call,
    Case,
    Cast,
    Compare,
    Constant,
    Duration,
    Element,
    Equal,
    Expression,
    Field,
    IsNull,
    Like,
    Not,
    NullSafeEqual,
    Or,
    Unknown,
    all_parts,
    text_of,
)

#: A column's values, for each pair of rows that is judged.
Values = Callable[[Column], pa.Array]

_ON_ARROW: Final = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ON_NUMPY: Final = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_CHECKED: Final = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_UNCHECKED: Final = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
#: Expressions that may fail on a row.
_MAY_FAIL: Final = (Call, Cast, Element, Case, Unknown)
_WIDE: Final = Context(prec=160, rounding=ROUND_HALF_UP)
_MOST_DIGITS: Final = 38
#: What Spark leaves out on both sides of a text that it casts.
_BLANKS: Final = "".join(map(chr, range(33))) + "\x7f"
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?")
_SPECIAL: Final = {"inf": "inf", "infinity": "inf", "nan": "nan"}
_BOOLEANS: Final = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


def evaluated(expression: Expression, values: Values, rows: int, of: str = "") -> pa.Array:
    """The value of an expression for each of some rows.

    Args:
        expression: The expression.
        values: Gives the values of a column, as many as there are rows.
        rows: How many rows there are.
        of: The condition that the expression is a part of, for messages.

    Raises:
        InvalidArgumentError: A part is not evaluated here, its types do not fit, or it fails on a
            row. Without rows only the first two are found.
    """
    return _Rows(values, rows, of or text_of(expression)).value(expression)


def type_of(expression: Expression, streams: Mapping[str, pa.Schema], of: str = "") -> pa.DataType:
    """The type of an expression. InvalidArgumentError for what is not evaluated here."""

    def values(column: Column) -> pa.Array:
        return pa.nulls(0, streams[column.stream].field(column.name).type)

    return evaluated(expression, values, 0, of).type


class _Rows:
    """Some rows, and what expressions are for them."""

    def __init__(self, values: Values, count: int, of: str) -> None:
        self._values = values
        self._count = count
        self._of = of

    def value(self, expression: Expression) -> pa.Array:
        match expression:
            case Column():
                return _plain(self._values(expression))
            case Constant(value, kind):
                return pa.repeat(_scalar(value, kind), self._count)
            case Field(of, name):
                return self._field(expression, self.value(of), name)
            case Element(of, key):
                return self._element(expression, self.value(of), key)
            case Cast(of, kind):
                return self._cast(self.value(of), kind, expression)
            case Call(name, arguments):
                return self._call(expression, name, arguments)
            case Case(choices, otherwise):
                return self._case(expression, choices, otherwise)
            case Unknown(what):
                raise self._refusal(
                    f"{what} is not known here; supported are comparisons, AND, OR, NOT, IS NULL, "
                    "BETWEEN, IN, LIKE, CASE, arithmetic, and the functions abs, coalesce, "
                    "concat, date_add, date_bin, datediff, get_json_object, greatest, least and "
                    "length; compute anything else as a column before the join"
                )
        return self._predicate(expression)

    def _predicate(self, expression: Expression) -> pa.Array:
        match expression:
            case Equal(left, right):
                return self._compared(expression, "=", left, right)
            case Compare(sign, left, right):
                return self._compared(expression, sign, left, right)
            case NullSafeEqual(left, right):
                return self._null_safe(expression, left, right)
            case Between(value, low, high):
                sides = Compare(">=", value, low), Compare("<=", value, high)
                return self._joined(sides, is_and=True)
            case Like(value, pattern, escape):
                return self._like(expression, self.value(value), self.value(pattern), escape)
            case IsNull(value):
                return self.value(value).is_null()
            case Not(part):
                return pc.invert(self.truth(part))
            case And(parts) | Or(parts):
                return self._joined(parts, is_and=isinstance(expression, And))
        raise AssertionError(f"{expression} is no expression")

    def truth(self, expression: Expression) -> pa.BooleanArray:
        """A value that has to be a truth value."""
        found = self.value(expression)
        if pa.types.is_null(found.type):
            return found.cast(pa.bool_())
        if not pa.types.is_boolean(found.type):
            raise self._refusal(
                f"{text_of(expression)} is {found.type}, and no condition; compare it with "
                "something"
            )
        return found

    def _joined(self, parts: Sequence[Expression], *, is_and: bool) -> pa.BooleanArray:
        join = pc.and_kleene if is_and else pc.or_kleene
        first, *rest = parts
        found = self.truth(first)
        for part in rest:
            if may_fail(part):
                # Where the left side decides, the right one is not evaluated.
                is_open = pc.fill_null(pc.equal(found, pa.scalar(is_and)), True)
                found = join(found, self._where(is_open, partial(_truth_of, part)))
            else:
                found = join(found, self.truth(part))
        return found

    def _where(self, mask: pa.BooleanArray, value: Callable[["_Rows"], pa.Array]) -> pa.Array:
        """A value of the rows of a mask; null for the others."""
        chosen = np.asarray(mask.to_numpy(zero_copy_only=False))
        count = int(chosen.sum())
        if count == self._count:
            return value(self)
        kept = pa.array(chosen)
        found = value(_Rows(lambda c: self._values(c).filter(kept), count, self._of))
        places = np.cumsum(chosen) - 1
        return found.take(pa.array(np.where(chosen, places, 0), pa.int64(), mask=~chosen))

    def _compared(
        self, expression: Expression, sign: str, left: Expression, right: Expression
    ) -> pa.BooleanArray:
        return self._signed(expression, sign, self.value(left), self.value(right))

    def _signed(
        self, expression: Expression, sign: str, left: pa.Array, right: pa.Array
    ) -> pa.BooleanArray:
        kind = self._common(expression, (left.type, right.type))
        if _is_nested(kind):
            raise self._refusal(
                f"{text_of(expression)} compares {left.type} and {right.type}; compare their parts"
            )
        left, right = (self._cast(side, kind, expression) for side in (left, right))
        if pa.types.is_floating(kind):
            return _compared_floats(sign, left, right)
        if pa.types.is_boolean(kind):
            left, right = left.cast(pa.int8()), right.cast(pa.int8())
        if pa.types.is_null(kind):
            return pa.nulls(self._count, pa.bool_())
        return _ON_ARROW[sign](left, right)

    def _null_safe(
        self, expression: Expression, left: Expression, right: Expression
    ) -> pa.BooleanArray:
        values = self.value(left), self.value(right)
        equal = self._signed(expression, "=", *values).fill_null(False)
        nulls = (value.is_null() for value in values)
        return pc.or_(equal, pc.and_(*nulls))

    def _common(self, expression: Expression, kinds: Sequence[pa.DataType]) -> pa.DataType:
        """The type in which Spark compares values of some types, or gives one of them."""
        try:
            return reduce(common_type, kinds)
        except InvalidArgumentError:
            listed = " and ".join(dict.fromkeys(map(str, kinds)))
            raise self._refusal(
                f"{text_of(expression)}: values of {listed} are not compared here; cast them to "
                "one type before the join"
            ) from None

    def _cast(self, values: pa.Array, kind: pa.DataType, expression: Expression) -> pa.Array:
        if values.type == kind:
            return values
        if pa.types.is_string(values.type):
            return self._from_text(values, kind, expression)
        try:
            return cast_key(values, kind)
        except pa.ArrowInvalid as error:
            raise self._failure(expression, str(error)) from None

    def _from_text(self, values: pa.Array, kind: pa.DataType, expression: Expression) -> pa.Array:
        """Text as a value of another type, as CAST has it: an error where it is none."""
        encoded = pc.dictionary_encode(values)
        made = []
        for text in encoded.dictionary.to_pylist():
            found = _value_of(text.strip(_BLANKS), kind)
            if found is None:
                raise self._failure(expression, f"{text!r} is no {kind}")
            made.append(found)
        return pa.array(made, kind).take(encoded.indices)

    def _field(self, expression: Expression, values: pa.Array, name: str) -> pa.Array:
        kind = values.type
        if pa.types.is_struct(kind):
            for at in range(kind.num_fields):
                if kind.field(at).name.lower() == name.lower():
                    return _plain(pc.struct_field(values, [at]))
            known = ", ".join(kind.field(at).name for at in range(kind.num_fields))
            raise self._refusal(
                f"{text_of(expression)}: there is no field {name!r}; known: {known}"
            )
        if pa.types.is_map(kind) and pa.types.is_string(_plain_type(kind.key_type)):
            return self._element(expression, values, Constant(name, pa.string()))
        raise self._refusal(f"{text_of(expression)}: {kind} has no fields")

    def _element(self, expression: Expression, values: pa.Array, key: Constant) -> pa.Array:
        kind = values.type
        if pa.types.is_map(kind):
            try:
                wanted = pa.scalar(key.value, kind.key_type)
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                raise self._refusal(
                    f"{text_of(expression)}: a key of {kind} is {kind.key_type}"
                ) from None
            return _plain(pc.map_lookup(values, wanted, "first"))
        if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and isinstance(key.value, int):
            lengths = pc.list_value_length(values)
            is_out = pc.less_equal(lengths, key.value) if key.value >= 0 else pc.is_valid(values)
            if pc.any(is_out).as_py():
                raise self._failure(expression, f"an array has no element {key.value}")
            return _plain(_list_element(values, max(key.value, 0)))
        raise self._refusal(f"{text_of(expression)}: {kind} has no elements")

    def _call(self, expression: Expression, name: str, arguments: Sequence[Expression]) -> pa.Array:
        if name == "coalesce":
            return self._coalesced(expression, arguments)
        values = [self.value(argument) for argument in arguments]
        wanted = {"negative": (1, 1), "abs": (1, 1), "length": (1, 1), "datediff": (2, 2)}
        wanted |= {"date_add": (2, 2), "get_json_object": (2, 2), "concat": (1, 255)}
        wanted |= {"date_bin": (2, 2)}
        least, most = wanted.get(name, (2, 255))
        if not least <= len(values) <= most:
            raise self._refusal(f"{text_of(expression)}: {name} takes {least} values")
        if name in ("least", "greatest"):
            return self._extreme(expression, "<" if name == "least" else ">", values)
        if name == "concat":
            return self._concat(expression, values)
        if name in DISTANCES:
            return self._distance(expression, name, values)
        if name == "length":
            return self._length(expression, values[0])
        if name == "date_bin":
            return self._window_start(expression, arguments[0], values[1])
        if name in ("datediff", "date_add"):
            return self._days(expression, name, values)
        if name == "get_json_object":
            return self._json(expression, values[0], arguments[1])
        if name in ("negative", "abs"):
            return self._signless(expression, name, values[0])
        digits = [_literal_digits(argument) for argument in arguments]
        return self._arithmetic(expression, name, values, digits)

    def _distance(self, expression: Expression, name: str, values: Sequence[pa.Array]) -> pa.Array:
        try:
            return distances(name, values)
        except InvalidArgumentError as error:
            raise self._refusal(f"{text_of(expression)}: {error}") from error

    def _coalesced(self, expression: Expression, parts: Sequence[Expression]) -> pa.Array:
        kinds = [self.kind_of(part) for part in parts]
        kind = self._common(expression, kinds)
        found = pa.nulls(self._count, kind)
        for part in parts:
            missing = found.is_null()
            if not pc.any(missing).as_py() and self._count:
                break
            more = self._where(missing, partial(_kind_of, part, kind))
            found = (
                pc.if_else(missing, more, found) if not _is_nested(kind) else _filled(found, more)
            )
        return found

    def of_kind(self, part: Expression, kind: pa.DataType) -> pa.Array:
        """The value of a part in a type."""
        return self._cast(self.value(part), kind, part)

    def kind_of(self, part: Expression) -> pa.DataType:
        """The type of an expression, found without its rows."""
        return _Rows(lambda c: self._values(c)[:0], 0, self._of).value(part).type

    def _case(
        self,
        expression: Expression,
        choices: Sequence[tuple[Expression, Expression]],
        otherwise: Expression | None,
    ) -> pa.Array:
        last = Constant(None, pa.null()) if otherwise is None else otherwise
        parts = [value for _, value in choices] + [last]
        kind = self._common(expression, [self.kind_of(part) for part in parts])
        is_open = pa.array(np.ones(self._count, np.bool_))
        places = np.full(self._count, len(choices), np.int64)
        for at, (condition, _) in enumerate(choices):
            told = self._where(is_open, partial(_truth_of, condition)).fill_null(False)
            chosen = np.asarray(told.to_numpy(zero_copy_only=False)).astype(np.bool_)
            places[chosen & (places == len(choices))] = at
            is_open = pa.array(places == len(choices))
        found = pa.nulls(self._count, kind)
        for at, part in enumerate(parts):
            mask = pa.array(places == at)
            more = self._where(mask, partial(_kind_of, part, kind))
            found = _filled(found, more)
        return found

    def _extreme(self, expression: Expression, sign: str, values: Sequence[pa.Array]) -> pa.Array:
        kind = self._common(expression, [value.type for value in values])
        found, *rest = (self._cast(value, kind, expression) for value in values)
        for other in rest:
            is_better = self._signed(expression, sign, other, found).fill_null(False)
            is_better = pc.or_(is_better, pc.and_(found.is_null(), other.is_valid()))
            found = pc.if_else(is_better, other, found)
        return found

    def _concat(self, expression: Expression, values: Sequence[pa.Array]) -> pa.Array:
        texts = []
        for value in values:
            if pa.types.is_null(value.type) or pa.types.is_signed_integer(value.type):
                value = value.cast(pa.string())
            if not pa.types.is_string(value.type):
                raise self._refusal(
                    f"{text_of(expression)} joins {value.type}; concat takes text and whole "
                    "numbers here"
                )
            texts.append(value)
        return pc.binary_join_element_wise(*texts, "")

    def _length(self, expression: Expression, value: pa.Array) -> pa.Array:
        if pa.types.is_string(value.type):
            return pc.utf8_length(value)
        if pa.types.is_binary(value.type) or pa.types.is_null(value.type):
            return pc.binary_length(value.cast(pa.binary()))
        raise self._refusal(f"{text_of(expression)}: length takes text or bytes, not {value.type}")

    def _window_start(self, expression: Expression, slide: Expression, value: pa.Array) -> pa.Array:
        """The start of the last window that begins by a time; one begins in 1970."""
        length = slide.value if isinstance(slide, Constant) else None
        if not isinstance(length, Duration) or length.length_us <= 0:
            raise self._refusal(
                f"{text_of(expression)}: date_bin takes an interval first, as in "
                "date_bin(INTERVAL 10 MINUTES, a.at)"
            )
        if not pa.types.is_timestamp(value.type):
            raise self._refusal(f"{text_of(expression)}: date_bin takes a time, not {value.type}")
        stamps = value.cast(
            pa.timestamp("us" if value.type.unit in ("s", "ms") else value.type.unit, value.type.tz)
        )
        ticks = _numpy(stamps.view(pa.int64()))
        into = ticks % np.int64(length.length_us * (1000 if stamps.type.unit == "ns" else 1))
        least = np.iinfo(np.int64).min
        starts = np.where(ticks < least + into, least, ticks - into)
        return pa.array(starts, mask=_nulls(value)).view(stamps.type)

    def _days(self, expression: Expression, name: str, values: Sequence[pa.Array]) -> pa.Array:
        first = self._date(expression, values[0])
        if name == "datediff":
            second = self._date(expression, values[1])
            return self._checked(expression, "-", *(d.cast(pa.int32()) for d in (first, second)))
        days = values[1]
        is_fit = pa.types.is_signed_integer(days.type) and days.type.bit_width <= 32
        if not (is_fit or pa.types.is_null(days.type)):
            raise self._refusal(f"{text_of(expression)}: days are an INT, not {days.type}")
        moved = self._checked(expression, "+", first.cast(pa.int32()), days.cast(pa.int32()))
        return moved.cast(pa.date32())

    def _date(self, expression: Expression, value: pa.Array) -> pa.Array:
        if pa.types.is_date32(value.type):
            return value
        if pa.types.is_timestamp(value.type):
            local = pc.local_timestamp(value) if value.type.tz is not None else value
            return pc.floor_temporal(local, unit="day").cast(pa.date32())
        if pa.types.is_string(value.type) or pa.types.is_null(value.type):
            return self._cast(value, pa.date32(), expression)
        raise self._refusal(f"{text_of(expression)}: {value.type} is no date")

    def _json(self, expression: Expression, value: pa.Array, path: Expression) -> pa.Array:
        if not (pa.types.is_string(value.type) and isinstance(path, Constant)):
            raise self._refusal(f"{text_of(expression)}: get_json_object takes text and a path")
        steps = [
            int(step[1:-1]) if step.startswith("[") else step[1:]
            for step in re.findall(r"\.\w+|\[\d+\]", str(path.value))
        ]
        encoded = pc.dictionary_encode(value)
        found = [_json_value(text, steps) for text in encoded.dictionary.to_pylist()]
        return pa.array(found, pa.string()).take(encoded.indices)

    def _signless(self, expression: Expression, name: str, value: pa.Array) -> pa.Array:
        kind = value.type
        if pa.types.is_null(kind):
            return value
        if pa.types.is_decimal(kind):
            return pc.abs(value) if name == "abs" else pc.negate(value)
        is_time = pa.types.is_duration(kind) and name == "negative"
        if not (pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or is_time):
            raise self._refusal(f"{text_of(expression)}: {kind} is no number")
        if is_time:
            negated = self._signless(expression, name, value.cast(pa.int64()))
            return negated.cast(kind)
        function = pc.abs_checked if name == "abs" else pc.negate_checked
        try:
            return function(value)
        except pa.ArrowInvalid:
            raise self._failure(expression, f"the result is out of the range of {kind}") from None

    def _arithmetic(
        self,
        expression: Expression,
        sign: str,
        values: Sequence[pa.Array],
        digits: Sequence[int | None],
    ) -> pa.Array:
        left, right = values
        for one, other in ((left, right), (right, left)):
            if pa.types.is_null(one.type):
                return pa.nulls(self._count, other.type)
        found = self._time_arithmetic(expression, sign, left, right)
        if found is not None:
            return found
        left, right = (
            self._cast(side, _number_beside(other.type), expression)
            if pa.types.is_string(side.type) and _is_number(other.type)
            else side
            for side, other in ((left, right), (right, left))
        )
        kinds = (left.type, right.type)
        if not all(map(_is_number, kinds)):
            raise self._refusal(
                f"{text_of(expression)}: {kinds[0]} {sign} {kinds[1]} is not computed here; "
                "compute it as a column before the join"
            )
        is_float = any(map(pa.types.is_floating, kinds))
        if not is_float and any(map(pa.types.is_decimal, kinds)):
            return self._decimals(expression, sign, (left, right), digits)
        kind = pa.float64() if sign == "/" else common_key_type(kinds)
        if sign == "div":
            if is_float:
                raise self._refusal(f"{text_of(expression)}: div takes whole numbers")
            kind = pa.int64()
        return self._numbers(expression, sign, *(cast_key(side, kind) for side in (left, right)))

    def _numbers(
        self, expression: Expression, sign: str, left: pa.Array, right: pa.Array
    ) -> pa.Array:
        kind = left.type
        if sign in _CHECKED:
            if pa.types.is_floating(kind):
                return _UNCHECKED[sign](left, right)
            return self._checked(expression, sign, left, right)
        unknown = _nulls(left) | _nulls(right)
        first, second = (_numpy(side) for side in (left, right))
        if np.any((second == 0) & ~unknown):
            raise self._failure(expression, "division by zero")
        second = np.where(unknown, np.ones_like(second), second)
        if sign == "/":
            found = np.divide(first, second)
        elif sign == "%":
            with np.errstate(invalid="ignore"):  # infinity and NaN give NaN
                found = np.fmod(first, second)
        else:
            least = np.iinfo(np.int64).min
            if np.any((first == least) & (second == -1) & ~unknown):
                raise self._failure(expression, "the result is out of the range of int64")
            found = np.where(second == -1, -first, _truncated(first, second))
        return pa.array(found.astype(kind.to_pandas_dtype()), kind, mask=unknown)

    def _checked(
        self, expression: Expression, sign: str, left: pa.Array, right: pa.Array
    ) -> pa.Array:
        try:
            return _CHECKED[sign](left, right)
        except pa.ArrowInvalid:
            raise self._failure(
                expression, f"the result is out of the range of {left.type}"
            ) from None

    def _decimals(
        self,
        expression: Expression,
        sign: str,
        sides: Sequence[pa.Array],
        digits: Sequence[int | None],
    ) -> pa.Array:
        """In the precision and scale that Spark gives the result, half rounded up."""
        (p1, s1), (p2, s2) = (
            _decimal_digits(side.type, own) for side, own in zip(sides, digits, strict=True)
        )
        kind = _decimal_result(sign, p1, s1, p2, s2)
        narrow = computed(sign, list(sides), kind)
        if narrow is not None:
            return narrow
        step = Decimal(1).scaleb(-kind.scale)
        found: list[Decimal | None] = []
        for left, right in zip(*(side.to_pylist() for side in sides), strict=True):
            if left is None or right is None:
                found.append(None)
                continue
            left, right = Decimal(left), Decimal(right)
            if sign in ("/", "%", "div") and right == 0:
                raise self._failure(expression, "division by zero")
            value = _DECIMAL_STEPS[sign](left, right)
            if sign == "/":
                value = _WIDE.quantize(value, Decimal(1).scaleb(-_MOST_DIGITS))
            value = _WIDE.quantize(value, step)
            if len(value.as_tuple().digits) > kind.precision and value != 0:
                raise self._failure(expression, f"{value:f} is out of the range of {kind}")
            found.append(value)
        made = pa.array(found, kind)
        return cast_key(made, pa.int64()) if sign == "div" else made

    def _time_arithmetic(
        self, expression: Expression, sign: str, left: pa.Array, right: pa.Array
    ) -> pa.Array | None:
        """Time stamps, dates and lengths of time; None for other types."""
        kinds = (left.type, right.type)
        durations = [pa.types.is_duration(kind) for kind in kinds]
        if all(map(pa.types.is_date32, kinds)) and sign == "-":
            days = self._days(expression, "datediff", (left, right)).cast(pa.int64())
            return pc.multiply(days, 86_400_000_000).cast(pa.duration("us"))
        is_time = [pa.types.is_timestamp(kind) or pa.types.is_date32(kind) for kind in kinds]
        if all(is_time) and sign == "-":
            kind = common_key_type(kinds)
            first, second = (cast_key(side, kind) for side in (left, right))
            return self._checked(expression, "-", first, second)
        if all(durations) and sign in ("+", "-"):
            kind = common_key_type(kinds)
            return self._checked(expression, sign, left.cast(kind), right.cast(kind))
        if durations[0] and sign == "+":
            left, right, durations = right, left, durations[::-1]
        if durations[1] and sign in ("+", "-"):
            if pa.types.is_date32(left.type):
                left = left.cast(pa.timestamp("us"))
            if pa.types.is_timestamp(left.type):
                unit = max("us", left.type.unit, key=("s", "ms", "us", "ns").index)
                at = left.cast(pa.timestamp(unit, left.type.tz))
                return self._checked(expression, sign, at, right.cast(pa.duration(unit)))
        whole = [pa.types.is_signed_integer(kind) and kind.bit_width <= 32 for kind in kinds]
        if pa.types.is_date32(kinds[0]) and whole[1] and sign in ("+", "-"):
            days = right if sign == "+" else self._signless(expression, "negative", right)
            return self._days(expression, "date_add", (left, days))
        if pa.types.is_date32(kinds[1]) and whole[0] and sign == "+":
            return self._days(expression, "date_add", (right, left))
        return None

    def _like(
        self, expression: Expression, value: pa.Array, pattern: pa.Array, escape: str
    ) -> pa.BooleanArray:
        for side in (value, pattern):
            if not (pa.types.is_string(side.type) or pa.types.is_null(side.type)):
                raise self._refusal(f"{text_of(expression)}: LIKE takes text, not {side.type}")
        if pa.types.is_null(value.type) or pa.types.is_null(pattern.type):
            return pa.nulls(self._count, pa.bool_())
        patterns = pc.dictionary_encode(pattern)
        found = pa.nulls(self._count, pa.bool_())
        for at, text in enumerate(patterns.dictionary.to_pylist()):
            of = pc.fill_null(pc.equal(patterns.indices, at), False)
            regex = self._regex(expression, text, escape)
            told = pc.match_substring_regex(value.filter(of), regex)
            found = pc.replace_with_mask(found, of, told)
        return found

    def _regex(self, expression: Expression, pattern: str, escape: str) -> str:
        shown, waiting = "", False
        for letter in pattern:
            if waiting:
                if letter not in ("_", "%", escape):
                    raise self._failure(
                        expression, f"{escape!r} must stand before _, % or itself in {pattern!r}"
                    )
                shown, waiting = shown + re.escape(letter), False
            elif letter == escape:
                waiting = True
            else:
                shown += {"_": ".", "%": ".*"}.get(letter, re.escape(letter))
        if waiting:
            raise self._failure(expression, f"{escape!r} must not end {pattern!r}")
        return rf"(?s)\A{shown}\z"

    def _refusal(self, cause: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"join condition {self._of!r}: {cause}")

    def _failure(self, expression: Expression, cause: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"join condition {self._of!r}: {text_of(expression)} fails on a row: {cause}; filter "
            "such rows before the join, or write CASE around it"
        )


def _truth_of(part: Expression, rows: _Rows) -> pa.BooleanArray:
    return rows.truth(part)


def _kind_of(part: Expression, kind: pa.DataType, rows: _Rows) -> pa.Array:
    return rows.of_kind(part, kind)


def may_fail(expression: Expression) -> bool:
    """Whether it may fail on a row: it computes, or compares text with another type."""
    for part in all_parts(expression):
        if isinstance(part, _MAY_FAIL):
            return True
        if isinstance(part, Constant) and isinstance(part.value, str):
            return True
    return False


_DECIMAL_STEPS: Final[Mapping[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _WIDE.add,
    "-": _WIDE.subtract,
    "*": _WIDE.multiply,
    "/": _WIDE.divide,
    "%": _WIDE.remainder,
    "div": _WIDE.divide_int,
}


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type in which Spark compares values of two types. InvalidArgumentError if there is
    none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    for text, other in ((left, right), (right, left)):
        if pa.types.is_string(text):
            return type_beside_text(other)
    return common_key_type([left, right])


def type_beside_text(other: pa.DataType) -> pa.DataType:
    """What Spark casts text to that it compares with a value of another type."""
    if _is_number(other):
        return _number_beside(other)
    if any(is_one(other) for is_one in (pa.types.is_boolean, pa.types.is_date32)):
        return other
    if pa.types.is_timestamp(other):
        return other
    raise InvalidArgumentError(f"string and {other} cannot be compared")


def _number_beside(other: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_integer(other) else pa.float64()


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    kind = plain_type(kind)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    unsigned |= {pa.uint64(): pa.decimal128(20, 0), pa.date64(): pa.date32()}
    unsigned |= {pa.float16(): pa.float32()}
    return unsigned.get(kind, kind)


def _plain(values: pa.Array) -> pa.Array:
    """The values in the one of all alike types that is computed with."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = plain_type(values.type)
    if kind != values.type:
        values = plain_column(values, kind)
    if pa.types.is_nested(kind):
        return values
    wanted = _plain_type(kind)
    return values if wanted == kind else values.cast(wanted)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, Duration):
        value = value.length_us
    return pa.scalar(value, kind)


def _compared_floats(sign: str, left: pa.Array, right: pa.Array) -> pa.BooleanArray:
    """As numbers of which NaN is the greatest."""
    unknown = _nulls(left) | _nulls(right)
    numbers = [_numpy(side) for side in (left, right)]
    is_nan = [np.isnan(side).astype(np.int8) for side in numbers]
    compare = _ON_NUMPY[sign]
    found = np.where(np.logical_or(*is_nan), compare(*is_nan), compare(*numbers))
    return pa.array(found, mask=unknown)


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def _numpy(values: pa.Array) -> npt.NDArray[Any]:
    return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False))


def _truncated(
    first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The quotient without its fraction."""
    safe = np.where(second == -1, 1, second)
    down = np.floor_divide(first, safe)
    is_below = (np.remainder(first, safe) != 0) & ((first < 0) != (safe < 0))
    return np.asarray(down + is_below)


def _filled(found: pa.Array, more: pa.Array) -> pa.Array:
    """The first values, and the others where those are null, of any type."""
    if not _is_nested(found.type):
        return pc.coalesce(found, more)
    both = pa.concat_arrays([found, more])
    places = np.arange(len(found))
    return both.take(pa.array(np.where(_nulls(found), places + len(found), places)))


def _list_element(values: pa.Array, place: int) -> pa.Array:
    """An element of each list; null of a null."""
    is_null = _nulls(values)
    starts = np.asarray(values.offsets.to_numpy(zero_copy_only=False))[:-1]
    at = np.where(is_null, 0, starts + place)
    return values.values.take(pa.array(at, pa.int64(), mask=is_null))


def _literal_digits(argument: Expression) -> int | None:
    """The digits of a whole number that is written out: Spark gives a decimal beside it no more."""
    if isinstance(argument, Constant) and type(argument.value) is int:
        return len(str(abs(argument.value)))
    return None


def _decimal_digits(kind: pa.DataType, literal: int | None) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    return literal or {8: 3, 16: 5, 32: 10, 64: 20}[kind.bit_width], 0


def _decimal_result(sign: str, p1: int, s1: int, p2: int, s2: int) -> pa.DataType:
    whole = max(p1 - s1, p2 - s2)
    if sign in ("+", "-"):
        scale = max(s1, s2)
        digits = whole + scale + 1
    elif sign == "*":
        scale, digits = s1 + s2, p1 + p2 + 1
    elif sign == "/":
        scale = max(6, s1 + p2 + 1)
        digits = p1 - s1 + s2 + scale
    elif sign == "%":
        scale = max(s1, s2)
        digits = min(p1 - s1, p2 - s2) + scale
    else:
        scale, digits = 0, p1 - s1 + s2
    if digits > _MOST_DIGITS:
        scale = max(_MOST_DIGITS - (digits - scale), min(scale, 6))
        digits = _MOST_DIGITS
    return pa.decimal128(max(digits, 1), scale)


def _value_of(text: str, kind: pa.DataType) -> Any:
    """The value of a type that a text names; None if it names none."""
    if pa.types.is_int64(kind):
        found = int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else None
        return found if found is not None and -(1 << 63) <= found < 1 << 63 else None
    if pa.types.is_float64(kind):
        special = re.fullmatch(r"([+-]?)(inf|infinity|nan)", text.lower())
        if special is not None and not (special[1] and special[2] == "nan"):
            return float(special[1] + _SPECIAL[special[2]])
        return float(text.rstrip("dDfF")) if _NUMBER.fullmatch(text) else None
    if pa.types.is_boolean(kind):
        return _BOOLEANS.get(text.lower())
    if pa.types.is_date32(kind):
        return date_of(text)
    if pa.types.is_timestamp(kind):
        return _time_value(text, kind)
    return None


def _time_value(text: str, kind: pa.DataType) -> Any:
    found: date | datetime | None = time_of(text)
    if found is None:
        return None
    local = pa.array([found], pa.timestamp("us"))
    return cast_key(local, kind)[0]


def _json_value(text: str | None, steps: Sequence[str | int]) -> str | None:
    """What Spark's get_json_object gives; None for text that is no JSON."""
    if text is None:
        return None
    try:
        found = json.loads(text, object_pairs_hook=_first_of_each)
    except (ValueError, RecursionError):
        return None
    for step in steps:
        if isinstance(step, str):
            found = found.get(step) if isinstance(found, dict) else None
        else:
            is_there = isinstance(found, list) and step < len(found)
            found = found[step] if is_there else None
    if found is None or isinstance(found, str):
        return found
    return _json_text(found)


def _first_of_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _json_text(value: Any) -> str:
    if isinstance(value, dict):
        listed = reversed(value.items())
        return "{" + ",".join(f"{_json_text(k)}:{_json_text(v)}" for k, v in listed) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json_text, value)) + "]"
    if isinstance(value, float):
        return _java_text(value)
    return json.dumps(value, ensure_ascii=False)


def _java_text(value: float) -> str:
    """A DOUBLE as Java writes it."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int) or value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    shown = "".join(map(str, digits))
    power = exponent + len(digits) - 1
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{power}"
