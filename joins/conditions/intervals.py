"""Time-interval conditions between columns: ``a.ts BETWEEN b.ts - INTERVAL 1 HOUR AND b.ts``.

condition := side ('<' | '<=' | '>' | '>=' | '=' | '==') side  |  side BETWEEN side AND side
side := [interval '+'] column (('+' | '-') interval)*
interval := INTERVAL (number unit)+, quoted or not: INTERVAL 1 HOUR 30 MINUTES, INTERVAL '1' DAY

Units are weeks to microseconds, a day being 24 hours; months and years have no fixed length, so a
condition with one is not read here. What is read says how far apart two columns may be: a *bound*.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_classes import resolved
from lsmstate.joins.conditions.tokens import Column

#: Of time stamps, each a thousandth of the one before.
UNITS: Final = ("s", "ms", "us", "ns")
DAY_US = 86_400_000_000
_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY_US,
    "week": 7 * DAY_US,
}
_TOKEN = re.compile(
    r"""\s*(?: `(?P<quoted>(?:[^`]|``)+)` | '(?P<text>[^']*)' | (?P<word>[^\W\d]\w*)
             | (?P<number>\d+(?:\.\d*)?|\.\d+) | (?P<sign><=>|<=|>=|<>|!=|==|\S) )""",
    re.VERBOSE,
)
_AMOUNT = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)
#: Sign of a comparison -> whether right <= left follows, whether left <= right does, and whether
#: the sides have to differ.
_COMPARISONS = {
    "<": (False, True, True),
    "<=": (False, True, False),
    ">": (True, False, True),
    ">=": (True, False, False),
    "=": (True, True, False),
    "==": (True, True, False),
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

    def widened(self, by_us: int) -> "Bound":
        """The same with room to spare."""
        return replace(self, most_us=self.most_us + by_us)


@dataclass(frozen=True, slots=True)
class _Side:
    """``column + offset_us``."""

    column: Column
    offset_us: int
    has_days: bool


def parse_bounds(text: str) -> tuple[Bound, ...] | None:
    """The bounds that a conjunct sets between two columns; None if it says something else."""
    reader = _Reader(text)
    left = reader.side()
    if left is None:
        return None
    found: list[Bound] = []
    sign = reader.next_text()
    if sign.upper() == "BETWEEN":
        low = reader.side()
        if low is None or reader.next_text().upper() != "AND":
            return None
        high = reader.side()
        if high is None:
            return None
        found = [_bound(low, left, is_strict=False), _bound(left, high, is_strict=False)]
    elif sign in _COMPARISONS:
        right = reader.side()
        if right is None:
            return None
        is_over, is_under, is_strict = _COMPARISONS[sign]
        found += [_bound(right, left, is_strict=is_strict)] if is_over else []
        found += [_bound(left, right, is_strict=is_strict)] if is_under else []
    if not found or not reader.is_at_end or any(b.later == b.earlier for b in found):
        return None
    return tuple(found)


def resolved_bound(columns: Mapping[str, Sequence[str]], bound: Bound) -> Bound:
    """With the names as the streams, whose ``columns`` are given, spell them.
    InvalidArgumentError for one that is not there."""

    def spelled(column: Column) -> Column:
        stream = resolved("stream", column.stream, columns)
        return Column(stream, resolved("column", column.name, columns[stream], stream))

    return replace(bound, later=spelled(bound.later), earlier=spelled(bound.earlier))


def _bound(low: _Side, high: _Side, *, is_strict: bool) -> Bound:
    """``low <= high``, as a bound."""
    offset = high.offset_us - low.offset_us
    return Bound(low.column, high.column, offset, is_strict, low.has_days or high.has_days)


class _Reader:
    """The tokens of a conjunct, one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_TOKEN.finditer(text.strip()))
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._tokens)

    def next_text(self) -> str:
        """A word or a sign; empty at the end, and for anything else."""
        if self.is_at_end:
            return ""
        token = self._tokens[self._at]
        self._at += 1
        return token["word"] or token["sign"] or ""

    def side(self) -> _Side | None:
        offset, has_days = 0, False
        if self._is_interval():
            interval = self._interval()
            if interval is None or self.next_text() != "+":
                return None
            offset, has_days = interval
        column = self._column()
        if column is None:
            return None
        while not self.is_at_end and self._tokens[self._at]["sign"] in ("+", "-"):
            sign = 1 if self.next_text() == "+" else -1
            interval = self._interval() if self._is_interval() else None
            if interval is None:
                return None
            offset, has_days = offset + sign * interval[0], has_days or interval[1]
        return _Side(column, offset, has_days)

    def _is_interval(self) -> bool:
        """Not a stream of that name, which has a dot behind it."""
        here = self._tokens[self._at : self._at + 2]
        return (
            len(here) == 2
            and (here[0]["word"] or "").upper() == "INTERVAL"
            and here[1]["sign"] != "."
        )

    def _column(self) -> Column | None:
        names = []
        for place in range(3):
            if self.is_at_end:
                return None
            token = self._tokens[self._at]
            self._at += 1
            if place == 1:
                if token["sign"] != ".":
                    return None
            elif token["quoted"]:
                names.append(token["quoted"].replace("``", "`"))
            elif token["word"]:
                names.append(token["word"])
            else:
                return None
        return Column(*names)

    def _interval(self) -> tuple[int, bool] | None:
        """Microseconds, and whether there are days among them; None if it is no fixed length."""
        self._at += 1
        written = ""
        while not self.is_at_end:
            token = self._tokens[self._at]
            is_sign = token["sign"] in ("+", "-") and not re.search(r"\d", written)
            is_unit = token["word"] and re.search(r"\d\s*$", written)
            is_number = (token["number"] or token["text"]) and not re.search(r"\d\s*$", written)
            if not (is_sign or is_unit or is_number):
                break
            written += f" {token['text'] or token[0]}"
            self._at += 1
        return _microseconds(written)


def _microseconds(text: str) -> tuple[int, bool] | None:
    total, has_days, at = Fraction(0), False, 0
    while found := _AMOUNT.match(text, at):
        sign, number, unit = found.groups()
        name = unit.lower().removesuffix("s")
        if name not in _UNITS_US:
            return None
        total += (-1 if sign == "-" else 1) * Fraction(number) * _UNITS_US[name]
        has_days |= name in ("day", "week")
        at = found.end()
    if at == 0 or text[at:].strip() or total.denominator != 1:
        return None
    return int(total), has_days


def parse_duration(value: str, what: str) -> int:
    """Microseconds of a length of time such as ``7 days`` or ``1 hour 30 minutes``.
    InvalidArgumentError, about ``what``, for anything else."""
    written = re.sub(r"^\s*interval\b", "", value, flags=re.IGNORECASE)
    found = _microseconds(written)
    if found is None:
        raise InvalidArgumentError(
            f"{what}={value!r} is not a duration; write weeks, days, hours, minutes or seconds, "
            'such as "7 days" or "1 hour 30 minutes", or give a timedelta'
        )
    return found[0]


def duration_text(length_us: int, *, has_days: bool) -> str:
    """A length of time in SQL's words, as ``parse_duration`` reads it; in days only if asked to."""
    parts = []
    for unit in ("day", "hour", "minute", "second", "microsecond")[not has_days :]:
        count, length_us = divmod(length_us, _UNITS_US[unit])
        if count:
            parts.append(f"{count} {unit.upper()}{'S' if count > 1 else ''}")
    return " ".join(parts) or "0 SECONDS"


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
