"""Two-Step Convert on plans written by hand: what is merged, what is not, and why."""

import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.plan.conditions import Column, Comparison, Literal, Opaque, equal
from lsmstate.joins.plan.join_tree import Alias, Filter, Join, MultiJoin, Node, Other, Project
from lsmstate.joins.plan.signature import leaf_name, signature
from lsmstate.joins.plan.tsc import (
    MAX_DEPTH,
    Conversion,
    create_multi_join_groups,
    inner_join_of_streams,
    joins_of,
    one_common_key,
    two_step_convert,
)
from support.plan_cases import aggregate, col, comma, join, renamed, stream, table, where
from support.plan_eval import result

A, B, C, D, E = (stream(name) for name in "abcde")
SMALL_ROWS = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 2), (None, 1), (3, None)]
TABLES = dict.fromkeys("abcdet", SMALL_ROWS)


def converted(plan: Node) -> Conversion:
    """The conversion, after a check that both plans give the same rows, and some."""
    conversion = two_step_convert(plan)
    before = result(plan, TABLES)
    assert conversion.after.columns == plan.columns
    assert result(conversion.after, TABLES) == before
    assert before, "a case without rows shows nothing"
    return conversion


def inputs(multi_join: MultiJoin) -> str:
    return " ".join(leaf_name(node) for node in multi_join.inputs)


def keys(multi_join: MultiJoin) -> list[str]:
    return [str(key) for key in multi_join.keys]


def reasons(conversion: Conversion) -> list[str]:
    return [verdict.reason for verdict in conversion.verdicts.values()]


def chain() -> Join:
    return join(join(A, B, "a.x = b.x"), C, "b.x = c.x")


def test_one_binary_join_is_a_group():
    conversion = converted(join(A, B, "a.x = b.x"))
    assert isinstance(conversion.after, MultiJoin)
    assert keys(conversion.after) == ["a.x = b.x"]


def test_left_deep_chain_of_five_is_one_group():
    """Algorithm 2 as printed stops two levels below the root."""
    plan = join(join(chain(), D, "c.x = d.x"), E, "d.y = e.y")
    conversion = converted(plan)
    (multi_join,) = conversion.multi_joins
    assert conversion.after is multi_join
    assert inputs(multi_join) == "a b c d e"
    assert keys(multi_join) == ["a.x = b.x = c.x = d.x", "d.y = e.y"]
    assert reasons(conversion) == ["merged into group 1"] * 4


@pytest.mark.parametrize(
    "plan",
    [
        join(A, join(B, join(C, D, "c.x = d.x"), "b.x = c.x"), "a.x = b.x"),
        join(join(A, B, "a.x = b.x"), join(C, D, "c.x = d.x"), "b.x = c.x"),
    ],
    ids=["right_deep", "bushy"],
)
def test_inputs_keep_the_users_order(plan: Node):
    (multi_join,) = converted(plan).multi_joins
    assert inputs(multi_join) == "a b c d"
    (key,) = multi_join.common_keys
    assert [place for place, _ in key.members] == [0, 1, 2, 3]


def test_nodes_between_joins_are_looked_through():
    """The paper's HashNode (Figure 4), here filters, projections and aliases, several deep."""
    below = where(join(A, B, "a.x = b.x"), Comparison(col("a.y"), "<=", col("b.y")))
    shown = Project(below, ((col("v.x"), col("a.x")), (col("v.z"), col("b.y"))))
    plan = join(where(Alias(shown, "v"), equal(col("v.z"), Literal(2))), C, "v.x = c.x")
    conversion = converted(plan)
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "a b c"
    assert keys(multi_join) == ["a.x = b.x = c.x"]
    assert [isinstance(node, Filter) for node in multi_join.inputs] == [False, True, False]
    match conversion.after:
        case Project(Filter(found, condition)):
            assert found is multi_join
            assert str(condition) == "a.y <= b.y"
        case other:
            pytest.fail(f"a filter and a projection expected, found {other}")


