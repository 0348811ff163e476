"""Multi-way joins whose results a UNION ALL combines: one operator serves all of them.

Each row above the operator is a result of one of the joins, and every value is computed as its
branch says. The plan then needs no union, and no second operator.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lsmstate.joins.plan.conditions import (
    Column,
    Expression,
    all_of,
    is_eager,
    may_move,
    substitute,
)
from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    MultiJoin,
    Node,
    Other,
    Project,
    parents_first,
    with_inputs,
)


@dataclass(frozen=True, eq=False)
class Branch:
    """A multi-way join, with the filters and projections of its branch."""

    multi_join: MultiJoin
    values: dict[Column, Expression]
    """The columns of the union, in order, computed from those of the join."""
    conditions: tuple[Expression, ...] = ()
    """Over the columns of the join; a result must meet all of them."""

    @property
    def condition(self) -> Expression | None:
        return all_of(self.conditions)


def with_joins_gathered(plan: Node) -> Node:
    """Gather the multi-way joins beside other inputs of a union into a union of their own.

    Inputs of a nested union count as inputs of the outer one. SQL nests ``s UNION ALL t UNION ALL
    u`` so that s and t are closer to each other.
    """
    gathered: dict[Node, Node] = {}
    for node in reversed(list(parents_first(plan))):
        rebuilt = with_inputs(node, [gathered[below] for below in node.inputs])
        gathered[node] = _gathered(rebuilt)
    return gathered[plan]


def unions_of_joins(plan: Node) -> Iterator[tuple[Other, list[Branch]]]:
    """Each union whose branches are all multi-way joins under filters and projections. A union
    comes before those in it."""
    for node in parents_first(plan):
        if isinstance(node, Other) and node.name == "Union":
            branches = _branches(node)
            if branches is not None:
                yield node, branches


def _gathered(node: Node) -> Node:
    if not isinstance(node, Other) or node.name != "Union":
        return node
    inputs = list(_flat_inputs(node))
    joined = [below for below in inputs if _branches(below) is not None]
    fits = all(len(below.columns) == len(node.columns) for below in inputs)
    if len(joined) < 2 or len(joined) == len(inputs) or not fits:
        return node
    together = Other("Union", tuple(joined), joined[0].columns, handle=node.handle)
    place = inputs.index(joined[0])
    others = [below for below in inputs if below not in joined]
    return replace(node, inputs=(*others[:place], together, *others[place:]))


def _flat_inputs(node: Node) -> Iterator[Node]:
    """Those of a union and of the unions that are its inputs."""
    if isinstance(node, Other) and node.name == "Union":
        for below in node.inputs:
            yield from _flat_inputs(below)
    else:
        yield node


def _branches(node: Node) -> list[Branch] | None:
    """None where something else stands, or an expression that must stay where it is."""
    match node:
        case MultiJoin():
            return [Branch(node, {column: column for column in node.columns})]
        case Alias():
            return _branches(node.input)
        case Filter() if _can_be_chosen(node.condition):
            below = _branches(node.input)
            return below and [_filtered(branch, node) for branch in below]
        case Project() if all(_can_be_chosen(value) for _, value in node.values):
            below = _branches(node.input)
            return below and [_projected(branch, node) for branch in below]
        case Other(name="Union"):
            return _of_all_inputs(node)
    return None


def _can_be_chosen(expression: Expression) -> bool:
    """Whether it can stand beside those of other branches, and be evaluated for its own rows."""
    return may_move(expression) and not is_eager(expression)


def _filtered(branch: Branch, node: Filter) -> Branch:
    condition = substitute(node.condition, branch.values)
    return replace(branch, conditions=(*branch.conditions, condition))


def _projected(branch: Branch, node: Project) -> Branch:
    return replace(branch, values={c: substitute(value, branch.values) for c, value in node.values})


def _of_all_inputs(union: Other) -> list[Branch] | None:
    """A union takes columns by their place."""
    found: list[Branch] = []
    for node in union.inputs:
        below = _branches(node)
        if below is None or len(node.columns) != len(union.columns):
            return None
        for branch in below:
            values = [branch.values[column] for column in node.columns]
            found.append(replace(branch, values=dict(zip(union.columns, values, strict=True))))
    return found
