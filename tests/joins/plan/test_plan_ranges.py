"""Comparisons beside the keys of two inputs: which of them the join may find its rows by."""

from typing import Any

import pytest

from lsmstate.joins.plan.conditions import Comparison, Expression, Not, Opaque
from lsmstate.joins.plan.join_tree import Filter, MultiJoin, Node, Project, parents_first
from lsmstate.joins.plan.prune import pruned
from lsmstate.joins.plan.ranges import with_ranges
from lsmstate.joins.plan.tsc import two_step_convert
from support.plan_cases import col, comma, eq, join, stream, where
from support.plan_eval import result

A, B, C = (stream(name) for name in "abc")


def compared(left: str, operator: str, right: str) -> Comparison:
    return Comparison(col(left), operator, col(right))


def ranged(plan: Node) -> tuple[Node, MultiJoin] | None:
    """The plan whose join has conditions, and that join."""
    found = with_ranges(two_step_convert(plan, by_any_condition=True))
    if found is None:
        return None
    (multi_join,) = found.multi_joins
    assert multi_join in set(parents_first(found.after))
    return found.after, multi_join


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
def test_a_comparison_of_two_inputs_goes_to_the_join(operator: str) -> None:
    beside = compared("b.y", operator, "a.y")
    found = ranged(join(A, B, "a.x = b.x", beside))
    assert found is not None
    after, multi_join = found
    assert after is multi_join
    assert multi_join.conditions == (beside,)
    assert multi_join.is_linked
    assert [str(key) for key in multi_join.keys] == ["a.x = b.x"]


def test_what_only_spark_knows_stays_above() -> None:
    low, other = compared("a.y", "<=", "b.y"), Not(eq("a.y = b.y"))
    unknown = Comparison(Opaque("Hash", (col("a.y"), col("b.y"))), "<", col("a.x"))
    plan = where(comma(A, B), "a.x = b.x", low, other, unknown)
    found = ranged(Project(plan, ((col("y"), col("b.y")),)))
    assert found is not None
    after, multi_join = found
    assert multi_join.conditions == (low, other)
    (above,) = [node for node in parents_first(after) if isinstance(node, Filter)]
    assert above.condition == unknown
    assert above.input is multi_join


def test_what_may_fail_is_not_computed_for_rows_without_partner() -> None:
    low = compared("a.y", "<=", "b.y")
    cast = Comparison(Opaque("Cast[tinyint]", (col("a.y"),)), "<", col("b.y"))
    assert ranged(join(A, B, "a.x = b.x", cast)) is None
    found = ranged(join(A, B, "a.x = b.x", low, cast))
    assert found is not None
    assert found[1].conditions == (low,)


@pytest.mark.parametrize(
    "plan",
    [
        join(A, B, "a.x = b.x"),
        join(A, B, "a.x = b.x", Not(eq("a.y = b.y"))),
        join(A, B, compared("a.y", "<", "b.y")),
        join(join(A, B, "a.x = b.x"), C, "b.x = c.x", compared("a.y", "<", "c.y")),
        join(A, B, "a.x = b.x", compared("a.y", "<", "b.y"), kind="left outer"),
    ],
    ids=["keys alone", "no range", "no keys", "three inputs", "outer"],
)
def test_other_joins_stay_as_they_are(plan: Node) -> None:
    assert ranged(plan) is None


@pytest.mark.parametrize("beside", [compared("a.y", "<", "b.y"), compared("a.y", ">=", "b.y")])
def test_the_rows_are_the_same(beside: Expression) -> None:
    plan = join(A, B, "a.x = b.x", beside)
    found = ranged(plan)
    assert found is not None
    numbers: list[Any] = [None, 1, 2, 3]
    rows = {name: [(x, y) for x in numbers for y in numbers] for name in "ab"}
    assert result(pruned(found[0]), rows) == result(plan, rows) != {}
