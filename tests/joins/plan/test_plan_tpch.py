"""TPC-H's join graphs: groups, inputs and key classes of the queries the paper converts (Table 3).

Joins only, written as the benchmark writes them: FROM lists, equalities in WHERE, aliases. What
stands in a subquery is a plan of its own.
"""

import pytest

from lsmstate.joins.plan.conditions import (
    And,
    Column,
    Comparison,
    Expression,
    Literal,
    Opaque,
    Or,
    equal,
)
from lsmstate.joins.plan.join_tree import Filter, MultiJoin, Node
from lsmstate.joins.plan.tsc import one_common_key, two_step_convert
from support.plan_cases import aggregate, comma, join, stream, where

COLUMNS = {
    "part": ("partkey", "type", "size"),
    "supplier": ("suppkey", "nationkey"),
    "partsupp": ("partkey", "suppkey", "supplycost"),
    "customer": ("custkey", "nationkey", "mktsegment"),
    "orders": ("orderkey", "custkey", "orderdate", "orderstatus"),
    "lineitem": ("orderkey", "partkey", "suppkey", "shipdate", "receiptdate", "commitdate"),
    "nation": ("nationkey", "regionkey", "name"),
    "region": ("regionkey", "name"),
}
ALIASES = {
    "p": "part",
    "s": "supplier",
    "ps": "partsupp",
    "c": "customer",
    "o": "orders",
    "l": "lineitem",
    "n": "nation",
    "n1": "nation",
    "n2": "nation",
    "r": "region",
}


def query(aliases: str, *conditions: str | Expression) -> Node:
    """FROM the tables of the aliases, in their order, WHERE the conditions."""
    sources = [stream(alias, *COLUMNS[ALIASES[alias]]) for alias in aliases.split()]
    return where(comma(*sources), *conditions)


def is_literal(column: str, literal: str) -> Comparison:
    return equal(Column(column), Literal(literal))


EITHER_WAY = Or(
    (
        And((is_literal("n1.name", "FRANCE"), is_literal("n2.name", "GERMANY"))),
        And((is_literal("n1.name", "GERMANY"), is_literal("n2.name", "FRANCE"))),
    )
)
LARGE_ORDER = Opaque("in_large_orders", (Column("o.orderkey"),), subquery=True)
OTHERS_LATE = Opaque("exists", (Column("l.orderkey"), Column("l.suppkey")), subquery=True)
CHEAPEST = Opaque("is_minimum", (Column("ps.supplycost"), Column("p.partkey")), subquery=True)
LATE = Comparison(Column("l.receiptdate"), ">", Column("l.commitdate"))

# name: (plan, key classes, what stays as a filter above the group)
QUERIES: dict[str, tuple[Node, list[str], Expression | None]] = {
    "q2": (
        query(
            "p s ps n r",
            "p.partkey = ps.partkey",
            "s.suppkey = ps.suppkey",
            "s.nationkey = n.nationkey",
            "n.regionkey = r.regionkey",
            is_literal("r.name", "EUROPE"),
            CHEAPEST,
        ),
        ["p ps", "s ps", "s n", "n r"],
        CHEAPEST,
    ),
    "q2_subquery": (
        query(
            "ps s n r",
            "s.suppkey = ps.suppkey",
            "s.nationkey = n.nationkey",
            "n.regionkey = r.regionkey",
        ),
        ["ps s", "s n", "n r"],
        None,
    ),
    "q3": (
        query(
            "c o l",
            is_literal("c.mktsegment", "BUILDING"),
            "c.custkey = o.custkey",
            "l.orderkey = o.orderkey",
        ),
        ["c o", "o l"],
        None,
    ),
    "q5": (
        query(
            "c o l s n r",
            "c.custkey = o.custkey",
            "l.orderkey = o.orderkey",
            "l.suppkey = s.suppkey",
            "c.nationkey = s.nationkey",
            "s.nationkey = n.nationkey",
            "n.regionkey = r.regionkey",
        ),
        ["c o", "o l", "l s", "c s n", "n r"],
        None,
    ),
    "q7": (
        query(
            "s l o c n1 n2",
            "s.suppkey = l.suppkey",
            "o.orderkey = l.orderkey",
            "c.custkey = o.custkey",
            "s.nationkey = n1.nationkey",
            "c.nationkey = n2.nationkey",
            EITHER_WAY,
        ),
        ["s l", "l o", "o c", "s n1", "c n2"],
        EITHER_WAY,
    ),
    "q8": (
        query(
            "p s l o c n1 n2 r",
            "p.partkey = l.partkey",
            "s.suppkey = l.suppkey",
            "l.orderkey = o.orderkey",
            "o.custkey = c.custkey",
            "c.nationkey = n1.nationkey",
            "n1.regionkey = r.regionkey",
            is_literal("r.name", "AMERICA"),
            "s.nationkey = n2.nationkey",
        ),
        ["p l", "s l", "l o", "o c", "c n1", "s n2", "n1 r"],
        None,
    ),
    "q9": (
        query(
            "p s l ps o n",
            "s.suppkey = l.suppkey",
            "ps.suppkey = l.suppkey",
            "ps.partkey = l.partkey",
            "p.partkey = l.partkey",
            "o.orderkey = l.orderkey",
            "s.nationkey = n.nationkey",
        ),
        ["s l ps", "p l ps", "l o", "s n"],
        None,
    ),
    "q10": (
        query(
            "c o l n",
            "c.custkey = o.custkey",
            "l.orderkey = o.orderkey",
            "c.nationkey = n.nationkey",
        ),
        ["c o", "o l", "c n"],
        None,
    ),
    "q11": (
        query("ps s n", "ps.suppkey = s.suppkey", "s.nationkey = n.nationkey"),
        ["ps s", "s n"],
        None,
    ),
    "q18": (
        query("c o l", LARGE_ORDER, "c.custkey = o.custkey", "o.orderkey = l.orderkey"),
        ["c o", "o l"],
        LARGE_ORDER,
    ),
    "q21": (
        query(
            "s l o n",
            "s.suppkey = l.suppkey",
            "o.orderkey = l.orderkey",
            is_literal("o.orderstatus", "F"),
            LATE,
            OTHERS_LATE,
            "s.nationkey = n.nationkey",
        ),
        ["s l", "l o", "s n"],
        OTHERS_LATE,
    ),
}


