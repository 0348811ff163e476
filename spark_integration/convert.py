"""The conversion of one query: which group of joins is merged, and if Spark takes the result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from joins.plan.explain import explain
from joins.plan.join_tree import MultiJoin, Node, is_streaming
from joins.plan.prune import pruned
from joins.plan.tsc import (
    Conversion,
    GroupRule,
    any_keys,
    inner_join_of_streams,
    two_step_convert,
)
from lsmstate.errors import InvalidArgumentError
from spark_integration.catalyst import OUTPUT_MODES, Catalyst, analyzed_plan
from spark_integration.group_join import joined_frames, result_columns
from spark_integration.inputs import UnfitInputError
from spark_integration.plan_reader import ReadPlan, read_plan
from spark_integration.plan_writer import PlanWriter
from spark_integration.query import operators_in
from spark_integration.shares_choice import explain_join
from spark_integration.watermarks import redeclares_watermark, stateful_above


@dataclass(frozen=True)
class Converted:
    """What became of a query."""

    dataframe: DataFrame | None
    """As it is to be run; None if Spark refuses to stream it."""
    is_converted: bool
    note: str
    """Why joins were left to Spark; empty if all that could be were merged."""
    refusal: str
    """Spark's reason where ``dataframe`` is None."""
    conversion: Conversion | None
    update_as_append: bool = False
    """Whether it is to be run in append mode where update is asked for: the rows are the same, as
    Spark takes the query as it was in both."""

    def explained(self) -> str:
        parts = [explain(self.conversion)] if self.conversion is not None else []
        if self.conversion is not None and self.is_converted and self.dataframe is not None:
            lines = explain_join(self.dataframe).splitlines()
            parts += ["Operator", *(f"  {line}" for line in lines)]
        if self.note:
            parts += ["Note", f"  {self.note}"]
        return "\n".join(parts)


def convert(
    catalyst: Catalyst,
    plan: Any,
    df: DataFrame | None,
    rows: Mapping[str, int],
    options: Mapping[str, Any],
    refused: str = "",
) -> Converted:
    """Convert an analyzed plan; ``df`` is the query as Spark runs it, None if it was ``refused``.

    InvalidArgumentError for options that do not fit, before anything runs.
    """
    before = catalyst.refusals(plan)

    def unconverted(note: str, conversion: Conversion | None = None) -> Converted:
        takes = df is not None and len(before) < len(OUTPUT_MODES)
        refusal = "" if takes else refused or next(iter(before.values()))
        return Converted(df if takes else None, False, note, refusal, conversion)

    if not catalyst.is_streaming(plan):
        return unconverted("no stream is read")
    if operators_in(plan):
        return unconverted("it holds an operator of lsmstate already, and one may stand in a query")
    try:
        read = read_plan(catalyst, plan)
    except InvalidArgumentError as unread:
        return unconverted(str(unread))
    conversion = largest_group(read.tree)
    if not conversion.multi_joins:
        return unconverted(_reasons(conversion) or _no_joins(conversion), conversion)
    if redeclares_watermark(conversion.after):
        return unconverted(
            "a watermark is declared again above the joins, which Spark counts from their results",
            conversion,
        )
    try:
        rebuilt = _rebuilt(read, conversion, rows, options)
    except UnfitInputError as unfit:
        return unconverted(str(unfit), conversion)
    after = catalyst.refusals(rebuilt)
    lost = [mode for mode in after if mode not in before] if df is not None else []
    update_as_append = lost == ["update"] and "append" not in {*before, *after}
    if lost and not update_as_append:
        return unconverted(
            f"converted, it would not run in {lost[0]} mode: {after[lost[0]]}", conversion
        )
    if df is None or len(after) == len(OUTPUT_MODES):
        return Converted(None, False, "", refused or next(iter(after.values())), conversion)
    frame = catalyst.dataframe(rebuilt)
    return Converted(frame, True, _reasons(conversion), "", conversion, update_as_append)


def largest_group(tree: Node, group_rule: GroupRule = any_keys) -> Conversion:
    """The conversion of the group with most inputs alone, of several the first."""
    conversion = two_step_convert(tree, group_rule=group_rule)
    if len(conversion.multi_joins) < 2:
        return conversion
    largest = max(conversion.multi_joins, key=lambda found: len(found.inputs))
    reason = (
        f"Spark allows one operator of this kind in a query, and group {largest.group} of "
        f"{len(largest.inputs)} inputs is larger"
    )
    others = {
        join.handle
        for join, verdict in conversion.verdicts.items()
        if verdict.group not in (None, largest.group)
    }
    return two_step_convert(
        tree,
        lambda join: reason if join.handle in others else inner_join_of_streams(join),
        group_rule,
    )


def _reasons(conversion: Conversion) -> str:
    """Why joins of streams were not merged."""
    return "; ".join(
        dict.fromkeys(
            verdict.reason
            for join, verdict in conversion.verdicts.items()
            if verdict.group is None and all(map(is_streaming, join.inputs))
        )
    )


def _no_joins(conversion: Conversion) -> str:
    return f"there is no join {'of streams ' if conversion.verdicts else ''}in it"


def _rebuilt(
    read: ReadPlan, conversion: Conversion, rows: Mapping[str, int], options: Mapping[str, Any]
) -> Any:
    catalyst = read.spark.catalyst

    def write_join(multi_join: MultiJoin) -> tuple[Any, Mapping[Any, Any]]:
        frames = [catalyst.dataframe(writer.plan(node)) for node in multi_join.inputs]
        joined = joined_frames(multi_join, frames, rows, options)
        plan = analyzed_plan(joined)
        return plan, result_columns(catalyst, multi_join, plan)

    waits = bool(stateful_above(conversion.after))
    writer = PlanWriter(read, write_join, passes_watermark=waits)
    return writer.plan(pruned(conversion.after))
