"""multiway_join with emit="final": outer, semi and anti joins that wait for the watermark."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import Tree, conditions_of, nullable_streams
from lsmstate.joins.specs.event_time import Retention
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.spark_integration.joins.changes import joined_fields
from lsmstate.spark_integration.joins.inner import coerced_graph
from lsmstate.spark_integration.joins.residual_filter import check_evaluated_here
from lsmstate.spark_integration.joins.watermarks import check_hours, watermarked
from lsmstate.spark_integration.plan.inputs import Inputs


def final_spec(
    inputs: Inputs,
    streams: Mapping[str, DataFrame],
    tree: Tree,
    retention: Retention,
    late: str,
    result_time: str | None,
) -> FinalSpec:
    """The spec of the join. InvalidArgumentError if something does not fit."""
    refuse_time_of_final(result_time)
    graph = coerced_graph(inputs)
    spec = FinalSpec.of(graph, tree, watermarked(graph.streams, streams), retention, late)
    check_evaluated_here(conditions_of(spec.tree), streams)
    check_hours(spec.event_time.bounds, graph.streams, next(iter(streams.values())).sparkSession)
    return spec


def refuse_time_of_final(result_time: str | None) -> None:
    """InvalidArgumentError for a time of results that come after the watermark has passed it."""
    if result_time is not None:
        raise InvalidArgumentError(
            f"result_time={result_time!r} applies to inner joins: a result without a partner "
            "comes after the watermark has passed its time, so it would be late above the join; "
            "write the result to a table, and compute from that table what needs its time"
        )


def final_settings(spec: FinalSpec) -> dict[str, Any]:
    """What the checkpoint pins of the join."""
    return {"joins other than inner": str(spec.tree), "changelog inputs": None, "emit": "final"}


def explained_final(spec: FinalSpec) -> str:
    """Text for people: how the streams are joined, and how long rows wait."""
    waits = "; ".join(
        f"{name}: until the watermark is {timedelta(microseconds=each.waits_us)} past "
        f"{spec.event_time.columns[name]}"
        for name, each in spec.waiting.items()
    )
    return f"joins: {spec.tree}\nresults are final; rows without a partner wait ({waits})"


def final_output(spec: FinalSpec, schemas: Mapping[str, T.StructType]) -> T.StructType:
    """The columns of the result as Spark sees them."""
    shown = {name: schemas[name] for name in spec.shown}
    return T.StructType(joined_fields(shown, nullable_streams(spec.tree)))
