"""Sums of columns with factors, and the bounds that follow from comparing them.

``a.x - b.y <= 5`` says ``b.y >= a.x - 5``, and ``abs(a.x - b.x) <= 2`` bounds ``b.x`` from both
sides. A bound only picks candidates: the condition as it is written decides on them. So a bound is
computed in DOUBLE and *widened* by more than all that arithmetic could round, here and where the
condition is evaluated. It is open where something is infinite, and it never fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values, evaluated, type_of
from lsmstate.joins.conditions.intervals import DAY_US, UNITS
from lsmstate.joins.conditions.key_parts import KeyPart, Streams, never_fails
from lsmstate.joins.conditions.predicate import Call, Constant, Duration, Expression, streams_of

Floats = npt.NDArray[np.float64]

#: More than what a few operations on DOUBLE, or on FLOAT, can round, relative to the sizes.
_ROUNDED: Final = 2.0**-44
_ROUNDED_NARROW: Final = 2.0**-18
#: Beyond it a sum might overflow.
_HUGE: Final = 1e300
_HUGE_NARROW: Final = 1e37
#: What an operation on decimals of many digits can round.
_DECIMAL_STEP: Final = Fraction(1, 100_000)
_EPOCH: Final = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Linear:
    """A constant, and atoms with factors. Times count in microseconds."""

    terms: Mapping[Expression, Fraction]
    constant: Fraction = Fraction(0)
    is_time: bool = False
    slack: Fraction = Fraction(0)
    """What it may be off by, however small the numbers are."""
    is_narrow: bool = False
    """Whether FLOAT is in it."""
    zones: frozenset[bool] = frozenset()
    """Whether its time stamps have a time zone."""
    is_repeated: bool = False
    """Whether an atom occurs several times."""
    is_decimal: bool = False

    def plus(self, other: "Linear", sign: int) -> "Linear":
        """The sum, or the difference."""
        terms = dict(self.terms)
        for atom, factor in other.terms.items():
            terms[atom] = terms.get(atom, Fraction(0)) + sign * factor
        is_decimal = self.is_decimal or other.is_decimal
        return Linear(
            terms,
            self.constant + sign * other.constant,
            self.is_time or other.is_time,
            self.slack + other.slack + (_DECIMAL_STEP if is_decimal else 0),
            self.is_narrow or other.is_narrow,
            self.zones | other.zones,
            self.is_repeated or other.is_repeated or bool(self.terms.keys() & other.terms.keys()),
            is_decimal,
        )

    def times(self, factor: Fraction) -> "Linear":
        """Each term and the constant multiplied."""
        terms = {atom: each * factor for atom, each in self.terms.items()}
        return replace(
            self, terms=terms, constant=self.constant * factor, slack=self.slack * abs(factor)
        )


@dataclass(frozen=True, slots=True)
class LinearBound:
    """A sum of what is known, by which a column is bounded."""

    terms: tuple[tuple[Expression, float], ...]
    constant: float
    slack: float
    is_narrow: bool

    def widened(self, columns: Values, rows: int) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        """Of each row the least and the greatest that the sum may be, infinite where it may be
        anything, and whether it is null. Cost: a few passes a term."""
        total, size = np.full(rows, self.constant), np.full(rows, abs(self.constant))
        is_null = np.zeros(rows, np.bool_)
        with np.errstate(all="ignore"):
            for atom, factor in self.terms:
                numbers, nulls = as_numbers(atom, columns, rows)
                total = total + factor * numbers
                size = size + np.abs(factor * numbers)
                is_null |= nulls
            rounded = _ROUNDED_NARROW if self.is_narrow else _ROUNDED
            width = rounded * (size + np.abs(total)) + self.slack + 1e-300
            huge = _HUGE_NARROW if self.is_narrow else _HUGE
            is_open = ~(size < huge)
            least = np.where(is_open, -np.inf, total - width)
            most = np.where(is_open, np.inf, total + width)
        return least, most, is_null


@dataclass(frozen=True, slots=True)
class WholeBound:
    """A column of whole numbers or of times, and what is added to it: a bound that is exact."""

    column: Column
    added: int

    def limits(self, columns: Values, kind: pa.DataType, *, is_low: bool) -> pa.Array:
        """Of each row the lower or the upper limit, as a key of this type. It is null where the
        column is, and where nothing is beyond it."""
        values = columns(self.column)
        is_time = pa.types.is_timestamp(values.type)
        whole = values.view(pa.int64()) if is_time else values.cast(pa.int64())
        nulls = np.asarray(whole.is_null().to_numpy(zero_copy_only=False))
        numbers = np.asarray(pc.fill_null(whole, 0).to_numpy(zero_copy_only=False))
        least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        is_over = numbers > most - max(self.added, 0)
        is_under = numbers < least - min(self.added, 0)
        with np.errstate(over="ignore"):
            found = np.where(is_over, most, np.where(is_under, least, numbers + self.added))
        limits = pa.array(found, mask=nulls | (is_over if is_low else is_under))
        return limits.view(kind) if is_time else limits


def whole_bound(target: Expression, difference: Linear, streams: Streams) -> WholeBound | None:
    """What ``target`` is compared with, if it and what bounds it are columns of whole numbers, or
    of times in microseconds."""
    if difference.is_narrow or difference.is_decimal or difference.slack:
        return None
    factor = difference.terms[target]
    rest = {atom: -each / factor for atom, each in difference.terms.items() if atom != target}
    if len(rest) != 1:
        return None
    ((other, times),) = rest.items()
    added = -difference.constant / factor
    if not isinstance(target, Column) or not isinstance(other, Column):
        return None
    kinds = [type_of(each, streams) for each in (target, other)]
    are_whole = all(map(pa.types.is_signed_integer, kinds))
    are_times = all(pa.types.is_timestamp(kind) and kind.unit == "us" for kind in kinds)
    if times != 1 or added.denominator != 1 or not (are_whole or are_times):
        return None
    return WholeBound(other, int(added))


def linear(expression: Expression, streams: Streams) -> Linear | None:
    """The expression as a sum; None if it is none."""
    match expression:
        case Constant(value, kind):
            return _constant(value, kind)
        case Call("+" | "-" as sign, (left, right)):
            return _sum(linear(left, streams), linear(right, streams), 1 if sign == "+" else -1)
        case Call("negative", (of,)):
            return _times(linear(of, streams), Fraction(-1))
        case Call("*", (left, right)):
            sides = linear(left, streams), linear(right, streams)
            for one, other in (sides, sides[::-1]):
                if one is not None and not one.terms and not one.is_time and not one.is_decimal:
                    found = _times(other, one.constant)
                    is_fit = found is not None and not (found.is_time or found.is_decimal)
                    return _narrowed(found, one) if is_fit else None
        case Call("/", (left, Constant(value))):
            return _quotient(linear(left, streams), _constant(value, pa.null()))
        case Call("datediff", (left, right)):
            return _days_between(linear(left, streams), linear(right, streams))
        case Call("date_add", (day, Constant(int() as days))):
            return _sum(linear(day, streams), Linear({}, Fraction(days * DAY_US), True), 1)
    return _atom(expression, streams)


def bound_of(target: Expression, difference: Linear) -> LinearBound:
    """What ``target`` is compared with where the difference is compared with 0."""
    factor = difference.terms[target]
    rest = {a: -f / factor for a, f in difference.terms.items() if a != target and f}
    return LinearBound(
        tuple((atom, float(each)) for atom, each in rest.items()),
        float(-difference.constant / factor),
        float(difference.slack / abs(factor)),
        difference.is_narrow,
    )


def key_part(atom: Expression, streams: Streams) -> KeyPart:
    """An atom as a key that bounds are set to."""
    kind = type_of(atom, streams)
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return KeyPart(atom, kind)
    return KeyPart(atom, pa.int64() if pa.types.is_signed_integer(kind) else pa.float64())


def as_numbers(
    atom: Expression, columns: Values, rows: int
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The values of an atom as DOUBLE, times in microseconds; and whether they are null."""
    values = KeyPart(atom, _kind_of(atom, columns, rows)).values(columns, rows)
    nulls = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        whole = values.view(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
        numbers = np.asarray(pc.fill_null(whole, 0).to_numpy(zero_copy_only=False))
        return numbers.astype(np.float64) * _us_per_tick(kind), nulls
    return np.asarray(pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)), nulls


