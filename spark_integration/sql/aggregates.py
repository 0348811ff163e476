"""Aggregates that are computed inside the join below them, and what combines their parts.

The operator hands out *partial aggregates* of each group. Spark's own aggregate above combines
them: it sums counts and sums, and takes the least of leasts. It has the groups, the columns and the
ids of the one that the query wrote. So everything above it stays valid, in every output mode.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions import predicate as p
from lsmstate.joins.conditions.columns import Column as StreamColumn
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.plan.computed_here import Computing
from lsmstate.joins.plan.conditions import (
    Column,
    Expression,
    Literal,
    Opaque,
    columns_of,
    walk,
)
from lsmstate.joins.plan.join_tree import AggregateCall, MultiJoin
from lsmstate.joins.plan.pushed_aggregates import JoinAggregate
from lsmstate.joins.specs.aggregates import (
    OPERATION_STREAM,
    AggregateFunction,
    Aggregates,
    Partial,
)
from lsmstate.spark_integration.catalyst.catalyst import Catalyst, analyzed_plan
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.catalyst.plan_nodes import ExpressionHandle, NodeHandle
from lsmstate.spark_integration.columns.arrow_substitutes import carried_type
from lsmstate.spark_integration.columns.collations import collations_in
from lsmstate.spark_integration.columns.schemas import arrow_schema, arrow_type
from lsmstate.spark_integration.joins.aggregated import GroupedResults, UngroupedError
from lsmstate.spark_integration.joins.residual_filter import check_evaluated_here
from lsmstate.spark_integration.sql.plan_reader import SparkLiteral
from lsmstate.spark_integration.sql.plan_writer import PlanWriter

_ANSI: Final = "spark.sql.ansi.enabled"
#: A whole number that counts as one result.
_ONE: Final = p.Constant(1, pa.int32())
#: Digits of a quotient beyond those of an average, so that it is not rounded twice.
_SPARE_DIGITS: Final = 10
#: Spark's type of a count in a division.
_COUNT: Final = "DECIMAL(20, 0)"
_MOST_DIGITS: Final = 38
#: Functions that the operation can give a sign to, so that what is taken back no longer counts.
_ADDED_UP: Final = ("Count", "CountIf", "Sum", "Average")


class NotPushedError(Exception):
    """Why an aggregate is not computed inside the join."""


@dataclass(frozen=True)
class SparkJoin:
    """A join below an aggregate."""

    streams: Mapping[str, DataFrame]
    columns: Mapping[Column, StreamColumn]
    """By column of the plan, that of a stream."""
    grouped: Callable[[GroupedResults], DataFrame]
    """Makes it, with partial aggregates for results; UngroupedError if that cannot be done."""
    inputs: Sequence[DataFrame] = ()
    """The inputs of a multi-way join, under the ids that columns have in the plan."""
    fields: Mapping[StreamColumn, T.StructField] = field(default_factory=dict)
    """The columns of a result where they are not those of the streams: some may be null."""

    @property
    def takes_back(self) -> bool:
        """Whether results may be taken back."""
        return OPERATION_STREAM in self.streams

    def field(self, column: StreamColumn) -> T.StructField:
        """A column of a result."""
        found = self.fields.get(column)
        return self.streams[column.stream].schema[column.name] if found is None else found


def write_aggregate(
    catalyst: Catalyst,
    writer: PlanWriter,
    found: JoinAggregate,
    join: SparkJoin,
    original: Callable[[ExpressionHandle], Any],
) -> Any:
    """Write an aggregate over partial aggregates of the join below it.

    Args:
        catalyst: Access to Spark's plans.
        writer: Writes expressions.
        found: The aggregate.
        join: The join below it.
        original: Gives Spark's own expression.

    Returns:
        Spark's plan.

    Raises:
        NotPushedError: It is left to Spark; the message says why.
    """
    pushing = _Pushing(catalyst, join)
    merges = [pushing.merged(call, original(_handle(call))) for call in found.calls]
    groups = [join.columns[column] for column in found.groups]
    by = tuple(_group(writer, join, found, column) for column in found.groups)
    aggregates = Aggregates(by, tuple(pushing.partials))
    output = T.StructType(
        [
            *(
                T.StructField(f"g{at}", join.field(group).dataType, join.field(group).nullable)
                for at, group in enumerate(groups)
            ),
            *(T.StructField(f"p{at}", kind) for at, kind in enumerate(pushing.partials.values())),
        ]
    )
    try:
        aggregates.schema(pushing.schemas)
    except InvalidArgumentError as unfit:
        raise NotPushedError(f"{unfit} is not computed inside the join") from unfit
    try:
        plan = analyzed_plan(join.grouped(GroupedResults(aggregates, output)))
    except UngroupedError as unfit:
        raise NotPushedError(str(unfit)) from unfit
    attributes = catalyst.output_attributes(plan)
    parts = attributes[len(groups) :]
    own = writer.own(dict(zip(found.groups, attributes, strict=False)))
    plan = catalyst.project([*own, *parts], plan)
    if any(map(writer.passes_watermark, found.groups)):
        assert isinstance(found.join, MultiJoin)
        plan = writer.with_watermark_of(found.join, plan)
    combined = _combined(catalyst, catalyst.project(parts, plan), merges)
    plan = catalyst.project([*(writer.named(*each) for each in found.kept), *parts], plan)
    of_calls = {_handle(call): value for call, value in zip(found.calls, combined, strict=True)}
    for call, value in zip(found.calls, combined, strict=True):
        wanted, given = (catalyst.type_json(e) for e in (original(_handle(call)), value))
        if wanted != given:
            raise NotPushedError(f"{call} has the type {wanted}, and its parts give {given}")
    assert found.node.aggregation is not None
    groupings = [writer.expression(each) for each in found.node.aggregation.groupings]
    node = found.node.handle
    assert isinstance(node, NodeHandle), "a node that was not read from a plan"
    results = [
        _replaced(catalyst, original, ExpressionHandle(node, ("result", place)), of_calls)
        for place in range(len(found.node.columns))
    ]
    return catalyst.aggregate(groupings, results, plan)


@dataclass
class _Pushing:
    """Collects the partial aggregates that calls are made of."""

    catalyst: Catalyst
    join: SparkJoin
    partials: dict[Partial, T.DataType] = field(default_factory=dict)
    """Each once, with its type in Spark."""

    def __post_init__(self) -> None:
        self.schemas = {
            name: arrow_schema(name, frame.schema) for name, frame in self.join.streams.items()
        }
        self._computing = Computing(self.join.columns, self.schemas)
        self._is_ansi = _is_on(self.catalyst.spark, _ANSI)

    def merged(self, call: AggregateCall, original: Any) -> str:
        """SQL over the columns p0, p1 and so on that gives what the call does."""
        function = self.catalyst.aggregate_function(original)
        name = self.catalyst.shown_name(function)
        if call.is_distinct and call.function not in ("Min", "Max", "BoolAnd", "BoolOr"):
            raise NotPushedError("it counts distinct values, which parts of a group do not say")
        if name.startswith("try_"):
            raise NotPushedError(f"{name} is not computed inside the join")
        if self.join.takes_back and call.function not in _ADDED_UP:
            raise NotPushedError(
                f"results may be taken back, and {name} reads those too; only counts, sums and "
                "averages of them are computed inside the join"
            )
        result = self._type(original)
        match call.function:
            case "Count":
                return f"coalesce(sum({self._count(call)}), 0L)"
            case "CountIf":
                counted = p.Case(((self._computed(call.arguments[0]), _ONE),), None)
                part = self._part(Partial("count", self._only(call, counted)), T.LongType())
                return f"coalesce(sum({part}), 0L)"
            case "Sum":
                return self._sum(call, function, result)
            case "Average":
                return self._average(call, function, result)
            case "Min" | "BoolAnd" | "First" | "AnyValue":
                merge = {"Min": "min", "BoolAnd": "bool_and"}.get(call.function, "first")
                return self._extreme(call, function, "min", merge)
            case "Max" | "BoolOr":
                merge = "max" if call.function == "Max" else "bool_or"
                return self._extreme(call, function, "max", merge)
        raise NotPushedError(f"{name} is not computed inside the join")

    def _count(self, call: AggregateCall) -> str:
        """How many results have values in all arguments."""
        values = [each for each in call.arguments if not _is_value(each)]
        if len(values) == 1:
            value: p.Expression = self._computed(values[0])
        elif values:
            known = tuple(p.Not(p.IsNull(self._computed(each))) for each in values)
            value = p.Case(((p.And(known), _ONE),), None)
        elif call.condition is None:
            return self._part(Partial("count"), T.LongType())
        else:
            value = _ONE
        return self._part(Partial("count", self._only(call, value)), T.LongType())

    def _extreme(
        self, call: AggregateCall, function: Any, extreme: AggregateFunction, merge: str
    ) -> str:
        """The least or the greatest value. FIRST and ANY_VALUE take the least of a micro-batch and
        bucket, which is one of their values. A part without a value, such as one in which a FILTER
        holds for no result, is passed over."""
        kind = self._type_below(function)
        self._check_ordered(kind)
        value = self._only(call, self._computed(call.arguments[0], kind))
        part = self._part(Partial(extreme, value), kind)
        return f"{merge}({part}{', true' if merge == 'first' else ''})"

    def _sum(self, call: AggregateCall, function: Any, result: T.DataType) -> str:
        value = self._computed(call.arguments[0], self._type_below(function))
        wanted = Partial("sum", self._only(call, value), wraps=not self._is_ansi)
        if isinstance(result, T.DecimalType):
            part = self._part(wanted, T.DecimalType(_MOST_DIGITS, result.scale))
            return f"cast(sum({part}) AS {result.simpleString()})"
        if not isinstance(result, T.LongType | T.DoubleType):
            raise NotPushedError(
                f"a sum of {result.simpleString()} is not computed inside the join"
            )
        return f"sum({self._part(wanted, result)})"

    def _average(self, call: AggregateCall, function: Any, result: T.DataType) -> str:
        kind = self._type_below(function)
        value = self._only(call, self._computed(call.arguments[0], kind))
        count = self._part(Partial("count", value), T.LongType())
        if isinstance(result, T.DoubleType):
            part = self._part(Partial("sum", value, is_double=True), result)
            return f"if(sum({count}) = 0L, NULL, sum({part}) / sum({count}))"
        if not (isinstance(result, T.DecimalType) and isinstance(kind, T.DecimalType)):
            raise NotPushedError(
                f"an average of {kind.simpleString()} is not computed inside the join"
            )
        total = T.DecimalType(min(_MOST_DIGITS, kind.precision + 10), kind.scale)
        quotient = f"cast({{}} AS {total.simpleString()}) / cast({{}} AS {_COUNT})"
        if self._scale_of(quotient) < result.scale + _SPARE_DIGITS:
            raise NotPushedError(
                f"an average of {kind.simpleString()} would be rounded twice; its quotient has too "
                "many digits"
            )
        part = self._part(
            Partial("sum", value, wraps=not self._is_ansi),
            T.DecimalType(_MOST_DIGITS, kind.scale),
        )
        shown = quotient.format(f"sum({part})", f"sum({count})")
        return f"if(sum({count}) = 0L, NULL, cast({shown} AS {result.simpleString()}))"

    def _scale_of(self, quotient: str) -> int:
        """The scale that Spark gives a quotient."""
        made = self.catalyst.spark.range(1).select(F.expr(quotient.format(1, 1)))
        kind = made.schema[0].dataType
        assert isinstance(kind, T.DecimalType)
        return kind.scale

    def _part(self, partial: Partial, kind: T.DataType) -> str:
        self.partials.setdefault(partial, kind)
        return f"p{list(self.partials).index(partial)}"

    def _only(self, call: AggregateCall, value: p.Expression) -> p.Expression:
        """The value where the condition of the call is true; null elsewhere."""
        if call.condition is None:
            return value
        return p.Case(((self._computed(call.condition), value),), None)

    def _computed(self, of: Expression, kind: T.DataType | None = None) -> p.Expression:
        """An expression as a tree, of which Spark says that it has a type."""
        try:
            tree = self._computing.of(of)
            found = self._computing.type_of(tree)
            if not isinstance(tree, StreamColumn):
                check_evaluated_here([PairCondition(tree)], self.join.streams)
        except InvalidArgumentError as unknown:
            raise NotPushedError(str(unknown)) from None
        if kind is not None and (carried_type(kind) != kind or arrow_type(kind, str(of)) != found):
            raise NotPushedError(f"{of} of the type {kind.simpleString()} is not aggregated here")
        return tree

    def _type(self, expression: Any) -> T.DataType:
        return T._parse_datatype_json_string(self.catalyst.type_json(expression))

    def _type_below(self, function: Any) -> T.DataType:
        return self._type(self.catalyst.child(function, 0))

    def _check_ordered(self, kind: T.DataType) -> None:
        if collations_in(kind):
            raise NotPushedError(f"{kind.simpleString()} is ordered by its collation")


def _window_us(
    writer: PlanWriter, join: SparkJoin, found: JoinAggregate, column: Column
) -> int | None:
    """The length of the tumbling windows, if groups are told apart by those of this column alone.
    Any time in a window then stands for all of them, and its start does."""
    readers = [value for _, value in found.kept if column in columns_of(value)]
    if any(columns_of(value) != {column} or not isinstance(value, Opaque) for value in readers):
        return None
    numbers = [
        int(part.value.text)
        for part in walk(readers[0])
        if isinstance(part, Literal)
        and isinstance(part.value, SparkLiteral)
        and re.fullmatch(r"\d+", part.value.text)
    ]
    length = max(numbers, default=0)
    times = [
        (frame, frame.schema[at])
        for node, frame in zip(found.join.inputs, join.inputs, strict=False)
        for at, own in enumerate(node.columns)
        if own == column
    ]
    if not length or not times:
        return None
    frame, field = times[0]
    if not isinstance(field.dataType, T.TimestampType | T.TimestampNTZType):
        return None
    window = F.window(F.col(quoted(field.name)), f"{length} microseconds")
    made = writer.catalyst.window_of(analyzed_plan(frame.select(window)))
    same = all(writer.catalyst.is_same(writer.expression(value), made) for value in readers)
    return length if same else None


def _group(
    writer: PlanWriter, join: SparkJoin, found: JoinAggregate, column: Column
) -> p.Expression:
    """By what groups are told apart where the aggregate tells them apart by a column."""
    length_us = _window_us(writer, join, found, column)
    if length_us is None:
        return join.columns[column]
    interval = p.Constant(p.Duration(length_us, has_days=False), pa.duration("us"))
    return p.Call("date_bin", (interval, join.columns[column]))


def _combined(catalyst: Catalyst, parts: Any, merges: list[str]) -> list[Any]:
    """Spark's expressions for SQL over partial aggregates."""
    if not merges:
        return []
    frame: DataFrame = catalyst.dataframe(parts)
    named = frame.agg(*(F.expr(text).alias(f"m{at}") for at, text in enumerate(merges)))
    return catalyst.aggregated(analyzed_plan(named))


def _replaced(
    catalyst: Catalyst,
    original: Callable[[ExpressionHandle], Any],
    handle: ExpressionHandle,
    values: Mapping[ExpressionHandle, Any],
) -> Any:
    """Spark's expression at a place, with those at other places in it replaced."""
    if handle in values:
        return values[handle]
    own = (handle.node, handle.slot, handle.path)
    length = len(handle.path)
    inside = {h.path[length] for h in values if (h.node, h.slot, h.path[:length]) == own}
    found = original(handle)
    if not inside:
        return found
    children = [
        _replaced(
            catalyst,
            original,
            ExpressionHandle(handle.node, handle.slot, (*handle.path, place)),
            values,
        )
        for place in range(catalyst.children_count(found))
    ]
    return catalyst.with_children(found, children)


def _handle(call: AggregateCall) -> ExpressionHandle:
    assert isinstance(call.handle, ExpressionHandle), "a call that was not read from a plan"
    return call.handle


def _is_value(argument: Expression) -> bool:
    """Whether it is a literal, and no null."""
    return isinstance(argument, Literal) and argument.sql is not None


def _is_on(spark: SparkSession, setting: str) -> bool:
    return str(spark.conf.get(setting)).lower() == "true"
