"""Take a group of joins apart: its inputs, and the place of each condition.

- A condition on one input goes to that input.
- An equality of two inputs goes to a key class.
- Where key classes do not link all inputs, other conditions on several inputs belong to the join,
  if it can evaluate them (``known_condition``); also where two inputs are joined by a distance.
- All else (other comparisons, ``<=>``, volatile parts, subqueries) becomes a filter above.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from lsmstate.joins.plan.conditions import (
    Column,
    Comparison,
    Expression,
    all_of,
    columns_of,
    conjuncts,
    equal,
    key_classes,
    may_move,
    substitute,
)
from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    Join,
    KeyClass,
    MultiJoin,
    Node,
    Project,
    filtered,
)
from lsmstate.joins.plan.known_condition import bounds_distance, split_known


@dataclass(frozen=True)
class FlatGroup:
    """The parts of the multi-way join that stands for the group."""

    leaves: tuple[Node, ...]
    keys: tuple[KeyClass, ...]
    conditions: tuple[Expression, ...]
    """On several leaves, of the join itself. Where key classes link all leaves there are none,
    unless the join is by a distance beside."""
    leaf_filters: tuple[Expression | None, ...]
    above: Expression | None
    """Applied to the combinations."""
    values: dict[Column, Expression]
    """The columns of the group's root, in order, computed from those of the leaves."""
    spans: tuple[tuple[Join, range, range], ...]
    """Each join with the leaves of its left and of its right side, inner joins first."""

    def multi_join(self, group: int) -> MultiJoin:
        inputs = map(filtered, self.leaves, self.leaf_filters)
        is_linked = self.unlinked_join() is None
        return MultiJoin(tuple(inputs), self.keys, group, self.conditions, is_linked)

    def unlinked_join(self) -> Join | None:
        """The lowest join no key class of the group reaches across, directly or by others.

        None if and only if all leaves are linked. TPC-H writes joins whose link is made further
        up (Q8: part, supplier, lineitem); those are linked.
        """
        linked = _Links(len(self.leaves))
        for key in self.keys:
            linked.join([leaf for leaf, _ in key.members])
        for join, left, right in self.spans:
            if not linked.any_between(left, right):
                return join
        return None


def flatten(
    root: Join, members: frozenset[Node], leaf: Callable[[Node], Node] = lambda node: node
) -> FlatGroup:
    """Take the group apart; ``leaf`` converts each node below it, once per place it stands in."""
    gathering = _Gathering(members, leaf)
    values = gathering.gather(root)
    handed_out = _hand_out(gathering.conditions, gathering.owners, len(gathering.leaves))
    flat = FlatGroup(
        tuple(gathering.leaves),
        handed_out.keys,
        (),
        tuple(all_of(parts) for parts in handed_out.leaf_filters),
        all_of(handed_out.above),
        values,
        tuple(gathering.spans),
    )
    is_linked = flat.unlinked_join() is None
    if is_linked and not (len(flat.leaves) == 2 and any(map(bounds_distance, handed_out.above))):
        return flat
    return _with_conditions(flat, handed_out.above)


def _with_conditions(flat: FlatGroup, above: list[Expression]) -> FlatGroup:
    """The group, whose join evaluates what it can of the conditions above it."""
    known, rest = split_known(above, flat.leaves)
    return replace(flat, conditions=tuple(known), above=all_of(rest))


@dataclass
class _Gathering:
    members: frozenset[Node]
    leaf: Callable[[Node], Node]
    leaves: list[Node] = field(default_factory=list)
    owners: dict[Column, int] = field(default_factory=dict)
    conditions: list[Expression] = field(default_factory=list)
    spans: list[tuple[Join, range, range]] = field(default_factory=list)

    def gather(self, node: Node) -> dict[Column, Expression]:
        """Collect what lies below; the node's columns, computed from those of the leaves."""
        if node not in self.members:
            return self._add_leaf(self.leaf(node))
        match node:
            case Join():
                start = len(self.leaves)
                values = self.gather(node.left)
                middle = len(self.leaves)
                values |= self.gather(node.right)
                self._collect(node.condition, values)
                stop = len(self.leaves)
                self.spans.append((node, range(start, middle), range(middle, stop)))
                return values
            case Filter():
                values = self.gather(node.input)
                self._collect(node.condition, values)
                return values
            case Project():
                below = self.gather(node.input)
                return {column: substitute(value, below) for column, value in node.values}
            case Alias():
                return self.gather(node.input)
            case _:
                raise AssertionError(f"{type(node).__name__} cannot be a member of a group")

    def _add_leaf(self, node: Node) -> dict[Column, Expression]:
        """A shared node that stands in two places gets other column names in the second."""
        names = {column: self._free(column) for column in node.columns}
        if any(new != old for old, new in names.items()):
            node = Project(node, tuple((new, old) for old, new in names.items()))
        self.owners |= dict.fromkeys(names.values(), len(self.leaves))
        self.leaves.append(node)
        return dict(names)

    def _free(self, column: Column) -> Column:
        number = len(self.leaves)
        while column in self.owners:
            column = Column(f"{column.name}_{number}", column.number)
        return column

    def _collect(self, condition: Expression | None, values: dict[Column, Expression]) -> None:
        self.conditions += [substitute(part, values) for part in conjuncts(condition)]


@dataclass
class _HandedOut:
    leaf_filters: list[list[Expression]]
    keys: tuple[KeyClass, ...]
    above: list[Expression]


def _hand_out(
    conditions: Iterable[Expression], owners: dict[Column, int], leaves: int
) -> _HandedOut:
    def read_by(expression: Expression) -> set[int]:
        return {owners[column] for column in columns_of(expression)}

    leaf_filters: list[list[Expression]] = [[] for _ in range(leaves)]
    equalities = []
    above = []
    for part in dict.fromkeys(conditions):
        read = read_by(part)
        if not may_move(part) or not 1 <= len(read) <= 2:
            above.append(part)
        elif len(read) == 1:
            leaf_filters[read.pop()].append(part)
        elif (
            isinstance(part, Comparison)
            and part.operator == "="
            and len(read_by(part.left)) == len(read_by(part.right)) == 1
        ):
            equalities.append(part)
        else:
            above.append(part)
    keys = []
    for members in key_classes(equalities):
        representatives: dict[int, Expression] = {}
        for expression in members:
            (leaf,) = read_by(expression)
            first = representatives.setdefault(leaf, expression)
            if first is not expression:
                leaf_filters[leaf].append(equal(first, expression))
        keys.append(KeyClass(tuple(sorted(representatives.items(), key=lambda item: item[0]))))
    return _HandedOut(leaf_filters, tuple(keys), above)


class _Links:
    """Which leaves are linked, as sets that are merged."""

    def __init__(self, leaves: int) -> None:
        self._set_of = list(range(leaves))

    def join(self, leaves: list[int]) -> None:
        merged = {self._set_of[leaf] for leaf in leaves}
        self._set_of = [min(merged) if own in merged else own for own in self._set_of]

    def any_between(self, left: range, right: range) -> bool:
        return not {self._set_of[leaf] for leaf in left}.isdisjoint(
            self._set_of[leaf] for leaf in right
        )
