"""Warn of a time interval that forgets no row, so that a join keeps its rows for ever.

An interval bounds how long rows are kept if it is between the event times of both streams. What is
written as one and is none filters the results, and the state grows with the input.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError, LsmStateWarning
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.from_clause import is_from_clause, parse_joins
from lsmstate.joins.conditions.join_tree import bound_text, joins_of
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.conditions.predicate import (
    Constant,
    Duration,
    Expression,
    Unknown,
    all_parts,
    columns_of,
    text_of,
)
from lsmstate.joins.specs.event_time import unfit_times
from lsmstate.joins.specs.one_key import Condition

#: A length of time that differs from month to month.
_MONTHS: Final = re.compile(r"(?i)\binterval\b.*\b(month|year|quarter)s?\b")
#: Frames between this module and the program: a face of joins, and its check of names.
_CALLER: Final = 4


def warn_of_kept_rows(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    event_times: Mapping[str, str],
    remedy: Callable[[Mapping[str, str]], str],
    *,
    depth: int = 0,
) -> None:
    """Warn of each interval of a condition that forgets nothing, with the cause and the remedy.

    Args:
        streams: Columns of the streams.
        on: What is joined; a list of columns has no interval.
        event_times: The column of the event times of each stream that has some.
        remedy: What gives streams event times: of each stream its column.
        depth: Frames between a face of joins and the call.
    """
    for text, predicate in _written(streams, on):
        cause = _cause(streams, predicate, event_times, remedy)
        if cause is not None:
            warnings.warn(
                f"the time interval {text!r} forgets no row, so the rows of "
                f"{_listed(_streams(predicate))} are kept for ever: {cause}",
                LsmStateWarning,
                stacklevel=_CALLER + depth,
            )


def _written(streams: Mapping[str, pa.Schema], on: Condition) -> Iterator[tuple[str, Expression]]:
    """The parts of a condition that have a length of time, and columns of several streams."""
    if not isinstance(on, str):
        return
    columns = {name: schema.names for name, schema in streams.items()}
    try:
        found = _predicates(on, columns)
    except InvalidArgumentError:
        return  # the join tells what does not fit
    for text, predicate in found:
        if len(_streams(predicate)) > 1 and _has_length(predicate):
            yield text, predicate


def _predicates(on: str, columns: Mapping[str, list[str]]) -> list[tuple[str, Expression]]:
    if not is_from_clause(on):
        return [(each.text, each.predicate) for each in parse_conjuncts(on, columns)]
    joins = list(joins_of(parse_joins(on, columns)))
    bounds = " AND ".join(bound_text(bound) for join in joins for bound in join.bounds)
    found = [
        (text_of(each.predicate), each.predicate) for join in joins for each in join.conditions
    ]
    if bounds:
        found += [(each.text, each.predicate) for each in parse_conjuncts(bounds, columns)]
    return found


def _has_length(predicate: Expression) -> bool:
    return _has_months(predicate) or any(
        isinstance(part, Constant) and isinstance(part.value, Duration)
        for part in all_parts(predicate)
    )


def _has_months(predicate: Expression) -> bool:
    return any(
        isinstance(part, Unknown) and _MONTHS.search(part.text) for part in all_parts(predicate)
    )


def _cause(
    streams: Mapping[str, pa.Schema],
    predicate: Expression,
    event_times: Mapping[str, str],
    remedy: Callable[[Mapping[str, str]], str],
) -> str | None:
    if _has_months(predicate):
        return "months and years differ in length; write days or hours"
    unfit = unfit_times(streams, columns_of(predicate))
    if unfit is not None:
        return unfit
    stamps = [c for c in columns_of(predicate) if pa.types.is_timestamp(_type(streams, c))]
    if len({c.stream for c in stamps}) < 2:
        return None  # no interval between two streams
    lacking = {c.stream: c.name for c in stamps if c.stream not in event_times}
    if lacking:
        have = "has" if len(lacking) == 1 else "have"
        return f"{_listed(lacking)} {have} no event time; {remedy(lacking)}"
    other = [c for c in stamps if c.name != event_times[c.stream]]
    if other:
        told = ", ".join(f"that of {c.stream} is {event_times[c.stream]}" for c in other)
        return f"{_listed(other)} is not the event time of its stream ({told}); compare event times"
    return None


def _type(streams: Mapping[str, pa.Schema], column: Column) -> pa.DataType:
    return streams[column.stream].field(column.name).type


def _streams(predicate: Expression) -> list[str]:
    return list(dict.fromkeys(column.stream for column in columns_of(predicate)))


def _listed(names: Iterable[object]) -> str:
    return " and ".join(map(str, names))
