"""Short ways to write plans in tests."""

from lsmstate.joins.plan.conditions import Column, Comparison, Expression, all_of, equal
from lsmstate.joins.plan.join_tree import Alias, Filter, Join, Node, Other, Project, Source


def stream(name: str, *columns: str) -> Source:
    """A stream with columns ``<name>.<column>``; x and y if none are given."""
    return Source(name, tuple(Column(f"{name}.{column}") for column in columns or ("x", "y")))


def table(name: str, *columns: str) -> Source:
    """As ``stream``, but static."""
    return Source(name, stream(name, *columns).columns, is_streaming=False)


def col(name: str) -> Column:
    return Column(name)


def eq(text: str) -> Comparison:
    """``a.x = b.x``"""
    left, right = text.split(" = ")
    return equal(Column(left), Column(right))


def join(left: Node, right: Node, *on: str | Expression, kind: str = "inner") -> Join:
    parts = [eq(part) if isinstance(part, str) else part for part in on]
    return Join(left, right, all_of(parts), kind)


def where(node: Node, *conditions: str | Expression) -> Filter:
    condition = all_of([eq(part) if isinstance(part, str) else part for part in conditions])
    assert condition is not None
    return Filter(node, condition)


def comma(*sources: Node) -> Node:
    """FROM a, b, c"""
    node = sources[0]
    for source in sources[1:]:
        node = Join(node, source)
    return node


def renamed(node: Node, alias: str) -> Node:
    """The second use of a subplan, as Spark's analyzer writes a self-join."""
    values = tuple((Column(f"{alias}.{c.name.split('.')[-1]}"), c) for c in node.columns)
    return Alias(Project(node, values), alias)


def aggregate(node: Node, *columns: str) -> Other:
    return Other("Aggregate", (node,), tuple(map(Column, columns)), is_aggregate=True)
