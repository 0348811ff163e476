"""The signature of a multi-way join: all that its checkpoint depends on, as text.

The text is the same in every run.

The state of a stream is kept under its position, its columns and its keys. Columns are written by
name, without the numbers of a session. The place tells two columns of one name apart.
"""

from lsmstate.joins.plan.conditions import Column, Expression, substitute
from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    Join,
    MultiJoin,
    Node,
    Other,
    Project,
    Source,
)


def signature(multi_join: MultiJoin) -> str:
    """One line per input, in order, per key class, and per condition of the join itself. Filters
    may change between runs."""
    lines = [
        f"input {place}: {leaf_name(node)}({', '.join(_columns(node))})"
        for place, node in enumerate(multi_join.inputs)
    ]
    for key in multi_join.keys:
        members = [
            f"{place}:{_numbered(expression, multi_join.inputs[place])}"
            for place, expression in key.members
        ]
        lines.append(f"key: {' = '.join(members)}")
    lines += [f"condition: {each}" for each in _conditions(multi_join)]
    return "\n".join(lines)


def _conditions(multi_join: MultiJoin) -> list[Expression]:
    """With columns as place:name@place in the input."""
    names = {
        column: Column(f"{place}:{column.name}@{at}")
        for place, node in enumerate(multi_join.inputs)
        for at, column in enumerate(node.columns)
    }
    return [substitute(each, names) for each in multi_join.conditions]


def leaf_name(node: Node) -> str:
    """The nearest name of an input: its alias, source or operator."""
    match node:
        case Source(name) | Alias(_, name):
            return name
        case Filter() | Project():
            return leaf_name(node.input)
        case Other(name, inputs, is_aggregate=is_aggregate):
            if is_aggregate or len(inputs) != 1 or isinstance(inputs[0], Join | MultiJoin):
                return name
            return leaf_name(inputs[0])
        case _:
            return type(node).__name__


def _columns(node: Node) -> list[str]:
    """The columns by name, with the expression of those that are computed for the join."""
    if isinstance(node, Project):
        return [_defined(column, value, node.input) for column, value in node.values]
    return [column.name for column in node.columns]


def _defined(column: Column, value: Expression, node: Node) -> str:
    return column.name if isinstance(value, Column) else f"{column.name} = {_numbered(value, node)}"


def _numbered(expression: Expression, leaf: Node) -> Expression:
    """Columns as name@place in the leaf."""
    places = {column: place for place, column in enumerate(leaf.columns)}
    return substitute(
        expression, {column: Column(f"{column.name}@{place}") for column, place in places.items()}
    )
