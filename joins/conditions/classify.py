"""What each part of an inner join's condition is: a key, or a filter of what the keys match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.computed import ComputedColumns, Computing
from lsmstate.joins.conditions.from_clause import is_from_clause, parse_joins
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.conditions.predicate import Equal, Expression, Or, text_of


@dataclass(frozen=True, slots=True)
class SplitCondition:
    """Both parts hold for a result row."""

    keys: str
    """Equalities of columns of two streams, joined by AND."""
    rest: tuple[str, ...]
    """The other conjuncts, as they are written."""


def split_condition(text: str, columns: Mapping[str, Sequence[str]]) -> SplitCondition:
    """Sort the conjuncts of an inner join's condition.

    An equality that would make two columns of one stream equal (``a.k = b.j`` beside ``a.k = b.k``)
    is a filter: what the keys match, it tells apart.

    Args:
        text: The condition.
        columns: Columns of the streams.

    Raises:
        InvalidArgumentError: A syntax error, an unknown name, or no two streams are equated.
    """
    keys: list[str] = []
    rest: list[str] = []
    classes: list[dict[str, Column]] = []
    for conjunct in parse_conjuncts(text, columns):
        pair = equated(conjunct.predicate)
        if pair is not None and _is_merged(classes, *pair):
            keys.append(text_of(conjunct.predicate))
        else:
            rest.append(conjunct.text)
    if not keys:
        raise InvalidArgumentError(
            f"join condition: no column is equal to one of another stream in {text!r}; supported "
            'are equalities such as "a.id = b.id", joined by AND with each other and with '
            "conditions that filter what they match"
        )
    return SplitCondition(" AND ".join(keys), tuple(rest))


def equated(predicate: Expression) -> tuple[Column, Column] | None:
    """The columns of two streams that a predicate equates; None if it says something else."""
    match predicate:
        case Equal(Column() as left, Column() as right) if left.stream != right.stream:
            return left, right
    return None


def _is_merged(classes: list[dict[str, Column]], left: Column, right: Column) -> bool:
    """Whether both columns can be of one class, by stream; they are from then on."""
    found = [each for each in classes if left in each.values() or right in each.values()]
    merged: dict[str, Column] = {}
    for column in (*(c for each in found for c in each.values()), left, right):
        if merged.setdefault(column.stream, column) != column:
            return False
    classes[:] = [each for each in classes if each not in found] + [merged]
    return True


def with_computed(
    text: str,
    columns: Mapping[str, Sequence[str]],
    streams: Mapping[str, pa.Schema] | None = None,
) -> tuple[str, ComputedColumns]:
    """The condition, or the FROM clause, over columns that are computed where a key is none.

    Args:
        text: The condition.
        columns: Columns of the streams.
        streams: Their types, if text is to be compared with a number in the number's type.
    """
    computing = Computing(columns, streams)
    if is_from_clause(text):
        tree = parse_joins(text, columns, computing)
        return (str(tree) if computing.found else text), ComputedColumns(computing.found)
    written = []
    for conjunct in parse_conjuncts(text, columns):
        predicate = computing.of(conjunct.predicate)
        is_same = predicate is conjunct.predicate or predicate == conjunct.predicate
        is_or = isinstance(predicate, Or)
        own = f"({conjunct.text})" if is_or else conjunct.text
        written.append(own if is_same else text_of(predicate))
    found = " AND ".join(written) if computing.found else text
    return found, ComputedColumns(computing.found)
