"""Aggregates right above a join, written over the columns of what it joins.

Only projections and aliases may stand between. A filter there judges results one by one, so it
keeps them from being counted together.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from lsmstate.joins.plan.conditions import Column, Expression, columns_of, may_move, substitute
from lsmstate.joins.plan.join_tree import (
    AggregateCall,
    Alias,
    Filter,
    MultiJoin,
    Node,
    Other,
    Project,
    parents_first,
)


@dataclass(frozen=True)
class JoinAggregate:
    """An aggregate whose input is a multi-way join under projections."""

    node: Other
    join: Node
    """What joins: a multi-way join, or what the caller takes for one."""
    calls: tuple[AggregateCall, ...]
    """Those of the node, over columns of the join's inputs."""
    kept: tuple[tuple[Column, Expression], ...]
    """What the node reads beside the arguments of calls: columns of its input, computed from those
    of the join's inputs."""

    @property
    def groups(self) -> tuple[Column, ...]:
        """The columns of the join's inputs that ``kept`` is computed from, by which groups are
        handed out."""
        read = {column for _, value in self.kept for column in columns_of(value)}
        return tuple(column for column in self.join.columns if column in read)


def is_multi_join(node: Node) -> bool:
    return isinstance(node, MultiJoin)


def aggregates_of_joins(
    plan: Node, is_join: Callable[[Node], bool] = is_multi_join
) -> Iterator[tuple[Other, JoinAggregate | str]]:
    """Each aggregate with a join below it; a text says why it cannot be computed inside that."""
    for node in parents_first(plan):
        if isinstance(node, Other) and node.aggregation is not None:
            below = parents_first(node.inputs[0])
            if any(map(is_join, below)):
                yield node, _of_join(node, is_join)


def explained_aggregate(node: Other, reason: str | None) -> str:
    """A line about an aggregate. ``reason``: why it is left to Spark; None: it is not."""
    assert node.aggregation is not None
    shown = ", ".join(map(str, node.aggregation.calls)) or "groups alone"
    groups = ", ".join(map(str, node.aggregation.groupings))
    by = f" by {groups}" if groups else ""
    if reason is None:
        return f"{shown}{by}: computed inside the join, one row per group and micro-batch"
    return f"{shown}{by}: left to Spark, which reads each result: {reason}"


def explained_columns(shown: int, entering: int) -> str:
    """A line about the columns of results."""
    return f"{shown} of {entering} columns leave the operator, since nothing above reads the others"


def _of_join(node: Other, is_join: Callable[[Node], bool]) -> JoinAggregate | str:
    assert node.aggregation is not None
    found = _values(node.inputs[0], is_join)
    if isinstance(found, str):
        return found
    join, values = found
    aggregation = node.aggregation
    read = {column for each in aggregation.groupings for column in columns_of(each)}
    if not aggregation.beside <= read:
        return "a result reads a column that is neither grouped by nor aggregated"
    kept = tuple((column, values[column]) for column in node.inputs[0].columns if column in read)
    calls = tuple(_over_join(call, values) for call in aggregation.calls)
    moved = [*aggregation.groupings, *(value for _, value in kept), *_expressions(calls)]
    if not all(map(may_move, moved)):
        return "an expression is not deterministic, or holds a subquery"
    return JoinAggregate(node, join, calls, kept)


def _values(
    node: Node, is_join: Callable[[Node], bool]
) -> tuple[Node, Mapping[Column, Expression]] | str:
    """The columns of a node, computed from those of the join below it."""
    if is_join(node):
        return node, {column: column for column in node.columns}
    match node:
        case Alias():
            return _values(node.input, is_join)
        case Project():
            below = _values(node.input, is_join)
            if isinstance(below, str):
                return below
            join, values = below
            return join, {c: substitute(value, values) for c, value in node.values}
        case Filter():
            return f"{node.condition} is left to Spark, which evaluates it on each result"
        case Other():
            return f"{node.name} stands between it and the joins"
    return "another join stands between it and the merged ones"


def _over_join(call: AggregateCall, values: Mapping[Column, Expression]) -> AggregateCall:
    condition = call.condition
    return replace(
        call,
        arguments=tuple(substitute(each, values) for each in call.arguments),
        condition=None if condition is None else substitute(condition, values),
    )


def _expressions(calls: tuple[AggregateCall, ...]) -> Iterator[Expression]:
    for call in calls:
        yield from call.arguments
        if call.condition is not None:
            yield call.condition
