"""Fragments: the parts of a query that only ever grow, for queries that Spark does not stream.

Append-only parts are streamed: the groups of joins, by one operator, and each stream that is read
beside them. All else (subqueries, semi and anti joins, aggregates, sorts) is a plan over their
rows, which Spark runs as a batch query.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from textwrap import indent
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.joins.plan.conditions import Column
from lsmstate.joins.plan.explain import draw, explain
from lsmstate.joins.plan.join_tree import (
    Join,
    MultiJoin,
    Node,
    Other,
    Source,
    is_streaming,
    parents_first,
)
from lsmstate.joins.plan.prune import pruned
from lsmstate.joins.plan.tsc import Conversion, inner_join_of_streams, two_step_convert
from lsmstate.spark_integration.catalyst.catalyst import Catalyst
from lsmstate.spark_integration.catalyst.plan_nodes import ExpressionHandle
from lsmstate.spark_integration.joins.several import GROUP, rows_column
from lsmstate.spark_integration.plan.inputs import UnfitInputError
from lsmstate.spark_integration.sql.convert import largest_group
from lsmstate.spark_integration.sql.join_groups import (
    fits_several_groups,
    input_names,
    joined_frames,
    joined_groups,
)
from lsmstate.spark_integration.sql.plan_reader import ReadPlan, read_plan
from lsmstate.spark_integration.sql.plan_writer import PlanWriter, Written

#: The column that says which fragment a row of the streaming query belongs to.
FRAGMENT: Final = "fragment"
#: Operators whose rows over a stream are not those over what has come of it, or that are refused.
_NOT_AT_ONCE: Final = (
    *("Sort", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Window", "Except", "Intersect"),
)


@dataclass(frozen=True, eq=False)
class Part:
    """The plan of a query, or of a subquery in it."""

    read: ReadPlan
    tree: Node
    subqueries: Mapping[ExpressionHandle, "Part"]
    conversion: Conversion | None = None
    """What made ``tree`` of the one that was read; None if it is that."""

    def all(self) -> list["Part"]:
        return [self, *(part for below in self.subqueries.values() for part in below.all())]


@dataclass(frozen=True)
class Fragment:
    """A part of the query that is streamed and kept."""

    name: str
    text: str
    """What it streams, with its filters: other rows would be missing from what is kept."""
    columns: T.StructType


@dataclass
class Fragments:
    """The fragments of one query, the DataFrame that streams them, and the query over them."""

    catalyst: Catalyst
    part: Part
    all: list[Fragment] = field(default_factory=list)
    joined: DataFrame | None = None
    """The operator, if joins are merged."""
    _frames: list[DataFrame] = field(default_factory=list)
    """Which fragment a row is of, and a struct for each fragment; together they have all."""
    _of_join: dict[MultiJoin, int] = field(default_factory=dict)
    _of_stream: list[tuple[Any, int]] = field(default_factory=list)

    @classmethod
    def of(
        cls, catalyst: Catalyst, plan: Any, rows: Mapping[str, int], options: Mapping[str, Any]
    ) -> "Fragments":
        """Split a plan into its fragments.

        Raises:
            InvalidArgumentError: The plan cannot be read, or the operator refuses its part.
        """
        read = _part(catalyst, plan)
        if fits_several_groups(options):
            # An input of another group that cannot be stored is no reason to give up the largest.
            with suppress(UnfitInputError):
                return cls._streamed(catalyst, _with_groups(read), rows, options)
        return cls._streamed(catalyst, _with_largest_group(read), rows, options)

    @classmethod
    def _streamed(
        cls, catalyst: Catalyst, part: Part, rows: Mapping[str, int], options: Mapping[str, Any]
    ) -> "Fragments":
        found = cls(catalyst, part)
        found._add_joins(rows, options)
        for below in part.all():
            for node in _outside(below.tree):
                found._add_stream(below.read, node)
        return found

    def streamed(self) -> DataFrame:
        """All fragments as one streaming DataFrame: which one, and a struct for each."""
        return reduce(
            lambda one, other: one.unionByName(other, allowMissingColumns=True), self._frames
        )

    def answer(self, stored: DataFrame) -> DataFrame:
        """The query over the fragments as they were stored."""
        plans = [
            stored.where(F.col(FRAGMENT) == number).select(f"f{number}.*")
            for number in range(len(self.all))
        ]
        analyzed = [self.catalyst.analyzed(frame) for frame in plans]
        attributes = list(map(self.catalyst.output_attributes, analyzed))
        return self.catalyst.dataframe(self._rest(self.part, analyzed, attributes))

    def explained(self) -> str:
        """The plans of the query and of its subqueries before and after, what became of each join,
        and what is streamed."""
        lines = []
        for number, part in enumerate(self.part.all()):
            assert part.conversion is not None, "a part that was not converted"
            lines += [f"Subquery {number}" if number else "Query"]
            lines += [indent(explain(part.conversion), "  ")]
        return "\n".join([*lines, *(f"Fragment: {fragment.name}" for fragment in self.all)])

    def _rest(self, part: Part, plans: Sequence[Any], attributes: Sequence[list[Any]]) -> Any:
        def fragment(number: int, columns: Sequence[Column]) -> Written:
            return plans[number], dict(zip(columns, attributes[number], strict=True))

        def join(node: MultiJoin) -> Written:
            return fragment(self._of_join[node], node.columns)

        def stream(node: Source) -> Written:
            return fragment(self._number_of(part.read, node), node.columns)

        return PlanWriter(
            part.read,
            join,
            write_stream=stream,
            write_subquery=lambda handle: self._rest(part.subqueries[handle], plans, attributes),
        ).plan(part.tree)

    def _add_joins(self, rows: Mapping[str, int], options: Mapping[str, Any]) -> None:
        groups: dict[MultiJoin, list[DataFrame]] = {}
        for part in self.part.all():
            writer = PlanWriter(part.read, _no_join)
            for node in parents_first(part.tree):
                if isinstance(node, MultiJoin):
                    groups[node] = [self.catalyst.dataframe(writer.plan(i)) for i in node.inputs]
        if len(groups) == 1:
            ((group, frames),) = groups.items()
            self.joined = joined_frames(group, frames, rows, options)
            self._frames.append(_tagged(0, self.joined))
            schemas = [self.joined.schema]
        elif groups:
            self.joined = joined_groups(groups, rows, options)
            schemas = [_struct(self.joined.schema[rows_column(n)]) for n in range(len(groups))]
            structs = [
                F.col(rows_column(n)).cast(_numbered(schema)).alias(f"f{n}")
                for n, schema in enumerate(schemas)
            ]
            self._frames.append(self.joined.select(F.col(GROUP).alias(FRAGMENT), *structs))
        for number, (group, names) in enumerate(zip(groups, input_names(groups), strict=True)):
            self._of_join[group] = number
            name = "join of " + ", ".join(names)
            self.all.append(Fragment(name, _text(group), _numbered(schemas[number])))

    def _add_stream(self, read: ReadPlan, node: Source) -> None:
        relation = PlanWriter(read, _no_join).plan(node)
        if self._known(relation) is None:
            number = len(self.all)
            frame = self.catalyst.dataframe(relation)
            self._of_stream.append((relation, number))
            self._frames.append(_tagged(number, frame))
            self.all.append(Fragment(node.name, node.name, _numbered(frame.schema)))

    def _number_of(self, read: ReadPlan, node: Source) -> int:
        found = self._known(PlanWriter(read, _no_join).plan(node))
        assert found is not None, "a stream that is no fragment"
        return found

    def _known(self, relation: Any) -> int | None:
        """The fragment of the same stream, though its columns have other ids."""
        return next(
            (n for known, n in self._of_stream if self.catalyst.gives_the_same(known, relation)),
            None,
        )


def _part(catalyst: Catalyst, plan: Any) -> Part:
    read = read_plan(catalyst, plan, is_kept=True)
    below = {
        handle: _part(catalyst, catalyst.subquery_plan(read.spark.expression(handle)))
        for handle in read.subqueries
    }
    return Part(read, read.tree, below)


def _with_groups(part: Part) -> Part:
    """The part with all groups of joins merged, also those of its subqueries."""
    conversion = two_step_convert(part.tree, group_rule=_only_grows, by_any_condition=True)
    below = {handle: _with_groups(own) for handle, own in part.subqueries.items()}
    return Part(part.read, pruned(conversion.after), below, conversion)


def _with_largest_group(part: Part) -> Part:
    """The part with one group of joins merged: the largest of all, subqueries included."""
    sizes = {}
    for below in part.all():
        groups = largest_group(below.tree, _only_grows).multi_joins
        sizes[below] = len(groups[0].inputs) if groups else 0
    largest = max(sizes, key=lambda found: sizes[found])

    def rebuilt(below: Part) -> Part:
        if below is largest:
            conversion = largest_group(below.tree, _only_grows)
        else:
            conversion = two_step_convert(below.tree, _none_beside_the_largest)
        own = {handle: rebuilt(subquery) for handle, subquery in below.subqueries.items()}
        return Part(below.read, pruned(conversion.after), own, conversion)

    return rebuilt(part)


def _none_beside_the_largest(join: Join) -> str:
    """The membership rule of plans beside the one with the largest group."""
    return inner_join_of_streams(join) or (
        "with these inputs or options one group of joins can be merged, and the group of another "
        "part of the query is no smaller"
    )


def _only_grows(multi_join: MultiJoin) -> str | None:
    """The group rule: Spark must stream each row of the inputs at once. No joins, sorts, limits."""
    for node in parents_first(multi_join):
        waits = isinstance(node, Join) and not _joins_tables_only(node)
        if waits or (isinstance(node, Other) and node.name in _NOT_AT_ONCE):
            return "an input contains an operator that Spark does not stream row by row"
    if multi_join.unconnected:
        return "no condition links the two sides of the join, and its results would be kept"
    return None


def _joins_tables_only(join: Join) -> bool:
    """Whether the join gives each row of a stream at once, with the matches from tables."""
    left, right = map(is_streaming, join.inputs)
    if left and right:
        return False
    kept = {"inner": True, "right outer": not left, "full outer": False}.get(join.kind, not right)
    return kept or not (left or right)


def _outside(tree: Node) -> list[Source]:
    """The streams that are read outside of the multi-way joins."""
    inside = {
        below
        for node in parents_first(tree)
        if isinstance(node, MultiJoin)
        for below in parents_first(node)
    }
    return [
        node
        for node in parents_first(tree)
        if isinstance(node, Source) and node.is_streaming and node not in inside
    ]


def _text(node: Node) -> str:
    """The plan without ids of the session and without sizes of files."""
    numbers: dict[str, str] = {}
    plan = re.sub(r", about [\d,]+ rows\)", ")", draw(node))
    return re.sub(r"#\d+", lambda n: numbers.setdefault(n[0], f"#{len(numbers) + 1}"), plan)


def _tagged(number: int, frame: DataFrame) -> DataFrame:
    """The rows as those of fragment ``number``; columns of a struct have names of their own."""
    numbered = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
    return numbered.select(F.lit(number).alias(FRAGMENT), F.struct("*").alias(f"f{number}"))


def _struct(field: T.StructField) -> T.StructType:
    assert isinstance(field.dataType, T.StructType)
    return field.dataType


def _numbered(columns: T.StructType) -> T.StructType:
    """The columns as a fragment has them."""
    return T.StructType(
        [
            T.StructField(f"c{place}", f.dataType, f.nullable, f.metadata)
            for place, f in enumerate(columns)
        ]
    )


def _no_join(_node: MultiJoin) -> Written:
    raise AssertionError("an input of the multi-way join holds another one")
