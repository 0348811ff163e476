"""What a conversion looks like as text."""

from lsmstate.joins.plan.conditions import Comparison, Literal, equal
from lsmstate.joins.plan.explain import draw, explain
from lsmstate.joins.plan.join_tree import Alias, Other, Source
from lsmstate.joins.plan.tsc import two_step_convert
from support.plan_cases import col, comma, join, stream, table, where

A, B, C = (stream(name) for name in "abc")


def test_explain_draws_both_plans_and_says_why():
    t = table("t")
    joined = where(
        comma(A, Source("b", B.columns, rows=1500), C),
        "a.x = b.x",
        "b.x = c.x",
        equal(col("c.y"), Literal("open")),
        Comparison(col("a.y"), "<", col("b.y")),
    )
    plan = join(Alias(joined, "v"), t, "a.x = t.x", kind="left outer")
    assert (
        explain(two_step_convert(plan))
        == """\
Before
Join 1 left outer on a.x = t.x
├─ Alias v
│  └─ Filter a.x = b.x AND b.x = c.x AND c.y = 'open' AND a.y < b.y
│     └─ Join 2 inner without a condition
│        ├─ Join 3 inner without a condition
│        │  ├─ a (stream)
│        │  └─ b (stream, about 1,500 rows)
│        └─ c (stream)
└─ t (table)

After
Join left outer on a.x = t.x
├─ Alias v
│  └─ Filter a.y < b.y
│     └─ MultiJoin 1 of 3 inputs, keys [a.x = b.x = c.x]
│        ├─ a (stream)
│        ├─ b (stream, about 1,500 rows)
│        └─ Filter c.y = 'open'
│           └─ c (stream)
└─ t (table)

Joins
  Join 1 left outer on a.x = t.x: not merged: a left outer join; only inner joins are merged
  Join 2 inner without a condition: merged into group 1
  Join 3 inner without a condition: merged into group 1

Conditions
  a.y < b.y: left to Spark, which evaluates it on each result of group 1
  a.x = b.x = c.x: a key of group 1; a new row reads its equal rows
  c.y = 'open': filters an input of group 1, each row once, before it is stored"""
    )


def test_explain_of_a_plan_that_stays():
    text = explain(two_step_convert(join(A, B, Comparison(col("a.x"), "<", col("b.x")))))
    assert "After: unchanged, no join was merged" in text
    assert text.endswith(
        "Join 1 inner on a.x < b.x: not merged: no equality links the two sides of the join"
    )


def test_explain_of_a_join_without_an_equality():
    plan = join(A, B, Comparison(col("a.x"), "<", col("b.x")))
    text = explain(two_step_convert(plan, by_any_condition=True))
    assert "MultiJoin 1 of 2 inputs, conditions [a.x < b.x]" in text
    assert text.endswith("Conditions\n  a.x < b.x: evaluated by the operator of group 1")


def test_a_shared_subplan_is_drawn_once():
    shared = join(A, B, "a.x = b.x")
    plan = Other("Union", (shared, shared), shared.columns)
    assert (
        draw(plan)
        == """\
Union
├─ Join inner on a.x = b.x
│  ├─ a (stream)
│  └─ b (stream)
└─ Join inner on a.x = b.x (as in line 2)"""
    )
