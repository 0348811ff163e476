"""Columns that nothing above a multi-way join reads do not enter it: it would store them for ever.

A key that has to be computed is computed below the join and stored as a column.
"""

from collections.abc import Iterable, Iterator
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

#: What a computed key is called, before a number.
_KEY: Final = "key_"


def pruned(plan: Node, needed: Iterable[Column] | None = None) -> Node:
    """The plan, whose multi-way joins have a ``Project`` as every input.

    ``needed``: the columns of the root that are read, by default all. Operators that do not say
    what they read are taken to read all of their inputs.
    """
    wanted = frozenset(plan.columns if needed is None else needed)
    match plan:
        case Source():
            return plan
        case MultiJoin():
            return _pruned_join(plan, wanted)
        case Project():
            values = tuple((column, value) for column, value in plan.values if column in wanted)
            below = pruned(plan.input, _columns(value for _, value in values))
            if len(values) == len(plan.values):
                return with_inputs(plan, [below])
            return Project(below, values)
        case Filter():
            return with_inputs(plan, [pruned(plan.input, wanted | columns_of(plan.condition))])
        case Alias():
            return with_inputs(plan, [pruned(plan.input, wanted)])
        case Join():
            both = wanted | (columns_of(plan.condition) if plan.condition else frozenset())
            sides = [pruned(side, both & set(side.columns)) for side in plan.inputs]
            return with_inputs(plan, sides)
        case Other():
            return with_inputs(plan, [_pruned_below(plan, child) for child in plan.inputs])


def _pruned_below(node: Other, child: Node) -> Node:
    """The same columns for an operator of several inputs, such as a union, which goes by place."""
    if len(node.inputs) > 1:
        found = pruned(child)
        same = tuple((column, column) for column in child.columns)
        return found if found.columns == child.columns else Project(found, same)
    if node.reads is None:
        return pruned(child)
    return pruned(child, node.reads)


def _pruned_join(join: MultiJoin, wanted: frozenset[Column]) -> MultiJoin:
    inputs: list[Project] = []
    computed: dict[tuple[int, Expression], Column] = {}
    names = _key_names()
    for place, node in enumerate(join.inputs):
        keys = [value for key in join.keys for at, value in key.members if at == place]
        kept = [c for c in node.columns if c in wanted or c in keys]
        values: list[tuple[Column, Expression]] = [(column, column) for column in kept]
        for key in keys:
            if not isinstance(key, Column) and (place, key) not in computed:
                computed[place, key] = next(names)
                values.append((computed[place, key], key))
        inputs.append(Project(pruned(node, _columns(v for _, v in values)), tuple(values)))
    classes = tuple(
        KeyClass(tuple((at, computed.get((at, value), value)) for at, value in key.members))
        for key in join.keys
    )
    return MultiJoin(tuple(inputs), classes, join.group)


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