def test_a_computed_column_of_one_input_is_a_key():
    sum_of = Opaque("plus", (col("a.x"), col("a.y")))
    computed = Project(A, ((col("v.z"), sum_of), (col("v.x"), col("a.x"))))
    (multi_join,) = converted(join(join(computed, B, "v.z = b.x"), C, "v.x = c.x")).multi_joins
    assert inputs(multi_join) == "a b c"
    inner = Project(join(A, B, "a.x = b.x"), ((col("v.z"), sum_of), (col("v.x"), col("b.x"))))
    (multi_join,) = converted(join(inner, C, "v.z = c.x")).multi_joins
    assert keys(multi_join) == ["a.x = b.x", "plus(a.x, a.y) = c.x"]


def test_a_column_computed_of_two_inputs_links_nothing():
    sum_of = Opaque("plus", (col("a.x"), col("b.y")))
    computed = Project(join(A, B, "a.x = b.x"), ((col("v.z"), sum_of),))
    conversion = converted(join(computed, C, "v.z = c.x"))
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "a b"
    assert reasons(conversion) == [
        "no equality links the two sides of the join",
        "merged into group 1",
    ]


@pytest.mark.parametrize("kind", ["left outer", "right outer", "full outer", "left semi"])
def test_other_joins_are_barriers(kind: str):
    lower = join(A, B, "a.x = b.x")
    middle = join(lower, C, "a.x = c.x", kind=kind)
    conversion = converted(join(join(middle, D, "a.x = d.x"), E, "d.x = e.x"))
    upper, below = conversion.multi_joins
    assert [len(multi_join.inputs) for multi_join in (upper, below)] == [3, 2]
    assert upper.inputs[0].inputs[0] is below
    assert f"a {kind} join; only inner joins are merged" in reasons(conversion)


def test_filter_stays_above_an_outer_join():
    outer = join(join(A, B, "a.x = b.x"), C, "a.x = c.x", kind="left outer")
    conversion = converted(where(outer, Opaque("isnull", (col("c.y"),))))
    assert isinstance(conversion.after, Filter)
    assert isinstance(conversion.after.input, Join)


def test_comma_joins_find_their_condition_above():
    plan = where(comma(A, B, C), "a.x = c.x", "c.y = b.y", equal(col("a.y"), Literal(1)))
    conversion = converted(plan)
    assert conversion.after is conversion.multi_joins[0]
    assert keys(conversion.multi_joins[0]) == ["a.x = c.x", "b.y = c.y"]
    assert reasons(conversion) == ["merged into group 1"] * 2


def test_self_join():
    plan = join(join(A, renamed(A, "b"), "a.x = b.y"), renamed(A, "c"), "b.x = c.y")
    (multi_join,) = converted(plan).multi_joins
    assert inputs(multi_join) == "a b c"
    assert keys(multi_join) == ["a.x = b.y", "b.x = c.y"]


def test_two_columns_of_one_input_in_a_class_are_filtered_there():
    (multi_join,) = converted(join(A, B, "a.x = b.x", "a.y = b.x")).multi_joins
    assert keys(multi_join) == ["a.x = b.x"]
    first = multi_join.inputs[0]
    assert isinstance(first, Filter)
    assert str(first.condition) == "a.x = a.y"


def test_shared_join_with_an_output_outside_is_a_group_of_its_own():
    shared = join(A, B, "a.x = b.x")
    distinct = Other("Distinct", (shared,), shared.columns)
    plan = join(join(shared, C, "b.x = c.x"), two_columns(distinct), "c.x = w.x")
    conversion = converted(plan)
    upper, lower = conversion.multi_joins
    assert upper.inputs[0] is lower
    assert len(upper.inputs) == 3
    assert isinstance(upper.inputs[2], Project)


def two_columns(node: Node) -> Project:
    """Two columns of a node, as w.x and w.y."""
    return Project(node, ((col("w.x"), node.columns[0]), (col("w.y"), node.columns[1])))


def test_shared_join_used_twice_in_one_group_stands_in_it_twice():
    """Its outputs are in one group, yet its rows are needed twice; Algorithm 3 gives them once."""
    shared = join(A, B, "a.x = b.x")
    left = Project(shared, ((col("l.x"), col("a.x")), (col("l.y"), col("b.y"))))
    right = Project(shared, ((col("r.x"), col("a.x")), (col("r.y"), col("b.y"))))
    plan = join(left, right, "l.x = r.x")
    groups = create_multi_join_groups(plan, inner_join_of_streams)
    assert set(groups) == {plan, left, right, shared}
    conversion = converted(plan)
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "a b a b"
    assert len(set(multi_join.columns)) == 8
    assert reasons(conversion) == ["merged into group 1"] * 2


