"""Filters move down to the joins they belong to, so that a comma join shows its condition.

``FROM a, b, c WHERE a.x = b.x AND b.y = c.y`` arrives as a filter over joins without conditions.
Each conjunct moves to the lowest inner join that has all its columns, or below it to one side.
"""

from collections.abc import Sequence

from lsmstate.joins.plan.conditions import (
    Expression,
    all_of,
    columns_of,
    conjuncts,
    is_volatile,
    may_move,
    substitute,
)
from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    Join,
    MultiJoin,
    Node,
    Other,
    Project,
    Source,
    filtered,
    outputs_of,
    with_inputs,
)


def push_filters(plan: Node) -> tuple[Node, dict[Join, Join]]:
    """The plan with filters moved down, and which join of ``plan`` each of its joins was.

    Conjuncts pass inner joins, projections and aliases; they stay above everything else, above a
    shared subplan, and where they stand if they are volatile or hold a subquery.
    """
    pushing = _Pushing(plan)
    return pushing.push(plan, []), pushing.origins


class _Pushing:
    def __init__(self, plan: Node) -> None:
        self.origins: dict[Join, Join] = {}
        self._shared = {node for node, outputs in outputs_of(plan).items() if len(outputs) > 1}
        self._done: dict[Node, Node] = {}

    def push(self, node: Node, given: Sequence[Expression]) -> Node:
        """The node, rewritten, with what is ``given`` from above applied to its rows."""
        if node not in self._shared:
            return self._through(node, given)
        if node not in self._done:
            self._done[node] = self._through(node, [])
        return filtered(self._done[node], all_of(given))

    def _through(self, node: Node, given: Sequence[Expression]) -> Node:
        match node:
            case Filter():
                return self._through_filter(node, given)
            case Project() if not any(is_volatile(value) for _, value in node.values):
                return self._through_project(node, given)
            case Alias():
                return with_inputs(node, [self.push(node.input, given)])
            case Join(kind="inner"):
                return self._through_inner_join(node, given)
            case Source() | Project() | Other() | Join() | MultiJoin():
                above = with_inputs(node, [self.push(child, []) for child in node.inputs])
                if isinstance(node, Join) and isinstance(above, Join):
                    self.origins[above] = node
                return filtered(above, all_of(given))

    def _through_filter(self, node: Filter, given: Sequence[Expression]) -> Node:
        parts = conjuncts(node.condition)
        stay = [part for part in parts if not may_move(part)]
        below = [part for part in parts if may_move(part)]
        return filtered(self.push(node.input, [*given, *below]), all_of(stay))

    def _through_project(self, node: Project, given: Sequence[Expression]) -> Node:
        values = dict(node.values)
        below = {part: substitute(part, values) for part in given}
        stay = [part for part in given if not may_move(below[part])]
        moved = [value for value in below.values() if may_move(value)]
        return filtered(with_inputs(node, [self.push(node.input, moved)]), all_of(stay))

    def _through_inner_join(self, node: Join, given: Sequence[Expression]) -> Node:
        left: list[Expression] = []
        right: list[Expression] = []
        here: list[Expression] = []
        for part in [*conjuncts(node.condition), *given]:
            columns = columns_of(part)
            if not columns or not may_move(part):
                here.append(part)
            elif columns <= set(node.left.columns):
                left.append(part)
            elif columns <= set(node.right.columns):
                right.append(part)
            else:
                here.append(part)
        pushed = Join(
            self.push(node.left, left),
            self.push(node.right, right),
            all_of(here),
            handle=node.handle,
        )
        self.origins[pushed] = node
        return pushed
