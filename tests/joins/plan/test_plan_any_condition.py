"""Groups of joins that no equality links: which conditions the join evaluates, and as which SQL."""

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.join import MultiwayJoin
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
from lsmstate.joins.plan.join_tree import Filter, MultiJoin, Node, Project, parents_first
from lsmstate.joins.plan.known_condition import sql_text
from lsmstate.joins.plan.prune import pruned
from lsmstate.joins.plan.signature import signature
from lsmstate.joins.plan.tsc import Conversion, two_step_convert
from support.examples import examples
from support.plan_cases import col, comma, join, stream, where
from support.plan_eval import result

A, B, C = (stream(name) for name in "abc")
FIVE = Literal(5, "5")


def less(left: Expression, right: Expression) -> Comparison:
    return Comparison(left, "<", right)


def call(name: str, *arguments: Expression, **details: Any) -> Opaque:
    return Opaque(name, arguments, **details)


def converted(plan: Node) -> tuple[Conversion, MultiJoin]:
    conversion = two_step_convert(plan, by_any_condition=True)
    (multi_join,) = conversion.multi_joins
    return conversion, multi_join


def narrow(conversion: Conversion) -> MultiJoin:
    """The join as it is built."""
    tree = pruned(conversion.after)
    return next(node for node in parents_first(tree) if isinstance(node, MultiJoin))


def called(multi_join: MultiJoin) -> dict[Column, str]:
    return {
        column: f"s{place}.c{at}"
        for place, node in enumerate(multi_join.inputs)
        for at, column in enumerate(node.columns)
    }


def texts(conversion: Conversion) -> list[str]:
    multi_join = narrow(conversion)
    names = {column: str(column) for node in multi_join.inputs for column in node.columns}
    return [sql_text(condition, names) for condition in multi_join.conditions]


def test_a_band_join_is_a_group() -> None:
    band = Comparison(call("Abs", call("Subtract", col("a.x"), col("b.x"))), "<=", FIVE)
    conversion, multi_join = converted(join(A, B, band))
    assert multi_join.keys == ()
    assert multi_join.conditions == (band,)
    assert not multi_join.is_linked
    assert multi_join.unconnected == ()
    assert conversion.after is multi_join
    assert texts(conversion) == ["(abs((a.x - b.x)) <= 5)"]
    assert signature(narrow(conversion)).endswith("condition: Abs(Subtract(0:a.x@0, 1:b.x@0)) <= 5")


def test_a_list_of_streams_with_an_equality_and_a_range() -> None:
    plan = where(comma(A, B, C), "a.x = b.x", less(col("b.y"), col("c.y")), less(col("c.x"), FIVE))
    conversion, multi_join = converted(plan)
    assert [str(key) for key in multi_join.keys] == ["a.x = b.x"]
    assert multi_join.conditions == (less(col("b.y"), col("c.y")),)
    assert isinstance(multi_join.inputs[2], Filter)
    assert {verdict.reason for verdict in conversion.verdicts.values()} == {"merged into group 1"}


def test_conditions_beside_equalities_that_link_all_stay_above() -> None:
    plan = join(A, B, "a.x = b.x", less(col("a.y"), col("b.y")))
    conversion, multi_join = converted(plan)
    assert multi_join.is_linked
    assert multi_join.conditions == ()
    assert isinstance(conversion.after, Filter)


def test_a_product_is_a_group_whose_inputs_nothing_connects() -> None:
    conversion, multi_join = converted(comma(A, B, C))
    assert multi_join.unconnected == (1, 2)
    found = pruned(Project(conversion.after, ((Column("n"), FIVE),)))
    join_below = next(node for node in parents_first(found) if isinstance(node, MultiJoin))
    assert [len(node.columns) for node in join_below.inputs] == [1, 1, 1]


@pytest.mark.parametrize(
    "condition",
    [
        Or((less(col("a.x"), col("b.x")), less(call("soundex", col("a.y")), col("b.y")))),
        less(call("TrySubtract", col("a.x"), col("b.x")), FIVE),
        less(call("Subtract[EvalMode.TRY]", col("a.x"), col("b.x")), FIVE),
        less(call("Subtract", col("a.x"), col("b.x")), Literal("an interval")),
        call("like", col("a.x"), col("b.x")),
        less(call("Cast[integer]", call("Add", col("a.x"), col("b.x"))), FIVE),
    ],
    ids=str,
)
def test_what_the_join_cannot_evaluate_stays_above(condition: Expression) -> None:
    conversion, multi_join = converted(join(A, B, less(col("a.y"), col("b.y")), condition))
    assert multi_join.conditions == (less(col("a.y"), col("b.y")),)
    assert isinstance(conversion.after, Filter)
    assert conversion.after.condition == condition


