"""Fragments of a query that Spark does not stream whole: what of it only ever grows.

Append-only parts are streamed: the largest group of joins, as one operator, and every stream that
is read outside of it. All else (subqueries, semi and anti joins, aggregates, sorts) is a plan over
what they have given, which Spark runs as a batch query.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from joins.plan.conditions import Column
from joins.plan.explain import draw
from joins.plan.join_tree import (
    Join,
    MultiJoin,
    Node,
    Other,
    Source,
    is_streaming,
    parents_first,
)
from joins.plan.prune import pruned
from spark_integration.catalyst import Catalyst
from spark_integration.convert import largest_group
from spark_integration.group_join import input_names, joined_frames
from spark_integration.plan_reader import ExpressionHandle, ReadPlan, expression_of, read_plan
from spark_integration.plan_writer import PlanWriter, Written

#: The column that says which fragment a row of the streaming query belongs to.
FRAGMENT: Final = "fragment"
#: Operators whose rows over a stream are not those over what has come of it, or that are refused.
_NOT_AT_ONCE: Final = (
    *("Sort", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Window", "Except", "Intersect"),
)


@dataclass(frozen=True, eq=False)
class Part:
    """A plan, or that of a subquery in it."""

    read: ReadPlan
    tree: Node
    subqueries: Mapping[ExpressionHandle, "Part"]

    def all(self) -> list["Part"]:
        return [self, *(part for below in self.subqueries.values() for part in below.all())]


@dataclass
class Fragments:
    """The fragments of one query, and what is made of them."""

    catalyst: Catalyst
    part: Part
    names: list[str] = field(default_factory=list)
    frames: list[DataFrame] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """What each streams, with its filters: other rows would be missing from what is kept."""
    _of_join: int | None = None
    _of_stream: list[tuple[Any, int]] = field(default_factory=list)

    @classmethod
    def of(
        cls, catalyst: Catalyst, plan: Any, rows: Mapping[str, int], options: Mapping[str, Any]
    ) -> "Fragments":
        """InvalidArgumentError if the plan cannot be read, or the operator refuses its part."""
        part = _with_largest_group(_part(catalyst, plan))
        found = cls(catalyst, part)
        for below in part.all():
            found._add_join(below, rows, options)
        for below in part.all():
            for node in _outside(below.tree):
                found._add_stream(below.read, node)
        return found

    @property
    def joined(self) -> DataFrame | None:
        """The group of joins, if there is one."""
        return None if self._of_join is None else self.frames[self._of_join]

    def streamed(self) -> DataFrame:
        """All fragments as one streaming DataFrame: which one, and a struct for each."""
        tagged = [
            frame.select(F.lit(number).alias(FRAGMENT), F.struct("*").alias(f"f{number}"))
            for number, frame in enumerate(self.frames)
        ]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), tagged)

    def answer(self, stored: DataFrame) -> DataFrame:
        """The query over the fragments as they were ``stored``."""
        plans = [
            stored.where(F.col(FRAGMENT) == number).select(f"f{number}.*")
            for number in range(len(self.frames))
        ]
        analyzed = [frame._jdf.queryExecution().analyzed() for frame in plans]
        attributes = list(map(self.catalyst.output_attributes, analyzed))
        return self.catalyst.dataframe(self._rest(self.part, analyzed, attributes))

    def _rest(self, part: Part, plans: Sequence[Any], attributes: Sequence[list[Any]]) -> Any:
        def fragment(number: int, columns: Sequence[Column]) -> Written:
            return plans[number], dict(zip(columns, attributes[number], strict=True))

        def join(node: MultiJoin) -> Written:
            assert self._of_join is not None, "no group was streamed"
            return fragment(self._of_join, node.columns)

        def stream(node: Source) -> Written:
            return fragment(self._number_of(part.read, node), node.columns)

        return PlanWriter(
            part.read,
            join,
            write_stream=stream,
            write_subquery=lambda handle: self._rest(part.subqueries[handle], plans, attributes),
        ).plan(part.tree)

    def _add_join(self, part: Part, rows: Mapping[str, int], options: Mapping[str, Any]) -> None:
        for node in parents_first(part.tree):
            if isinstance(node, MultiJoin):
                writer = PlanWriter(part.read, _no_join)
                frames = [self.catalyst.dataframe(writer.plan(side)) for side in node.inputs]
                self._of_join = len(self.frames)
                self.names.append("join of " + ", ".join(input_names(node)))
                self.texts.append(_text(node))
                self.frames.append(_numbered(joined_frames(node, frames, rows, options)))

    def _add_stream(self, read: ReadPlan, node: Source) -> None:
        relation = PlanWriter(read, _no_join).plan(node)
        if self._known(relation) is None:
            self._of_stream.append((relation, len(self.frames)))
            self.names.append(node.name)
            self.texts.append(node.name)
            self.frames.append(_numbered(self.catalyst.dataframe(relation)))

    def _number_of(self, read: ReadPlan, node: Source) -> int:
        found = self._known(PlanWriter(read, _no_join).plan(node))
        assert found is not None, "a stream that is no fragment"
        return found

    def _known(self, relation: Any) -> int | None:
        """The fragment of the same stream, though its columns have other ids."""
        return next((n for known, n in self._of_stream if known.sameResult(relation)), None)


def _part(catalyst: Catalyst, plan: Any) -> Part:
    read = read_plan(catalyst, plan, is_kept=True)
    below = {
        handle: _part(catalyst, expression_of(catalyst, plan, handle).plan())
        for handle in read.subqueries
    }
    return Part(read, read.tree, below)


def _with_largest_group(part: Part) -> Part:
    """The part with one group of joins merged: the largest of all, subqueries included."""
    sizes = {}
    for below in part.all():
        groups = largest_group(below.tree, _only_grows).multi_joins
        sizes[below] = len(groups[0].inputs) if groups else 0
    largest = max(sizes, key=lambda found: sizes[found])

    def rebuilt(below: Part) -> Part:
        tree = below.tree
        if below is largest:
            tree = pruned(largest_group(tree, _only_grows).after)
        return Part(below.read, tree, {h: rebuilt(p) for h, p in below.subqueries.items()})

    return rebuilt(part)


def _only_grows(multi_join: MultiJoin) -> str | None:
    """Spark streams what its inputs hold, and each row at once: no joins, sorts or limits."""
    for node in parents_first(multi_join):
        waits = isinstance(node, Join) and not _joins_tables_only(node)
        if waits or (isinstance(node, Other) and node.name in _NOT_AT_ONCE):
            return "an input holds what Spark does not stream row by row"
    return None


def _joins_tables_only(join: Join) -> bool:
    """Whether it gives each row of a stream at once, with what tables have for it."""
    left, right = map(is_streaming, join.inputs)
    if left and right:
        return False
    kept = {"inner": True, "right outer": not left, "full outer": False}.get(join.kind, not right)
    return kept or not (left or right)


def _outside(tree: Node) -> list[Source]:
    """The streams that are read outside of the multi-way join."""
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
    """The plan without what a session or the sizes of files give to it."""
    numbers: dict[str, str] = {}
    plan = re.sub(r", about [\d,]+ rows\)", ")", draw(node))
    return re.sub(r"#\d+", lambda n: numbers.setdefault(n[0], f"#{len(numbers) + 1}"), plan)


def _numbered(frame: DataFrame) -> DataFrame:
    """Columns of a struct have names of their own."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))


def _no_join(_node: MultiJoin) -> Written:
    raise AssertionError("an input of the multi-way join holds another one")
