"""``within`` and ``window``: a distance in time, and windows of time, written into the condition.

Both are bounds between the event times of each two streams. So rows are forgotten by them, joins of
all types keep them, and a kept state or a checkpoint refuses others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import combinations
from typing import Protocol

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.from_clause import is_from_clause
from lsmstate.joins.conditions.intervals import Bound, bounds_in
from lsmstate.joins.conditions.join_tree import bound_text
from lsmstate.joins.conditions.names import resolved
from lsmstate.joins.conditions.parser import parse_condition
from lsmstate.joins.conditions.predicate import Equal, text_of
from lsmstate.joins.specs.event_time import duration_us
from lsmstate.joins.specs.one_key import Condition
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
) -> Condition:
    """The condition, with the distance or the window that the event times of each two streams keep.

    Args:
        on: What is joined.
        time: ``within`` and ``window`` count.
        times: The column of event times of each stream.
        streams: Columns of the streams.
        missing: What gives a stream an event time, for messages.

    Raises:
        InvalidArgumentError: It is no length of time or no window, a stream has no event time, or
            ``on`` is a FROM clause.
    """
    if time.within is None and time.window is None:
        return on
    within_us = None if time.within is None else duration_us("within", time.within)
    window = None if time.window is None else time_window(time.window)
    name = "within" if window is None else "window"
    told = f"{name}={getattr(time, name)!r}"
    if isinstance(on, str) and is_from_clause(on):
        remedy = (
            "write the time intervals into its ON, as in a.at BETWEEN b.at - INTERVAL 1 HOUR AND "
            "b.at + INTERVAL 1 HOUR"
            if window is None
            else 'give the condition alone, and the types by how, as in how={"b": "left"}'
        )
        raise InvalidArgumentError(
            f"{told} is for conditions, and on={on!r} is a FROM clause; {remedy}"
        )
    found = {resolved("stream", name, streams): column for name, column in times.items()}
    lacking = [name for name in streams if name not in found]
    if lacking:
        raise InvalidArgumentError(f"{told}: stream {lacking[0]!r} has no event time; {missing}")
    columns = [Column(name, resolved("column", found[name], streams[name])) for name in streams]
    bounds = [
        bound_text(bound)
        for one, other in combinations(columns, 2)
        for pair in ((one, other), (other, one))
        for bound in bounds_between(*pair, within_us, window)
    ]
    keys = [f"({on})"] if isinstance(on, str) else list(_equalities(on, streams))
    return " AND ".join([*keys, *bounds])


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


def _equalities(
    on: Mapping[str, Sequence[str]] | Sequence[str], streams: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Lists of key columns as text."""
    lists = on if isinstance(on, Mapping) else dict.fromkeys(streams, on)
    named = {resolved("stream", name, streams): list(names) for name, names in lists.items()}
    if len({len(names) for names in named.values()}) != 1 or len(named) != len(streams):
        raise InvalidArgumentError(
            f"on={on!r}: every stream needs the same number of key columns, at least one"
        )
    first, *others = streams
    for place, name in enumerate(named[first]):
        one = Column(first, resolved("column", name, streams[first], first))
        for stream in others:
            other = resolved("column", named[stream][place], streams[stream], stream)
            yield text_of(Equal(one, Column(stream, other)))
