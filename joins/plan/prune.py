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
    plan: Node, needed: Iterable[Column] | None = None, *, reads: Reads = lambda _: False
) -> Node:
    """The plan, whose multi-way joins have a ``Project`` as every input.

    ``needed``: the columns of the root that are read, by default all. Operators that do not say
    what they read are taken to read all of their inputs. ``reads``: what multi-way joins need
    beside their conditions.
    """
    wanted = frozenset(plan.columns if needed is None else needed)
    match plan:
        case Source():
            return plan
        case MultiJoin():
            return _pruned_join(plan, wanted, reads)
        case Project():
            values = tuple((column, value) for column, value in plan.values if column in wanted)
            below = pruned(plan.input, _columns(value for _, value in values), reads=reads)
            if len(values) == len(plan.values):
                return with_inputs(plan, [below])
            return Project(below, values)
        case Filter():
            both = wanted | columns_of(plan.condition)
            return with_inputs(plan, [pruned(plan.input, both, reads=reads)])
        case Alias():
            return with_inputs(plan, [pruned(plan.input, wanted, reads=reads)])
        case Join():
            both = wanted | (columns_of(plan.condition) if plan.condition else frozenset())
            sides = [pruned(s, both & set(s.columns), reads=reads) for s in plan.inputs]
            return with_inputs(plan, sides)
        case Other():
            return with_inputs(plan, [_pruned_below(plan, child, reads) for child in plan.inputs])


def _pruned_below(node: Other, child: Node, reads: Reads) -> Node:
    """The same columns for an operator of several inputs, such as a union, which goes by place."""
    if len(node.inputs) > 1:
        found = pruned(child, reads=reads)
        same = tuple((column, column) for column in child.columns)
        return found if found.columns == child.columns else Project(found, same)
    return pruned(child, node.reads, reads=reads)


def _pruned_join(join: MultiJoin, wanted: frozenset[Column], reads: Reads) -> MultiJoin:
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
        kept = [c for c in node.columns if c in wanted or c in read or reads(c)]
        own = [(column, value) for (at, value), column in computed.items() if at == place]
        if not kept and not own:
            kept = list(node.columns[:1])  # a row without columns is none
        values: list[tuple[Column, Expression]] = [*((column, column) for column in kept), *own]
        below = pruned(node, _columns(v for _, v in values), reads=reads)
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