def test_shared_node_deeper_on_one_path_waits_for_both_outputs():
    """Breadth first would meet the shared join before the projection that lies deeper."""
    shared = join(A, B, "a.x = b.x")
    deep = Project(Project(shared, ((col("m.x"), col("a.x")),)), ((col("n.x"), col("m.x")),))
    plan = join(join(deep, C, "n.x = c.x"), shared, "c.x = a.x")
    (multi_join,) = converted(plan).multi_joins
    assert inputs(multi_join) == "a b c a b"


def test_an_equality_missing_at_the_top_leaves_the_rest_a_group():
    plan = join(chain(), D, Comparison(col("c.y"), "<", col("d.y")))
    conversion = converted(plan)
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "a b c"
    assert reasons(conversion)[0] == "no equality links the two sides of the join"


def test_an_equality_missing_at_the_bottom_makes_that_join_an_input():
    lower = join(A, B, Comparison(col("a.y"), "<", col("b.y")))
    conversion = converted(join(join(lower, C, "a.x = c.x"), D, "c.x = d.x"))
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "Join c d"
    assert reasons(conversion)[2] == "no equality links the two sides of the join"


def test_null_safe_equality_is_no_key():
    conversion = converted(join(A, B, Comparison(col("a.x"), "<=>", col("b.x"))))
    assert conversion.after is conversion.before
    conversion = converted(join(A, B, "a.x = b.x", Comparison(col("a.y"), "<=>", col("b.y"))))
    assert isinstance(conversion.after, Filter)
    assert keys(conversion.multi_joins[0]) == ["a.x = b.x"]


def test_static_tables_stay_sparks():
    t = table("t")
    conversion = converted(join(join(join(A, t, "a.x = t.x"), B, "t.y = b.y"), C, "b.x = c.x"))
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "Join b c"
    assert reasons(conversion)[2] == "the right side of the join is not a stream"
    # FROM a, b, t: the equality of the streams stands above the join with the table.
    conversion = converted(where(comma(A, B, t), "a.x = b.x", "b.y = t.y"))
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "a b"
    assert isinstance(conversion.after, Join)


def test_a_streaming_aggregate_is_no_input():
    counts = Other("Aggregate", (stream("b", "x"),), (col("b.x"),), is_aggregate=True)
    plan = join(join(A, C, "a.x = c.x"), counts, "a.x = b.x")
    conversion = two_step_convert(plan)
    (multi_join,) = conversion.multi_joins
    assert inputs(multi_join) == "a c"
    static = aggregate(table("t"), "t.x")
    assert not any(
        "aggregate" in reason for reason in reasons(two_step_convert(join(A, static, "a.x = t.x")))
    )


def test_subqueries_stay_above_the_group():
    subquery = Opaque("in_subquery", (col("a.x"),), subquery=True)
    plan = join(where(join(A, B, "a.x = b.x"), subquery), C, "b.x = c.x")
    conversion = converted(plan)
    assert isinstance(conversion.after, Filter)
    assert conversion.after.condition == subquery
    assert inputs(conversion.multi_joins[0]) == "a b c"
    shown = Project(join(A, B, "a.x = b.x"), ((col("s"), subquery), (col("x"), col("b.x"))))
    conversion = converted(where(join(shown, C, "x = c.x"), equal(col("s"), Literal(True))))
    assert isinstance(conversion.after.inputs[0], Filter)
    assert inputs(conversion.multi_joins[0]) == "a b c"


def test_volatile_expressions_neither_move_nor_merge():
    rand = Comparison(Opaque("rand", volatile=True), "<", Literal(1))
    plan = join(where(join(A, B, "a.x = b.x"), rand), C, "b.x = c.x")
    conversion = two_step_convert(plan)
    upper, lower = conversion.multi_joins
    assert inputs(upper) == "MultiJoin c"
    assert inputs(lower) == "a b"
    left_to_spark = two_step_convert(join(A, B, "a.x = b.x", rand))
    assert reasons(left_to_spark) == ["the condition of the join is not deterministic"]
    value = Project(A, ((col("v"), Opaque("rand", volatile=True)), (col("x"), col("a.x"))))
    plan = where(join(value, B, "x = b.x"), Comparison(col("v"), "<", Literal(1)))
    (multi_join,) = two_step_convert(plan).multi_joins
    first = multi_join.inputs[0]
    assert isinstance(first, Filter), "the filter reads the value that was computed"
    assert first.input is value


