"""Time intervals between columns: ``a.ts BETWEEN b.ts - INTERVAL 1 HOUR AND b.ts``.

A comparison of sums of two columns and lengths of time says how far apart the columns may be: a
*bound*. Lengths are weeks to microseconds, a day being 24 hours; months and years have no fixed
length, so a condition with one is no bound.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.literals import length_of
from lsmstate.joins.conditions.predicate import (
    Between,
    Call,
    Compare,
    Constant,
    Duration,
    Equal,
    Expression,
)

#: Of time stamps, each a thousandth of the one before.
UNITS: Final = ("s", "ms", "us", "ns")
DAY_US = 86_400_000_000
#: Sign of a comparison -> whether right <= left follows, whether left <= right does, and whether
#: the sides have to differ.
_COMPARISONS: Final = {
    "<": (False, True, True),
    "<=": (False, True, False),
    ">": (True, False, True),
    ">=": (True, False, False),
    "=": (True, True, False),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """``later - earlier <= most_us`` microseconds; less, if ``is_strict``."""

    later: Column
    earlier: Column
    most_us: int
    is_strict: bool = False
    has_days: bool = False
    """Whether it was written with days or weeks, which a calendar may count otherwise."""
    slide_us: int = 0
    """If not 0, ``earlier`` counts as the start of the last window that begins by then."""

    def widened(self, by_us: int) -> "Bound":
        """The same with room to spare."""
        return replace(self, most_us=self.most_us + by_us)


def bounds_in(predicate: Expression) -> tuple[Bound, ...]:
    """The bounds that a predicate sets between two columns, and nothing else; none if it says
    something else. Types are not looked at."""
    match predicate:
        case Between(value, low, high):
            found = [_bound(low, value, is_strict=False), _bound(value, high, is_strict=False)]
        case Equal(left, right):
            found = [_bound(right, left, is_strict=False), _bound(left, right, is_strict=False)]
        case Compare(sign, left, right) if sign in _COMPARISONS:
            is_over, is_under, is_strict = _COMPARISONS[sign]
            found = [_bound(right, left, is_strict=is_strict)] if is_over else []
            found += [_bound(left, right, is_strict=is_strict)] if is_under else []
        case _:
            return ()
    known = tuple(bound for bound in found if bound is not None)
    return known if len(known) == len(found) else ()


@dataclass(frozen=True, slots=True)
class _Start:
    """``date_bin(INTERVAL ..., column)``: the start of a window."""

    column: Column
    slide_us: int


@dataclass(frozen=True, slots=True)
class _Sum:
    """What is added, what is subtracted, and a length of time."""

    added: tuple[Column | _Start, ...] = ()
    subtracted: tuple[Column | _Start, ...] = ()
    length_us: int = 0
    has_days: bool = False

    def plus(self, other: "_Sum", sign: int) -> "_Sum":
        more = (other.added, other.subtracted)[::sign]
        return _Sum(
            self.added + more[0],
            self.subtracted + more[1],
            self.length_us + sign * other.length_us,
            self.has_days or other.has_days,
        )


def _bound(low: Expression, high: Expression, *, is_strict: bool) -> Bound | None:
    """``low <= high``, as a bound."""
    sums = _sum(low), _sum(high)
    if sums[0] is None or sums[1] is None:
        return None
    found = sums[0].plus(sums[1], -1)
    if len(found.added) != 1 or len(found.subtracted) != 1 or found.added == found.subtracted:
        return None
    (later,), (before,) = found.added, found.subtracted
    start = before if isinstance(before, _Start) else _Start(before, 0)
    if isinstance(later, _Start) or later == start.column:
        return None
    most_us = -found.length_us
    return Bound(later, start.column, most_us, is_strict, found.has_days, start.slide_us)


def _sum(expression: Expression) -> _Sum | None:
    match expression:
        case Column():
            return _Sum((expression,))
        case Constant(Duration(length_us, has_days)):
            return _Sum(length_us=length_us, has_days=has_days)
        case Call("date_bin", (Constant(Duration(slide_us)), Column() as column)) if slide_us > 0:
            return _Sum((_Start(column, slide_us),))
        case Call("+" | "-" as sign, (left, right)):
            first, second = _sum(left), _sum(right)
            if first is not None and second is not None:
                return first.plus(second, 1 if sign == "+" else -1)
    return None


def parse_duration(value: str, what: str) -> int:
    """Microseconds of a length of time such as ``7 days`` or ``1 hour 30 minutes``.
    InvalidArgumentError, about ``what``, for anything else."""
    written = re.sub(r"^\s*interval\b", "", value, flags=re.IGNORECASE)
    found = length_of(written)
    if found is None:
        raise InvalidArgumentError(
            f"{what}={value!r} is not a duration; write weeks, days, hours, minutes or seconds, "
            'such as "7 days" or "1 hour 30 minutes", or give a timedelta'
        )
    return found[0]


class Distances:
    """How far apart columns may be at most, by all bounds together: their closure.

    The bounds are a difference-bound matrix; shortest paths through it (Floyd and Warshall) are
    the tightest bounds that follow. Cost: the cube of the number of columns, once per query.
    """

    def __init__(self, bounds: Iterable[Bound]) -> None:
        self._most: dict[tuple[Column, Column], int] = {}
        for bound in bounds:
            self._lower((bound.later, bound.earlier), bound.most_us)
        columns = list(dict.fromkeys(column for pair in self._most for column in pair))
        for middle in columns:
            for later in columns:
                for earlier in columns:
                    first = self._most.get((later, middle))
                    second = self._most.get((middle, earlier))
                    if first is not None and second is not None:
                        self._lower((later, earlier), first + second)
        for column in columns:
            if self._most.get((column, column), 0) < 0:
                raise InvalidArgumentError(
                    f"join condition: no row can match, because the time intervals put "
                    f"{column.stream}.{column.name} before itself; correct one of them"
                )

    def _lower(self, pair: tuple[Column, Column], most_us: int) -> None:
        self._most[pair] = min(most_us, self._most.get(pair, most_us))

    def most_us(self, later: Column, earlier: Column) -> int | None:
        """The most that ``later - earlier`` can be; None: no bound."""
        return self._most.get((later, earlier))


def needed_us(
    bounds: Iterable[Bound], event_times: Mapping[str, str], streams: Iterable[str]
) -> dict[str, int | None]:
    """By stream, how long after its event time a row can still match rows that are not late.

    A row of time t is of use as long as some other stream can bring a row that matches it, that is
    until the watermark reaches t plus the most that the other's event time can be ahead.
    None: for ever, since some other stream's time is not bounded (or it has no event time).
    """
    distances = Distances(bounds)
    columns = {name: Column(name, column) for name, column in event_times.items()}
    names = list(streams)
    found: dict[str, int | None] = {}
    for name in names:
        ahead = [
            distances.most_us(columns[other], columns[name])
            if name in columns and other in columns
            else None
            for other in names
            if other != name
        ]
        known = [most for most in ahead if most is not None]
        found[name] = max(0, *known) if len(known) == len(ahead) else None
    return found
