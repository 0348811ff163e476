"""The watermark, carried past an operator whose results Spark takes for data without one.

- Results keep the event time of their rows, but nothing tells Spark's windows and joins above that
  the global watermark holds for them. A window in append mode would give no row and no error.
- The remedy is a union of the results with a branch of a watermarked source that never has a row.
  Spark takes the watermark of a union from its branches that have one, also while the join finds
  nothing. That source is read twice.
"""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.joins.plan.join_tree import Join, MultiJoin, Node, Other, is_streaming, parents_first
from lsmstate.spark_integration.catalyst.catalyst import Catalyst, analyzed_plan
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.schemas import WATERMARK_METADATA

_LONG_MAX: Final = 9223372036854775807


def stateful_above(plan: Node) -> list[Node]:
    """Operators above the multi-way join that forget, or emit rows, by the watermark."""
    return [node for node in _above(plan) if _may_wait(node)]


def mode_bound_below(plan: Node) -> list[Node]:
    """Operators below the multi-way joins whose rows depend on the output mode: joins that emit
    rows without a partner, aggregates, functions with a state."""
    below = {
        node: None
        for multi_join in parents_first(plan)
        if isinstance(multi_join, MultiJoin)
        for node in parents_first(multi_join)
    }
    return [node for node in below if is_streaming(node) and _is_mode_bound(node)]


def redeclares_watermark(plan: Node) -> bool:
    """Whether a watermark is declared above the multi-way join and also below it."""
    return any(
        sum(_declares_watermark(below) for below in parents_first(node)) > 1
        for node in _above(plan)
        if _declares_watermark(node)
    )


def has_watermark(catalyst: Catalyst, attribute: Any) -> bool:
    """Whether the plan declares a watermark on the column."""
    return WATERMARK_METADATA in catalyst.column_metadata(attribute)


def with_watermark(catalyst: Catalyst, results: Any, source: Any, time: str) -> Any:
    """The plan ``results``, united with no row of the plan ``source``, whose column ``time`` has
    the watermark."""
    frame = catalyst.dataframe(results)
    # The optimizer finds no contradiction in it, and cannot push it below the watermark.
    timed = catalyst.dataframe(source)
    column = F.col(quoted(time))
    if isinstance(timed.schema[time].dataType, T.StructType):
        column = column["end"]  # window(...) hands the watermark on
    never = F.unix_micros(column.cast("timestamp")) > F.lit(_LONG_MAX)
    # Nulls that the optimizer does not see: it moves a semi join above into the branches, where a
    # key that is null for certain would leave it without an equality, which Spark does not stream.
    place = F.minute(column.cast("timestamp"))
    nothing = [
        F.get(F.array(F.lit(None).cast(field.dataType)), place).alias(field.name)
        for field in frame.schema.fields
    ]
    branch = timed.where(never).select(*nothing)
    return analyzed_plan(frame.union(branch))


def _above(plan: Node) -> Iterator[Node]:
    for node in parents_first(plan):
        below = parents_first(node)
        if not isinstance(node, MultiJoin) and any(isinstance(b, MultiJoin) for b in below):
            yield node


def _declares_watermark(node: Node) -> bool:
    return isinstance(node, Other) and node.name == "EventTimeWatermark"


def _is_mode_bound(node: Node) -> bool:
    if isinstance(node, Join):
        return node.kind != "inner" and all(map(is_streaming, node.inputs))
    return isinstance(node, Other) and (node.is_aggregate or "State" in node.name)


def _may_wait(node: Node) -> bool:
    if isinstance(node, Join):
        return all(map(is_streaming, node.inputs))
    return isinstance(node, Other) and node.name not in ("Sort", "GlobalLimit", "LocalLimit")