def as_keys(numbers: Floats, kind: pa.DataType, *, is_low: bool) -> pa.Array:
    """Bounds as values of a key's type, rounded outward. An infinite one is the type's last
    value: NaN is the greatest DOUBLE."""
    if pa.types.is_floating(kind):
        return pa.array(numbers if is_low else np.where(np.isposinf(numbers), np.nan, numbers))
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    numbers = numbers / _us_per_tick(kind) if is_time else numbers
    bits = 32 if pa.types.is_date32(kind) else 64
    limits = np.iinfo(f"int{bits}")
    rounded = np.floor(numbers) if is_low else np.ceil(numbers)
    inside = np.clip(rounded, float(limits.min), float(limits.max) / (1 + 2.0**-50))
    whole = inside.astype(limits.dtype)
    whole[rounded >= float(limits.max)] = limits.max
    whole[rounded <= float(limits.min)] = limits.min
    return pa.array(whole).view(kind) if is_time else pa.array(whole)


def _kind_of(atom: Expression, columns: Values, rows: int) -> pa.DataType:
    """The type of an atom where it is a time, and DOUBLE otherwise."""
    if isinstance(atom, Column):
        kind = columns(atom).type
        if pa.types.is_date64(kind):
            return pa.date32()
        if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
            return kind
    match atom:
        case Call("date_bin"):
            return evaluated(atom, lambda c: columns(c)[:0], 0).type
    return pa.float64()