def aliases_of(node: Node) -> str:
    """The aliases whose columns a node has."""
    return " ".join(dict.fromkeys(column.name.split(".")[0] for column in node.columns))


@pytest.mark.parametrize("name", QUERIES)
def test_one_group_with_all_inputs_in_their_order(name: str):
    plan, keys, above = QUERIES[name]
    conversion = two_step_convert(plan)
    (multi_join,) = conversion.multi_joins
    assert multi_join.columns == plan.columns
    assert [aliases_of(child) for child in multi_join.inputs] == aliases_of(plan).split()
    found = [
        " ".join(aliases_of(multi_join.inputs[place]) for place, _ in key.members)
        for key in multi_join.keys
    ]
    assert sorted(found) == sorted(keys)
    if above is None:
        assert conversion.after is multi_join
    else:
        assert isinstance(conversion.after, Filter)
        assert conversion.after.condition == above
        assert conversion.after.input is multi_join
    assert multi_join.common_keys == (), "only Q15 has a key common to all inputs"


@pytest.mark.parametrize(
    ("name", "inputs", "filters"),
    [("q3", 3, 1), ("q8", 8, 1), ("q21", 4, 2), ("q7", 6, 0)],
)
def test_conditions_on_one_input_go_there(name: str, inputs: int, filters: int):
    (multi_join,) = two_step_convert(QUERIES[name][0]).multi_joins
    assert len(multi_join.inputs) == inputs
    assert sum(isinstance(child, Filter) for child in multi_join.inputs) == filters


def test_q15_is_not_converted_because_one_side_is_an_aggregate():
    revenue = aggregate(stream("l", *COLUMNS["lineitem"]), "l.suppkey", "total")
    suppliers = stream("s", *COLUMNS["supplier"])
    conversion = two_step_convert(join(suppliers, revenue, "s.suppkey = l.suppkey"))
    assert conversion.multi_joins == ()
    assert conversion.after is conversion.before
    (verdict,) = conversion.verdicts.values()
    assert verdict.reason == (
        "the right side of the join has a streaming aggregate, whose results change later"
    )


def test_an_operator_with_one_key_gets_a_binary_tree_back_from_q3():
    """Flink splits by common key; so does ``one_common_key``."""
    conversion = two_step_convert(QUERIES["q3"][0], group_rule=one_common_key)
    (multi_join,) = conversion.multi_joins
    assert isinstance(multi_join, MultiJoin)
    assert aliases_of(multi_join) == "c o"
    assert [verdict.reason for verdict in conversion.verdicts.values()] == [
        "the 3 inputs of the merged join share no common key",
        "merged into group 1",
    ]
