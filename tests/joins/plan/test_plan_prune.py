"""Columns that enter a multi-way join: its keys, and what is read above it."""

from lsmstate.joins.plan.conditions import Column, Comparison, Literal, Opaque
from lsmstate.joins.plan.join_tree import MultiJoin, Node, Other, Project, parents_first
from lsmstate.joins.plan.prune import pruned
from lsmstate.joins.plan.signature import signature
from lsmstate.joins.plan.tsc import two_step_convert
from support.plan_cases import col, join, stream, where
from support.plan_eval import result

TABLES = {
    "a": [(1, 1, 5), (1, 2, 6), (2, 1, 7), (None, 1, 8)],
    "b": [(1, 1, 5), (2, 3, 6), (2, 4, 7)],
    "c": [(1, 1, 9), (4, 2, 6), (3, 2, 6)],
}
A, B, C = (stream(name, "x", "y", "z") for name in "abc")


def narrow(plan: Node) -> MultiJoin:
    """The one multi-way join, after a check that the rows are the same."""
    found = pruned(two_step_convert(plan).after)
    assert result(found, TABLES) == result(plan, TABLES) != {}
    (multi_join,) = (node for node in parents_first(found) if isinstance(node, MultiJoin))
    return multi_join


def test_only_keys_and_what_is_read_above():
    both = join(join(A, B, "a.x = b.x"), C, "b.y = c.x")
    plan = Project(
        where(both, Comparison(col("a.y"), "<=", col("c.y"))), ((Column("v"), col("c.z")),)
    )
    columns = [[str(c) for c in node.columns] for node in narrow(plan).inputs]
    assert columns == [["a.x", "a.y"], ["b.x", "b.y"], ["c.x", "c.y", "c.z"]]


def test_a_computed_key_is_stored_instead_of_what_it_is_computed_of():
    key = Opaque("plus", (col("a.x"), Literal(1)))
    plan = Project(join(A, B, Comparison(key, "=", col("b.x"))), ((Column("v"), col("b.z")),))
    multi_join = narrow(plan)
    assert signature(multi_join) == (
        "input 0: a(key_1 = plus(a.x@0, 1))\ninput 1: b(b.x, b.z)\nkey: 0:key_1@0 = 1:b.x@0"
    )


def test_an_unknown_operator_reads_all():
    plan = Other("Distinct", (join(A, B, "a.x = b.x"),), (*A.columns, *B.columns))
    assert [len(node.columns) for node in narrow(plan).inputs] == [3, 3]


def test_an_aggregate_reads_what_its_expressions_name():
    both = join(A, B, "a.x = b.x")
    all_of_it = Project(both, tuple((column, column) for column in both.columns))
    plan = Other("Aggregate", (all_of_it,), (Column("n"),), True, frozenset({Column("b.z")}))
    (multi_join,) = (
        node
        for node in parents_first(pruned(two_step_convert(plan).after))
        if isinstance(node, MultiJoin)
    )
    columns = [[str(c) for c in node.columns] for node in multi_join.inputs]
    assert columns == [["a.x"], ["b.x", "b.z"]]