def test_conditions_without_columns_and_of_three_inputs_stay_above():
    three = equal(Opaque("plus", (col("a.y"), col("b.y"))), col("c.y"))
    plan = where(chain(), three, equal(Literal(1), Literal(1)))
    conversion = converted(plan)
    assert isinstance(conversion.after, Filter)
    assert str(conversion.after.condition) == "plus(a.y, b.y) = c.y AND 1 = 1"


def test_two_groups_beside_each_other():
    def distinct(node: Node) -> Node:
        return Other("Distinct", (node,), node.columns)

    plan = join(distinct(join(A, B, "a.x = b.x")), distinct(join(C, D, "c.x = d.x")), "a.y = c.y")
    conversion = converted(plan)
    assert [inputs(multi_join) for multi_join in conversion.multi_joins] == [
        "Distinct Distinct",
        "a b",
        "c d",
    ]
    assert reasons(conversion) == [f"merged into group {group}" for group in (1, 2, 3)]


def test_the_rules_can_be_replaced():
    def not_with_b(join: Join) -> str | None:
        return "b is small" if join.right is B else None

    conversion = two_step_convert(chain(), membership=not_with_b)
    assert [inputs(multi_join) for multi_join in conversion.multi_joins] == ["Join c"]
    assert reasons(conversion) == ["merged into group 1", "b is small"]
    plan = join(chain(), D, "c.y = d.y")
    conversion = two_step_convert(plan, group_rule=one_common_key)
    assert [inputs(multi_join) for multi_join in conversion.multi_joins] == ["a b c"]
    assert reasons(conversion)[0] == "the 4 inputs of the merged join share no common key"


def test_a_plan_without_joins_is_returned_as_it_is():
    plan = where(A, equal(col("a.x"), Literal(1)))
    assert two_step_convert(plan).after is plan
    assert joins_of(plan) == []


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1])
def test_a_very_deep_plan_is_left_as_it_is(levels: int):
    plan: Node = join(A, B, "a.x = b.x")
    for _ in range(levels - 2):
        plan = where(plan, equal(col("a.x"), Literal(1)))
    conversion = two_step_convert(plan)
    if levels > MAX_DEPTH:
        assert conversion.after is plan
        assert reasons(conversion) == ["the plan has 201 levels, more than 200"]
    else:
        assert reasons(conversion) == ["merged into group 1"]


def test_a_join_of_columns_it_does_not_have_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"reads c\.x, which its input lacks"):
        join(A, B, "a.x = c.x")
    with pytest.raises(InvalidArgumentError, match=r"column a\.x stands twice"):
        join(A, A)
    with pytest.raises(InvalidArgumentError, match="join kind 'outer'"):
        join(A, B, kind="outer")


def numbered(session: int, *, right_key: str = "x") -> MultiJoin:
    """A join of two streams whose columns carry the numbers a session gave them."""
    left, right = with_numbers(A, session), with_numbers(B, session + 10)
    condition = equal(left.columns[0], next(c for c in right.columns if c.name == right_key))
    return two_step_convert(Join(left, right, condition)).multi_joins[0]


def with_numbers(node: Node, first: int) -> Project:
    return Project(
        node, tuple((Column(c.name[2:], first + n), c) for n, c in enumerate(node.columns))
    )


def test_signature_does_not_depend_on_the_sessions_numbers():
    assert signature(numbered(5)) == signature(numbered(500))
    assert signature(numbered(5)) == ("input 0: a(x, y)\ninput 1: b(x, y)\nkey: 0:x@0 = 1:x@0")


def test_the_signature_of_another_join_is_another():
    assert signature(numbered(5)) != signature(numbered(5, right_key="y"))


def test_signature_ignores_filters():
    plain = join(A, B, "a.x = b.x")
    other = where(plain, equal(col("a.y"), Literal(1)))
    assert len({signature(two_step_convert(p).multi_joins[0]) for p in (plain, other)}) == 1