def test_what_one_input_needs_is_computed_below_the_join() -> None:
    of_a = call("soundex", col("a.x"))
    conversion, _ = converted(join(A, B, less(of_a, col("b.x"))))
    assert texts(conversion) == ["(key_1 < b.x)"]
    below = narrow(conversion).inputs[0]
    assert isinstance(below, Project)
    assert (Column("key_1"), of_a) in below.values


def test_a_cast_that_widens_is_left_out_of_a_comparison_and_computed_elsewhere() -> None:
    wide = call("Cast[long]", col("a.x"), widens=True)
    five = call("Cast[long]", FIVE, widens=True)
    for condition, shown in (
        (less(wide, col("b.x")), "(a.x < b.x)"),
        (less(call("Subtract", wide, col("b.x")), five), "((key_1 - b.x) < 5)"),
        (Or((less(wide, col("b.x")), less(col("b.y"), wide))), "((a.x < b.x) OR (b.y < a.x))"),
        (less(call("Cast[long]", col("a.s")), col("b.x")), "(key_1 < b.x)"),
    ):
        conversion, _ = converted(join(stream("a", "x", "y", "s"), B, condition))
        assert texts(conversion) == [shown]


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_text_gives_the_rows_of_the_plan(seed: int) -> None:
    """Random conditions on two and three streams, as the plan has them and as SQL."""
    rng = random.Random(seed)
    inputs = [stream(name, "x", "y") for name in "abc"[: rng.choice([2, 2, 3])]]
    columns = [column for node in inputs for column in node.columns]

    def number(depth: int) -> Expression:
        if depth == 0 or rng.random() < 0.4:
            value = rng.randrange(-2, 4)
            return rng.choice([*columns, *columns, Literal(value, str(value))])
        name = rng.choice(["Add", "Subtract", "Multiply", "UnaryMinus", "Abs", "Cast[long]"])
        if name == "Cast[long]":
            return call(name, rng.choice(columns), widens=True)
        count = 1 if name in ("UnaryMinus", "Abs") else 2
        return call(name, *(number(depth - 1) for _ in range(count)))

    def condition(depth: int) -> Expression:
        kind = rng.choice(["compare"] * 4 + ["and", "or", "not", "null"] * (depth > 0))
        if kind == "compare":
            sign = rng.choice(["=", "<=>", "<", "<=", ">", ">="])
            return Comparison(number(1), sign, number(1))
        if kind == "not":
            return Not(condition(depth - 1))
        if kind == "null":
            return call("IsNull", number(1))
        parts = (condition(depth - 1), condition(depth - 1))
        return And(parts) if kind == "and" else Or(parts)

    parts = [condition(2) for _ in range(rng.choice([1, 2, 3]))]
    plan = where(comma(*inputs), *parts)
    conversion = two_step_convert(plan, by_any_condition=True)
    tables = {
        node.name: [
            tuple(rng.choice([None, *range(-2, 4)]) for _ in node.columns)
            for _ in range(rng.randrange(5))
        ]
        for node in inputs
    }
    expected = result(plan, tables)
    assert result(pruned(conversion.after), tables) == expected
    multi_join = narrow(conversion)
    names = called(multi_join)
    on = [sql_text(each, names) for each in multi_join.conditions]
    on += [
        f"{names[one]} = {names[other]}"
        for key in multi_join.keys
        for (_, one), (_, other) in zip(key.members, key.members[1:], strict=False)
        if isinstance(one, Column) and isinstance(other, Column)
    ]
    schemas = {
        f"s{place}": pa.schema([(f"c{at}", pa.int64()) for at in range(len(node.columns))])
        for place, node in enumerate(multi_join.inputs)
    }
    joined: Counter[tuple[Any, ...]] = Counter()
    with MultiwayJoin(schemas, " AND ".join(on) or "TRUE") as engine:
        for (name, schema), node in zip(schemas.items(), multi_join.inputs, strict=True):
            arrived = list(result(node, tables).elements())
            rows = [dict(zip(schema.names, row, strict=True)) for row in arrived]
            for piece in engine.process(name, pa.RecordBatch.from_pylist(rows, schema)):
                joined.update(zip(*(c.to_pylist() for c in piece.columns), strict=True))
    assert joined == result(multi_join, tables)


def test_the_signature_names_the_conditions() -> None:
    one, other = (
        signature(narrow(converted(join(A, B, Comparison(col("a.x"), sign, col("b.x"))))[0]))
        for sign in ("<", "<=")
    )
    assert one != other
