"""UNION ALL of multi-way joins: each row of the union is computed from one join's row."""

from collections import Counter

import pytest

from lsmstate.joins.plan.conditions import Column, Comparison, Expression, Literal, Opaque
from lsmstate.joins.plan.join_tree import Alias, Node, Other, Project
from lsmstate.joins.plan.prune import pruned
from lsmstate.joins.plan.tsc import two_step_convert
from lsmstate.joins.plan.unions import Branch, unions_of_joins, with_joins_gathered
from support.plan_cases import col, join, stream, table, where
from support.plan_eval import result, rows, value

TABLES = {
    "a": [(1, 1), (1, 2), (2, 1), (None, 1)],
    "b": [(1, 1), (2, 3), (2, 4)],
    "c": [(1, 1), (4, 2), (3, 2)],
}
PYTHON = Opaque("PythonUDF", (col("a.y"), col("b.y")), eager=True)
A, B, C = (stream(name) for name in "abc")


def union(*inputs: Node) -> Other:
    """Columns are called as those of the first input, as in Spark."""
    return Other("Union", inputs, inputs[0].columns)


def pairs(node: Node, *values: Expression, name: str) -> Project:
    return Project(node, tuple((Column(f"{name}{n}"), v) for n, v in enumerate(values)))


def computed(branches: list[Branch]) -> Counter[tuple[object, ...]]:
    return Counter(
        tuple(value(v, row) for v in branch.values.values())
        for branch in branches
        for row in rows(branch.multi_join, TABLES)
        if all(value(condition, row) is True for condition in branch.conditions)
    )


def plus(left: Expression, right: Expression) -> Opaque:
    return Opaque("plus", (left, right))


def test_rows_of_a_union_are_those_of_its_branches():
    """Through filters, projections and aliases, of a union in a union too."""
    first = pairs(join(A, B, "a.x = b.x"), plus(col("a.y"), col("b.y")), col("a.x"), name="p")
    kept = where(Alias(first, "kept"), Comparison(col("p0"), ">", Literal(2)))
    second = pairs(join(B, C, "b.y = c.x"), col("c.y"), Literal(7), name="q")
    third = pairs(join(A, C, "a.y = c.x"), col("a.x"), col("c.x"), name="r")
    inner = union(second, third)
    above = where(inner, Comparison(col("q1"), "<>", Literal(3)))
    plan = Other("Distinct", (union(kept, above),), kept.columns)
    converted = two_step_convert(plan)
    outer, *nested = unions_of_joins(converted.after)
    assert [len(branch.multi_join.inputs) for branch in outer[1]] == [2, 2, 2]
    assert [len(branches) for _, branches in nested] == [2]
    assert computed(outer[1]) == result(outer[0], TABLES) != {}
    assert list(outer[1][2].values) == list(kept.columns)


@pytest.mark.parametrize(
    "other",
    [
        A,
        join(A, table("b"), "a.x = b.x"),
        Other("Distinct", (join(A, B, "a.x = b.x"),), (col("a.x"), col("a.y"))),
        pairs(join(A, B, "a.x = b.x"), Opaque("rand", volatile=True), col("a.x"), name="v"),
        where(join(A, B, "a.x = b.x"), Opaque("exists", (), 1, subquery=True)),
        pairs(join(A, B, "a.x = b.x"), plus(PYTHON, Literal(1)), col("a.x"), name="v"),
        where(join(A, B, "a.x = b.x"), PYTHON),
    ],
    ids=[
        "no join",
        "a table",
        "an operator between",
        "a random value",
        "a subquery",
        "a value that Python computes",
        "a condition in Python",
    ],
)
def test_what_else_stands_in_a_union_keeps_it(other: Node):
    plan = union(join(A, B, "a.x = b.x"), other)
    assert list(unions_of_joins(two_step_convert(plan).after)) == []


def test_a_key_that_is_computed_is_no_column_of_the_union():
    """Of joins that stand in it without a projection, as in DataFrames."""
    first = join(A, B, Comparison(plus(col("a.x"), Literal(1)), "=", col("b.x")))
    plan = union(first, join(C, stream("d"), "c.x = d.x"))
    ((_, branches),) = unions_of_joins(pruned(two_step_convert(plan).after))
    assert [tuple(branch.values) for branch in branches] == [plan.columns, plan.columns]
    assert branches[0].multi_join.columns != first.columns


def test_joins_beside_other_inputs_are_gathered():
    """As SQL nests them, (s UNION ALL J1) UNION ALL J2, and for each place of what is no join."""
    first = pairs(join(A, B, "a.x = b.x"), col("a.y"), col("b.y"), name="p")
    second = pairs(join(A, C, "a.y = c.x"), col("a.x"), col("c.x"), name="q")
    for inputs in ([C, first, second], [first, C, second], [first, second, C]):
        plan = union(union(*inputs[:2]), inputs[2])
        gathered = with_joins_gathered(two_step_convert(plan).after)
        ((_, branches),) = unions_of_joins(gathered)
        assert len(branches) == 2
        assert gathered.columns == plan.columns == gathered.inputs[0].columns
        assert result(gathered, TABLES) == result(plan, TABLES) != {}


def test_unions_without_two_joins_to_gather_stay_as_they_are():
    first = pairs(join(A, B, "a.x = b.x"), col("a.y"), col("b.y"), name="p")
    second = pairs(join(A, C, "a.y = c.x"), col("a.x"), col("c.x"), name="q")
    for plan in (union(union(C, first), A), union(union(first, second), first), A):
        converted = two_step_convert(plan).after
        assert with_joins_gathered(converted) is converted
