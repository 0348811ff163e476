"""Evaluates a plan over small tables in plain Python: what a conversion must not change."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from lsmstate.joins.plan.conditions import (
    And,
    Column,
    Comparison,
    Expression,
    Literal,
    Not,
    Opaque,
    Or,
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
)

Row = dict[Column, Any]
Tables = Mapping[str, Sequence[Sequence[Any]]]

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "plus": lambda a, b: None if None in (a, b) else a + b,
    "isnull": lambda a: a is None,
    # As Catalyst names them.
    "Add": lambda a, b: None if None in (a, b) else a + b,
    "Subtract": lambda a, b: None if None in (a, b) else a - b,
    "Multiply": lambda a, b: None if None in (a, b) else a * b,
    "UnaryMinus": lambda a: None if a is None else -a,
    "Abs": lambda a: None if a is None else abs(a),
    "IsNull": lambda a: a is None,
    "Cast[long]": lambda a: a,
    # Stands for an uncorrelated subquery over a table that holds 1 and 2.
    "in_subquery": lambda a: None if a is None else a in (1, 2),
}


def result(plan: Node, tables: Tables) -> Counter[tuple[Any, ...]]:
    """The rows, as a multiset of tuples in the order of the plan's columns."""
    return Counter(tuple(row[column] for column in plan.columns) for row in rows(plan, tables))


def rows(node: Node, tables: Tables) -> list[Row]:
    match node:
        case Source():
            return [dict(zip(node.columns, row, strict=True)) for row in tables[node.name]]
        case Filter():
            return [row for row in rows(node.input, tables) if value(node.condition, row) is True]
        case Project():
            return [
                {column: value(expression, row) for column, expression in node.values}
                for row in rows(node.input, tables)
            ]
        case Alias():
            return rows(node.input, tables)
        case Other(name="Union"):
            return [
                dict(zip(node.columns, (row[c] for c in child.columns), strict=True))
                for child in node.inputs
                for row in rows(child, tables)
            ]
        case Other():
            # What stands for other operators: the distinct rows of the only input.
            (child,) = node.inputs
            kept = {tuple(row[c] for c in node.columns): row for row in rows(child, tables)}
            return list(kept.values())
        case Join():
            return joined(node, rows(node.left, tables), rows(node.right, tables))
        case MultiJoin():
            found = []
            for parts in product(*(rows(child, tables) for child in node.inputs)):
                row = {c: v for part in parts for c, v in part.items()}
                if all(
                    all_equal([value(member, parts[place]) for place, member in key.members])
                    for key in node.keys
                ) and all(value(condition, row) is True for condition in node.conditions):
                    found.append(row)
            return found


def joined(join: Join, left: list[Row], right: list[Row]) -> list[Row]:
    def matches(a: Row, b: Row) -> bool:
        return join.condition is None or value(join.condition, a | b) is True

    if join.kind in ("left semi", "left anti"):
        wanted = join.kind == "left semi"
        return [a for a in left if any(matches(a, b) for b in right) is wanted]
    found = [a | b for a in left for b in right if matches(a, b)]
    if join.kind in ("left outer", "full outer"):
        nulls = dict.fromkeys(join.right.columns)
        found += [a | nulls for a in left if not any(matches(a, b) for b in right)]
    if join.kind in ("right outer", "full outer"):
        nulls = dict.fromkeys(join.left.columns)
        found += [nulls | b for b in right if not any(matches(a, b) for a in left)]
    return found


def all_equal(values: list[Any]) -> bool:
    return None not in values and len(set(values)) == 1


def value(expression: Expression, row: Row) -> Any:
    match expression:
        case Column():
            return row[expression]
        case Literal(literal):
            return literal
        case Comparison(left, operator, right):
            a, b = value(left, row), value(right, row)
            if operator == "<=>":
                return a == b
            return None if None in (a, b) else COMPARE[operator](a, b)
        case And(operands):
            return kleene([value(operand, row) for operand in operands], decides=False)
        case Or(operands):
            return kleene([value(operand, row) for operand in operands], decides=True)
        case Not(operand):
            inner = value(operand, row)
            return None if inner is None else not inner
        case Opaque(name, arguments):
            return FUNCTIONS[name](*(value(argument, row) for argument in arguments))


def kleene(values: list[bool | None], decides: bool) -> bool | None:
    if decides in values:
        return decides
    return None if None in values else not decides