def _us_per_tick(kind: pa.DataType) -> float:
    if pa.types.is_date32(kind):
        return float(DAY_US)
    return float(1000.0 ** (2 - UNITS.index(kind.unit)))


def _atom(expression: Expression, streams: Streams) -> Linear | None:
    """What is computed in another way, of one stream."""
    if len(streams_of(expression)) != 1 or not never_fails(expression, streams):
        return None
    kind = type_of(expression, streams)
    terms = {expression: Fraction(1)}
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        is_start = isinstance(expression, Call) and expression.name == "date_bin"
        if not isinstance(expression, Column) and not is_start:
            return None
        zones = frozenset({pa.types.is_timestamp(kind) and kind.tz is not None})
        return Linear(terms, is_time=True, zones=zones)
    if pa.types.is_decimal(kind):
        return Linear(terms, slack=_DECIMAL_STEP, is_decimal=True)
    if pa.types.is_signed_integer(kind) or pa.types.is_floating(kind):
        return Linear(terms, is_narrow=bool(pa.types.is_float32(kind)))
    return None


def _constant(value: Any, kind: pa.DataType) -> Linear | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Duration):
        return Linear({}, Fraction(value.length_us), True)
    if isinstance(value, datetime):
        if value.tzinfo is not None or (pa.types.is_timestamp(kind) and kind.tz is not None):
            return None
        since = value - _EPOCH
        us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return Linear({}, Fraction(us), True, zones=frozenset({False}))
    if isinstance(value, date):
        days = (value - _EPOCH.date()).days
        return Linear({}, Fraction(days * DAY_US), True, zones=frozenset({False}))
    if isinstance(value, float) and np.isfinite(value):
        return Linear({}, Fraction(value), is_narrow=bool(pa.types.is_float32(kind)))
    if isinstance(value, int):
        return Linear({}, Fraction(value))
    if isinstance(value, Decimal) and value.is_finite():
        return Linear({}, Fraction(value), is_decimal=True)
    return None


def _sum(left: Linear | None, right: Linear | None, sign: int) -> Linear | None:
    """None for what is not added: a time and a number, unless it is a date and whole days."""
    if left is None or right is None:
        return None
    if left.is_time != right.is_time:
        return None
    found = left.plus(right, sign)
    return found if len(found.zones) < 2 else None


def difference(left: Linear | None, right: Linear | None) -> Linear | None:
    """What is compared with 0 where the sides are compared; None if that says nothing."""
    found = _sum(left, right, -1)
    return None if found is None or found.is_repeated else found


def _times(of: Linear | None, factor: Fraction) -> Linear | None:
    return None if of is None else of.times(factor)


def _quotient(of: Linear | None, by: Linear | None) -> Linear | None:
    if of is None or by is None or by.is_time or of.is_time or not by.constant:
        return None
    return None if of.is_decimal or by.is_decimal else of.times(1 / by.constant)


def _narrowed(found: Linear | None, by: Linear) -> Linear | None:
    is_narrow = found is not None and (found.is_narrow or by.is_narrow)
    return None if found is None else replace(found, is_narrow=is_narrow)


def _days_between(left: Linear | None, right: Linear | None) -> Linear | None:
    """Whole days: what is left of a day counts for one more."""
    found = _sum(left, right, -1)
    if found is None or not found.is_time:
        return None
    counted = found.times(Fraction(1, DAY_US))
    return replace(counted, is_time=False, zones=frozenset(), slack=counted.slack + 2)
