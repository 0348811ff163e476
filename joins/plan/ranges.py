"""Comparisons beside the keys of a join of two inputs, which may find its rows by them."""

from collections.abc import Mapping
from dataclasses import replace

from lsmstate.joins.plan.conditions import Comparison, Expression, all_of, conjuncts
from lsmstate.joins.plan.join_tree import (
    Filter,
    MultiJoin,
    Node,
    filtered,
    parents_first,
    with_inputs,
)
from lsmstate.joins.plan.known_condition import split_known
from lsmstate.joins.plan.tsc import Conversion


def with_ranges(conversion: Conversion) -> Conversion | None:
    """Give a join the conditions that only filter its results.

    Args:
        conversion: The conversion.

    Returns:
        The conversion, whose one join evaluates what it knows of the filter above it. None where
        that has no comparison of two inputs by ``<``, ``<=``, ``>`` or ``>=``, the join is not one
        of two inputs by keys, or there are several.
    """
    if len(conversion.multi_joins) != 1:
        return None
    for node in parents_first(conversion.after):
        if isinstance(node, Filter) and isinstance(node.input, MultiJoin):
            join = _ranged(node.input, node.condition)
            if join is not None:
                rest = [c for c in conjuncts(node.condition) if c not in join.conditions]
                after = _replaced(conversion.after, {node: filtered(join, all_of(rest))})
                return replace(conversion, after=after, multi_joins=(join,))
    return None


def _ranged(join: MultiJoin, above: Expression) -> MultiJoin | None:
    if len(join.inputs) != 2 or not join.is_linked or join.conditions:
        return None
    # A row without a partner by the keys is in no combination: nothing is computed of it.
    known, _ = split_known(conjuncts(above), join.inputs, is_certain=False)
    if not any(isinstance(c, Comparison) and c.operator in ("<", "<=", ">", ">=") for c in known):
        return None
    return replace(join, conditions=tuple(known))


def _replaced(plan: Node, made: Mapping[Node, Node]) -> Node:
    """The plan with other nodes in place of some; a shared node stays one."""
    visited = dict(made)

    def of(node: Node) -> Node:
        if node not in visited:
            visited[node] = with_inputs(node, [of(below) for below in node.inputs])
        return visited[node]

    return of(plan)
