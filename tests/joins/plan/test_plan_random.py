"""Random plans over random tables give the same rows before and after the conversion."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

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
    JOIN_KINDS,
    Alias,
    Filter,
    Join,
    MultiJoin,
    Node,
    Other,
    Project,
    Source,
    parents_first,
)
from lsmstate.joins.plan.prune import pruned
from lsmstate.joins.plan.tsc import GroupRule, any_keys, joins_of, one_common_key, two_step_convert
from support.examples import examples
from support.plan_eval import result

VALUES = st.sampled_from([1, 1, 2, 2, 3, None])
TABLE = st.lists(st.tuples(VALUES, VALUES), min_size=3, max_size=6)
Draw = Callable[..., Any]


class PlanBuilder:
    """Draws a plan from the bottom up, a list of subplans at a time, until one is left."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.columns = 0
        self.tables: dict[str, list[tuple[Any, ...]]] = {}

    def plan(self) -> Node:
        subplans: list[Node] = [self.source() for _ in range(self.draw(st.integers(3, 4)))]
        while len(subplans) > 1:
            # Neighbours are joined, so left-deep, right-deep and bushy trees all come up.
            at = self.draw(st.integers(0, len(subplans) - 2))
            subplans[at : at + 2] = [self.wrapped(self.join(*subplans[at : at + 2]))]
        return subplans[0]

    def source(self) -> Node:
        name = f"s{len(self.tables)}"
        self.tables[name] = self.draw(TABLE)
        static = self.draw(st.integers(0, 14)) == 14
        source = Source(name, self.fresh(2), is_streaming=not static)
        return self.wrapped(source)

    def fresh(self, count: int) -> tuple[Column, ...]:
        self.columns += count
        return tuple(Column(f"c{self.columns - n}") for n in range(count))

    def join(self, left: Node, right: Node) -> Node:
        if self.draw(st.integers(0, 6)) == 6 and len(joins_of(left)) < 3:
            # The right side once more, shared: a node with two outputs.
            right = left
        if set(left.columns) & set(right.columns):
            right = self.renaming(right)
        kind = self.draw(st.sampled_from(["inner"] * 20 + list(JOIN_KINDS)))
        condition = None
        if kind != "inner" or self.draw(st.integers(0, 3)):
            operator = self.draw(st.sampled_from(["="] * 9 + ["<=>"]))
            condition = Comparison(self.one_of(left), operator, self.one_of(right))
            if self.draw(st.integers(0, 3)) == 0:
                both = (*left.columns, *right.columns)
                condition = And((condition, self.condition(both)))
        return Join(left, right, condition, kind)

    def renaming(self, node: Node) -> Project:
        names = self.fresh(len(node.columns))
        return Project(node, tuple(zip(names, node.columns, strict=True)))

    def wrapped(self, node: Node) -> Node:
        for _ in range(self.draw(st.integers(0, 1))):
            match self.draw(st.sampled_from(["filter", "project", "alias", "other", "none"])):
                case "filter":
                    node = Filter(node, self.condition(node.columns))
                case "project":
                    kept = self.draw(
                        st.lists(st.sampled_from(node.columns), min_size=1, max_size=4)
                    )
                    values = [self.computed(node, column) for column in kept]
                    node = Project(node, tuple(zip(self.fresh(len(kept)), values, strict=True)))
                case "alias":
                    node = Alias(node, "v")
                case "other":
                    if self.draw(st.integers(0, 3)) == 0:
                        node = Other("Distinct", (node,), node.columns)
        return node

    def computed(self, node: Node, column: Column) -> Expression:
        if self.draw(st.integers(0, 3)):
            return column
        return Opaque(
            "plus", (column, self.draw(st.sampled_from([Literal(1, "1"), self.one_of(node)])))
        )

    def one_of(self, node: Node) -> Column:
        return self.draw(st.sampled_from(node.columns))

    def condition(self, columns: tuple[Column, ...], depth: int = 2) -> Expression:
        column = self.draw(st.sampled_from(columns))
        other = self.draw(st.sampled_from([*columns, Literal(1, "1"), Literal(2, "2")]))
        kinds = ["equal", "equal", "compare", "isnull", "subquery"]
        match self.draw(st.sampled_from(kinds + ["and", "or", "or", "not"] * (depth > 0))):
            case "equal":
                return Comparison(column, "=", other)
            case "compare":
                operator = self.draw(st.sampled_from(["<=>", "<>", "<", ">="]))
                return Comparison(column, operator, other)
            case "isnull":
                return Opaque("isnull", (column,))
            case "subquery":
                return Opaque("in_subquery", (column,), subquery=True)
            case "not":
                return Not(self.condition(columns, depth - 1))
            case "and":
                return And(tuple(self.condition(columns, depth - 1) for _ in range(2)))
            case _:
                common = self.condition(columns, 0)
                branches = (self.condition(columns, depth - 1) for _ in range(2))
                return Or(tuple(And((common, branch)) for branch in branches))


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    group_rule=st.sampled_from([any_keys, one_common_key]),
    by_any_condition=st.booleans(),
)
def test_conversion_changes_no_row(
    data: st.DataObject, group_rule: GroupRule, by_any_condition: bool
):
    builder = PlanBuilder(data.draw)
    plan = builder.plan()
    conversion = two_step_convert(plan, group_rule=group_rule, by_any_condition=by_any_condition)
    before = result(plan, builder.tables)
    event(f"multi-way joins: {len(conversion.multi_joins)}, rows: {bool(before)}")
    assert conversion.after.columns == plan.columns
    assert result(conversion.after, builder.tables) == before
    check_groups(conversion.after, group_rule, by_any_condition)
    narrow = pruned(conversion.after)
    assert result(narrow, builder.tables) == before
    check_stored(narrow)
    assert list(conversion.verdicts) == joins_of(plan)
    merged = {verdict.group for verdict in conversion.verdicts.values()} - {None}
    assert merged == set(range(1, len(conversion.multi_joins) + 1))


def check_groups(plan: Node, group_rule: GroupRule, by_any_condition: bool) -> None:
    """What a multi-way join promises: keys between inputs, all inputs linked unless any condition
    may join them, the rule kept."""
    for multi_join in parents_first(plan):
        if not isinstance(multi_join, MultiJoin):
            continue
        assert len(multi_join.inputs) >= 2
        assert group_rule(multi_join) is None
        linked = {0}
        for _ in multi_join.inputs:
            for key in multi_join.keys:
                places = [place for place, _ in key.members]
                assert places == sorted(set(places))
                assert len(places) >= 2
                if linked & set(places):
                    linked |= set(places)
        assert multi_join.is_linked == (linked == set(range(len(multi_join.inputs))))
        assert multi_join.is_linked or by_any_condition
        assert not (multi_join.is_linked and multi_join.conditions)


def check_stored(plan: Node) -> None:
    """What enters a multi-way join is a key, or is read above it; keys are columns."""
    for multi_join in parents_first(plan):
        if isinstance(multi_join, MultiJoin):
            keys = {value for key in multi_join.keys for _, value in key.members}
            assert all(isinstance(value, Column) for value in keys)
            assert all(isinstance(node, Project) for node in multi_join.inputs)
