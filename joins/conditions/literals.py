"""Dates, times and lengths of time as SQL text has them."""

import re
from collections.abc import Iterable
from datetime import date, datetime
from fractions import Fraction
from typing import Final

_UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
#: Year, or year and month, or all three and anything after a space or T.
_DATE: Final = re.compile(
    r"[+]?([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL
)
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{0,6}))?)?)?"
)
_AMOUNT: Final = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)
_SPAN_UNITS: Final = ("day", "hour", "minute", "second")


def date_of(text: str) -> date | None:
    """The date that a text names, as Spark reads it; None for years below 1 or above 9999."""
    found = _DATE.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day = (int(part or 1) for part in found.groups())
    try:
        return date(year, month, day)
    except ValueError:
        return None


def time_of(text: str) -> datetime | None:
    """The time stamp without a zone that a text names; None for other texts."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    *parts, fraction = found.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    fraction_us = int((fraction or "0").ljust(6, "0"))
    try:
        return datetime(year, month, day, hour, minute, second, fraction_us)
    except ValueError:
        return None


def length_of(text: str) -> tuple[int, bool] | None:
    """The microseconds of a length of time such as ``1 hour 30 minutes``, and whether it says days
    or weeks; None if it is no fixed length."""
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


def span_of(text: str, first: str, last: str) -> tuple[int, bool] | None:
    """The same of ``INTERVAL 'text' first TO last``, as in ``'1 12:30' DAY TO MINUTE``."""
    if not {first, last} <= set(_SPAN_UNITS):
        return None
    units = _SPAN_UNITS[_SPAN_UNITS.index(first) : _SPAN_UNITS.index(last) + 1]
    written = text.strip()
    is_negative, written = written.startswith("-"), written.lstrip("+-")
    found = re.fullmatch(_span_pattern(units), written)
    if len(units) < 2 or found is None:
        return None
    amounts = zip(found.groups(), units, strict=True)
    total = sum((Fraction(number) * _UNITS_US[unit] for number, unit in amounts), Fraction(0))
    return (-int(total) if is_negative else int(total)), "day" in units


def _span_pattern(units: Iterable[str]) -> str:
    pattern, before = "", ""
    for unit in units:
        pattern += {"": "", "day": " "}.get(before, ":")
        pattern += r"(\d{1,2}(?:\.\d{1,6})?)" if unit == "second" else r"(\d+)"
        before = unit
    return pattern


def duration_text(length_us: int, *, has_days: bool) -> str:
    """A length of time in SQL's words, as ``length_of`` reads it; in days only if asked to."""
    parts = []
    for unit in ("day", "hour", "minute", "second", "microsecond")[not has_days :]:
        count, length_us = divmod(length_us, _UNITS_US[unit])
        if count:
            parts.append(f"{count} {unit.upper()}{'S' if count > 1 else ''}")
    return " ".join(parts) or "0 SECONDS"
