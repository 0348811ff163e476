"""``within``: a distance in time for all pairs of streams, written into the condition."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import combinations

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.from_clause import is_from_clause
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import bound_text
from lsmstate.joins.conditions.names import resolved
from lsmstate.joins.conditions.predicate import Equal, text_of
from lsmstate.joins.specs.event_time import duration_us
from lsmstate.joins.specs.one_key import Condition


def with_distance(
    on: Condition,
    within: str | timedelta | None,
    times: Mapping[str, str],
    streams: Mapping[str, Sequence[str]],
    missing: str,
) -> Condition:
    """The condition, with the distance between the event times of each two streams.

    Args:
        on: What is joined.
        within: The largest distance; None: any.
        times: The column of event times of each stream.
        streams: Columns of the streams.
        missing: What gives a stream an event time, for messages.

    Raises:
        InvalidArgumentError: It is no length of time, a stream has no event time, or ``on`` is a
            FROM clause.
    """
    if within is None:
        return on
    most_us = duration_us("within", within)
    if isinstance(on, str) and is_from_clause(on):
        raise InvalidArgumentError(
            f"within={within!r} is for conditions, and on={on!r} is a FROM clause; write the time "
            "intervals into its ON, as in a.at BETWEEN b.at - INTERVAL 1 HOUR AND b.at + INTERVAL "
            "1 HOUR"
        )
    found = {resolved("stream", name, streams): column for name, column in times.items()}
    lacking = [name for name in streams if name not in found]
    if lacking:
        raise InvalidArgumentError(
            f"within={within!r}: stream {lacking[0]!r} has no event time; {missing}"
        )
    columns = [Column(name, resolved("column", found[name], streams[name])) for name in streams]
    bounds = [
        bound_text(Bound(later, earlier, most_us))
        for one, other in combinations(columns, 2)
        for later, earlier in ((one, other), (other, one))
    ]
    keys = [f"({on})"] if isinstance(on, str) else list(_equalities(on, streams))
    return " AND ".join([*keys, *bounds])


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
