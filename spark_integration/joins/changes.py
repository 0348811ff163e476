"""multiway_join with retractions: join types other than inner, and changelogs as inputs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import (
    Tree,
    bound_text,
    bounds_of,
    conditions_of,
    nullable_streams,
)
from lsmstate.joins.specs.changes import (
    OPERATION,
    check_no_keys,
    operation_columns,
)
from lsmstate.joins.specs.choose import ChangingSpec, changing_spec, is_conditional
from lsmstate.joins.specs.event_time import TimeOptions, time_bounds
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import output_names
from lsmstate.joins.specs.typed_tree import settled
from lsmstate.spark_integration.checkpoint.pinned_settings import JOIN_CONDITIONS, OTHER_CONDITIONS
from lsmstate.spark_integration.columns.schemas import output_fields
from lsmstate.spark_integration.joins.inner import coerced_graph, coerced_spec
from lsmstate.spark_integration.joins.residual_filter import check_evaluated_here
from lsmstate.spark_integration.joins.watermarks import (
    check_hours,
    check_keeps_all,
    explained_time,
)
from lsmstate.spark_integration.plan.inputs import Inputs


def change_spec(
    inputs: Inputs,
    tree: Tree | None,
    conjuncts: Sequence[str],
    emit: str,
    changes: Mapping[str, str] | None,
    told: TimeOptions,
) -> ChangingSpec | None:
    """The spec of a join with retractions; None if the join is inner and append-only.

    Args:
        inputs: The inputs.
        tree: The join types; None: all are inner.
        conjuncts: Conditions of inner joins beside the keys; time intervals among them count here.
        emit: The option of multiway_join.
        changes: The option of multiway_join.
        told: Event times and retention, for joins with time intervals.

    Raises:
        InvalidArgumentError: Something does not fit.
    """
    rows = {plan.name: plan.rows for plan in inputs.plans}
    operations = operation_columns(rows, changes or {})
    if tree is None and emit == "append" and not operations:
        return None
    if tree is not None:
        tree = settled(tree, _without_operations(rows, operations))
        check_evaluated_here(conditions_of(tree), inputs.frames)
    bounds = time_bounds(rows, conjuncts)[0] if tree is None else bounds_of(tree)
    if bounds or is_conditional(tree) or inputs.has_several_keys:
        graph = coerced_graph(inputs)
        check_no_keys(graph, operations)
        stored = _without_operations(graph.streams, operations)
        shown = {name: count - (name in operations) for name, count in graph.shown.items()}
        stored_graph = GraphSpec(stored, graph.classes, shown)
        return changing_spec(stored_graph, tree, emit, operations, bounds, told)
    spec = coerced_spec(inputs)
    check_no_keys(spec, operations)
    stored = _without_operations(rows, operations)
    return changing_spec(replace(spec, streams=stored), tree, emit, operations)


def check_time(
    spec: ChangingSpec, spark: SparkSession, told: TimeOptions, result_time: str | None
) -> None:
    """InvalidArgumentError for options of event time that do not fit retractions."""
    if spec.event_time is None:
        check_keeps_all(told.retention, told.late, result_time)
        return
    refuse_result_time(result_time)
    check_hours(spec.event_time.bounds, spec.streams, spark)


def refuse_result_time(result_time: str | None) -> None:
    """InvalidArgumentError for a time of results that may be retracted."""
    if result_time is not None:
        raise InvalidArgumentError(
            f"result_time={result_time!r} applies to append-only inner joins: here a result may "
            "be retracted after the watermark has passed its time, and the retraction would be "
            "late above the join; leave it out, write the result to a table, and compute from "
            "that table what needs its time"
        )


def change_settings(spec: ChangingSpec | None) -> dict[str, Any]:
    """What the checkpoint pins; nothing for append-only inner joins."""
    if spec is None:
        return {"joins other than inner": None, "changelog inputs": None, "emit": None}
    changelogs = [f"{name}.{column}" for name, column in spec.operations.items()]
    tree = spec.tree
    bounds = spec.event_time.bounds if tree is None and spec.event_time is not None else ()
    return {
        "joins other than inner": str(tree) if tree is not None else None,
        "intervals": sorted(map(bound_text, bounds)) or None,
        JOIN_CONDITIONS: [str(c) for c in conditions_of(tree)] or None if tree else None,
        "changelog inputs": changelogs or None,
        "emit": "changes" if spec.emits_changes else "append",
    }


def conditions_beside(inputs: Inputs, conjuncts: Sequence[str]) -> tuple[str, ...]:
    """The conditions of inner joins beside the keys that are no time intervals. They filter new and
    retracted results alike."""
    return time_bounds({plan.name: plan.rows for plan in inputs.plans}, conjuncts)[1]


def written_conditions(inputs: Inputs, conjuncts: Sequence[str]) -> list[str]:
    """The conditions of inner joins beside the keys, time intervals in one form."""
    bounds, rest = time_bounds({plan.name: plan.rows for plan in inputs.plans}, conjuncts)
    return [*sorted(map(bound_text, bounds)), *rest]


def pinned_conditions(
    conditions: Sequence[str], streams: Mapping[str, DataFrame]
) -> dict[str, Any]:
    """What the checkpoint pins of conditions. With others, or in another time zone, an emitted
    result might not be retracted."""
    if not conditions:
        return {OTHER_CONDITIONS: None}
    spark = next(iter(streams.values())).sparkSession
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    return {OTHER_CONDITIONS: list(conditions), "time zone of the conditions": zone}


def explained(spec: ChangingSpec) -> str:
    """Text for people: how the streams are joined, and what the results are."""
    tree = spec.tree
    lines = [f"joins: {tree}"] if tree is not None else []
    if spec.operations:
        listed = ", ".join(f"{name} by {column}" for name, column in spec.operations.items())
        lines.append(f"changelogs: {listed}")
    if spec.emits_changes:
        lines.append(f"results: column {OPERATION!r} is +I for a new one, -D for a retracted one")
    if spec.event_time is not None:
        lines.append(explained_time(spec.event_time))
    return "\n".join(lines)


def change_output(spec: ChangingSpec, schemas: Mapping[str, T.StructType]) -> T.StructType:
    """The columns of the result as Spark sees them."""
    may_be_null = nullable_streams(spec.tree) if spec.tree is not None else set[str]()
    stored = {
        name: T.StructType([f for f in schemas[name] if f.name != spec.operations.get(name)])
        for name in spec.shown
    }
    fields = [T.StructField(OPERATION, T.StringType(), False)] if spec.emits_changes else []
    return T.StructType([*fields, *joined_fields(stored, may_be_null)])


def joined_fields(
    schemas: Mapping[str, T.StructType], may_be_null: Collection[str]
) -> list[T.StructField]:
    """The columns of the streams under their names in the result; those of some streams may be
    null."""
    names = output_names({name: schema.names for name, schema in schemas.items()})
    return [
        T.StructField(f.name, f.dataType, f.nullable or name in may_be_null, f.metadata)
        for name, schema in schemas.items()
        for f in output_fields(schema, names[name])
    ]


def _without_operations(
    streams: Mapping[str, pa.Schema], operations: Mapping[str, str]
) -> dict[str, pa.Schema]:
    return {
        name: pa.schema([field for field in schema if field.name != operations.get(name)])
        for name, schema in streams.items()
    }
