"""Columns that nothing above a multi-way join reads do not enter it: it would store them for ever.

A key that has to be computed is computed below the join and stored as a column. So is what a
condition of the join has of one input, unless the join can compute it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from lsmstate.joins.plan.conditions import Column, Expression, columns_of
from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    Join,
    KeyClass,
    MultiJoin,
    Node,
    Other,
    Project,
    Source,
    with_inputs,
)
from lsmstate.joins.plan.known_condition import MakesColumn, prepared

#: What a computed key is called, before a number.
_KEY: Final = "key_"


#: Whether multi-way joins read a column of an input beside their conditions.
Reads = Callable[[Column], bool]


def pruned(
    plan: Node,
    needed: Iterable[Column] | None = None,
    *,
    reads: Reads = lambda _: False,
    shows_all: bool = True,
    made: dict[Node, frozenset[Column]] | None = None,
) -> Node:
    """The plan, whose multi-way joins have a ``Project`` as every input.

    Args:
        plan: The plan.
        needed: The columns of the root that are read; None: all. Operators that do not say what
            they read are taken to read all of their inputs.
        reads: What multi-way joins need beside their conditions.
        shows_all: Whether results of multi-way joins have all columns that enter them; otherwise
            only those that are read.
        made: Nodes that are left as they are, with all below them; set to what is read of them.
    """
    return _Pruning(reads, shows_all, {} if made is None else made).of(plan, needed)


class _Pruning:
    def __init__(self, reads: Reads, shows_all: bool, made: dict[Node, frozenset[Column]]) -> None:
        self._reads = reads
        self._shows_all = shows_all
        self._made = made

    def of(self, plan: Node, needed: Iterable[Column] | None = None) -> Node:
        wanted = frozenset(plan.columns if needed is None else needed)
        if plan in self._made:
            self._made[plan] |= wanted
            return plan
        match plan:
            case Source():
                return plan
            case MultiJoin():
                return self._join(plan, wanted)
            case Project():
                values = tuple((column, value) for column, value in plan.values if column in wanted)
                below = self.of(plan.input, _columns(value for _, value in values))
                if len(values) == len(plan.values):
                    return with_inputs(plan, [below])
                return Project(below, values)
            case Filter():
                both = wanted | columns_of(plan.condition)
                return with_inputs(plan, [self.of(plan.input, both)])
            case Alias():
                return with_inputs(plan, [self.of(plan.input, wanted)])
            case Join():
                both = wanted | (columns_of(plan.condition) if plan.condition else frozenset())
                sides = [self.of(s, both & set(s.columns)) for s in plan.inputs]
                return with_inputs(plan, sides)
            case Other():
                return with_inputs(plan, [self._below(plan, child) for child in plan.inputs])

    def _below(self, node: Other, child: Node) -> Node:
        """The same columns for an operator of several inputs, such as a union, which goes by
        place."""
        if len(node.inputs) > 1:
            found = self.of(child)
            same = tuple((column, column) for column in child.columns)
            return found if found.columns == child.columns else Project(found, same)
        return self.of(child, node.reads)

    def _join(self, plan: MultiJoin, wanted: frozenset[Column]) -> MultiJoin:
        join = _pruned_join(plan, wanted, self)
        if self._shows_all:
            return join
        shown = frozenset(c for c in join.columns if c in wanted or self._reads(c))
        # A result without columns is none.
        return replace(join, shown=shown or frozenset(join.columns[:1]))

    def reads(self, column: Column) -> bool:
        return self._reads(column)


def _pruned_join(join: MultiJoin, wanted: frozenset[Column], pruning: _Pruning) -> MultiJoin:
    computed: dict[tuple[int, Expression], Column] = {}
    names = _key_names()

    def column_of(place: int, value: Expression) -> Column:
        if isinstance(value, Column):
            return value
        if (place, value) not in computed:
            computed[place, value] = next(names)
        return computed[place, value]

    by_input = sorted((member for key in join.keys for member in key.members), key=lambda m: m[0])
    for member in by_input:  # numbered by input, which checkpoints keep
        column_of(*member)
    classes = [[(at, column_of(at, value)) for at, value in key.members] for key in join.keys]
    conditions = _prepared(join, column_of)
    read = frozenset(c for key in classes for _, c in key) | _columns(conditions)
    inputs: list[Project] = []
    for place, node in enumerate(join.inputs):
        kept = [c for c in node.columns if c in wanted or c in read or pruning.reads(c)]
        own = [(column, value) for (at, value), column in computed.items() if at == place]
        if not kept and not own:
            kept = list(node.columns[:1])  # a row without columns is none
        values: list[tuple[Column, Expression]] = [*((column, column) for column in kept), *own]
        below = pruning.of(node, _columns(v for _, v in values))
        inputs.append(Project(below, tuple(values)))
    keys = tuple(KeyClass(tuple(members)) for members in classes)
    return replace(join, inputs=tuple(inputs), keys=keys, conditions=conditions)


def _prepared(join: MultiJoin, make: MakesColumn) -> tuple[Expression, ...]:
    places = {c: place for place, node in enumerate(join.inputs) for c in node.columns}
    found = [prepared(each, places, make) for each in join.conditions]
    assert None not in found, "a condition that the join cannot evaluate"
    return tuple(each for each in found if each is not None)


def computed_keys(join: MultiJoin) -> frozenset[Column]:
    """The keys of a pruned join that are no columns of what it joins."""
    columns = (c for node in join.inputs if isinstance(node, Project) for c in node.values)
    return frozenset(
        column
        for column, value in columns
        if column.name.startswith(_KEY) and not isinstance(value, Column)
    )


def _columns(values: Iterable[Expression]) -> frozenset[Column]:
    return frozenset(column for value in values for column in columns_of(value))


def _key_names() -> Iterator[Column]:
    number = 0
    while True:
        number += 1
        yield Column(f"{_KEY}{number}")
