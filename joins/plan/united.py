"""Multi-way joins whose results UNION ALL puts together: one operator can give them all.

Above it each result is that of one of the joins, and every value is computed as its branch of the
union says: the plan needs no union, hence no second copy of the operator.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from joins.plan.conditions import Column, Expression, all_of, is_eager, may_move, substitute
from joins.plan.join_tree import Alias, Filter, MultiJoin, Node, Other, Project, parents_first


@dataclass(frozen=True, eq=False)
class Branch:
    """A multi-way join, and what filters and projections make of its results, one by one."""

    multi_join: MultiJoin
    values: dict[Column, Expression]
    """The columns of the union, in order, computed from those of the join."""
    conditions: tuple[Expression, ...] = ()
    """Over the columns of the join; a result must meet all of them."""

    @property
    def condition(self) -> Expression | None:
        return all_of(self.conditions)


def unions_of_joins(plan: Node) -> Iterator[tuple[Other, list[Branch]]]:
    """Every union all of whose branches, of unions in it too, are multi-way joins under filters
    and projections; a union before those in it."""
    for node in parents_first(plan):
        if isinstance(node, Other) and node.name == "Union":
            branches = _branches(node)
            if branches is not None:
                yield node, branches


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
