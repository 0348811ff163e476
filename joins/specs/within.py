"""``within`` and ``window``: a distance in time, and windows of time, written into the condition.

Both are bounds between the event times of each two streams. So rows are forgotten by them, joins of
all types keep them, and a kept state or a checkpoint refuses others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Protocol

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column, quoted
from lsmstate.joins.conditions.from_clause import Side, is_from_clause, with_conditions
from lsmstate.joins.conditions.intervals import Bound, bounds_in
from lsmstate.joins.conditions.join_tree import SQL_NAMES, Comparison, bound_text
from lsmstate.joins.conditions.names import resolved
from lsmstate.joins.conditions.parser import parse_condition
from lsmstate.joins.specs.event_time import duration_us
from lsmstate.joins.specs.one_key import Condition
from lsmstate.joins.specs.typed_condition import How, kinds_of
from lsmstate.joins.specs.window import TimeWindow, WindowLike, time_window


class InTime(Protocol):
    """What ``lsmstate.join.Time`` says of distances."""

    @property
    def within(self) -> str | timedelta | None:
        """The largest distance."""
        ...

    @property
    def window(self) -> WindowLike | int | None:
        """The windows."""
        ...


def with_time(
    on: Condition,
    time: "InTime",
    times: Mapping[str, str],
    streams: Mapping[str, Sequence[str]],
    missing: str,
    how: How = "inner",
) -> tuple[Condition, How]:
    """The condition with the distance or the window that the event times of each two streams keep,
    and the types of joins that it does not say.

    It is kept at each join, between each stream on its left and each on its right. A stream that
    has no row in a result keeps no distance.

    Args:
        on: What is joined: a condition, or a FROM clause, which gets it at each of its joins.
        time: ``within`` and ``window`` count.
        times: The column of event times of each stream.
        streams: Columns of the streams.
        missing: What gives a stream an event time, for messages.
        how: The types of joins, where the condition does not say them.

    Raises:
        InvalidArgumentError: It is no length of time or no window, a stream has no event time, or
            the FROM clause cannot be read.
    """
    if time.within is None and time.window is None:
        return on, how
    within_us = None if time.within is None else duration_us("within", time.within)
    window = None if time.window is None else time_window(time.window)
    name = "within" if window is None else "window"
    told = f"{name}={getattr(time, name)!r}"
    found = {resolved("stream", name, streams): column for name, column in times.items()}
    lacking = [name for name in streams if name not in found]
    if lacking:
        raise InvalidArgumentError(f"{told}: stream {lacking[0]!r} has no event time; {missing}")
    distance = _Distance(
        {name: Column(name, resolved("column", found[name], own)) for name, own in streams.items()},
        within_us,
        window,
    )
    if isinstance(on, str) and is_from_clause(on):
        return with_conditions(on, streams, distance.between), how
    first, *later = streams
    kinds, left, text = kinds_of(streams, how), Side((first,)), quoted(first)
    keys = {} if isinstance(on, str) else _keys(on, streams)
    bounds: list[str] = []
    for name in later:
        own = [*distance.between(left, Side((name,)))]
        equal = _equal(keys, left, name)
        text += f" {SQL_NAMES[kinds[name]]} {quoted(name)} ON {' AND '.join([*equal, *own])}"
        left = left.joined(kinds[name], Side((name,)))
        bounds += own
    if isinstance(on, str):
        return " AND ".join([f"({on})", *bounds]), how
    return text, "inner"


@dataclass(frozen=True)
class _Distance:
    """What the event times of two streams keep."""

    columns: Mapping[str, Column]
    within_us: int | None
    window: TimeWindow | None

    def between(self, left: Side, right: Side) -> Iterator[str]:
        """The conditions of a join. A stream that may have no row there keeps them if it has."""
        for one, other in product(left.shown, right.shown):
            ends = self.columns[one], self.columns[other]
            kept = [
                bound_text(bound)
                for pair in (ends, ends[::-1])
                for bound in bounds_between(*pair, self.within_us, self.window)
            ]
            lost = [name for name in (one, other) if name in left.nullable | right.nullable]
            if lost:
                alone = [f"{self.columns[name]} IS NULL" for name in lost]
                kept = [f"({' OR '.join([*alone, ' AND '.join(kept)])})"]
            yield from kept


def bounds_between(
    later: Column, earlier: Column, within_us: int | None, window: TimeWindow | None
) -> Iterator[Bound]:
    """How far one event time may be after another one."""
    if within_us is not None:
        yield Bound(later, earlier, within_us)
    if window is not None:
        yield Bound(later, earlier, window.size_us, is_strict=True, slide_us=window.slide_us)


def without_windows(
    conjuncts: Iterable[str], streams: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """The conjuncts that are no windows, whose starts Spark has no function for."""
    parsed = ((each, parse_condition(each, streams)) for each in conjuncts)
    return tuple(
        each for each, found in parsed if not any(bound.slide_us for bound in bounds_in(found))
    )


def _keys(
    on: Mapping[str, Sequence[str]] | Sequence[str], streams: Mapping[str, Sequence[str]]
) -> dict[str, list[Column]]:
    """By stream its key columns. InvalidArgumentError names what does not fit."""
    lists = on if isinstance(on, Mapping) else dict.fromkeys(streams, on)
    named = {resolved("stream", name, streams): list(names) for name, names in lists.items()}
    if len({len(names) for names in named.values()}) != 1 or len(named) != len(streams):
        raise InvalidArgumentError(
            f"on={on!r}: every stream needs the same number of key columns, at least one"
        )
    return {
        name: [Column(name, resolved("column", each, columns, name)) for each in named[name]]
        for name, columns in streams.items()
    }


def _equal(keys: Mapping[str, Sequence[Column]], left: Side, name: str) -> list[str]:
    """The keys of a stream beside those of the streams before it, of which some may have no row."""
    found = []
    for place, own in enumerate(keys.get(name, ())):
        earlier = tuple(keys[each][place] for each in left.shown)
        sides = [earlier] if left.nullable else [(column,) for column in earlier]
        found += [str(Comparison(side, (own,))) for side in sides]
    return found
