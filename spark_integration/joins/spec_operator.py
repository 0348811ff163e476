"""A join of any kind as a stateful operator, from its spec and its routing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.joins.kinds import kind_of, pinned
from lsmstate.joins.protocols import Routing, Spec, counters_of
from lsmstate.joins.specs.one_key import output_names
from lsmstate.spark_integration.columns.schemas import output_fields
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.joins.malformed_rows import MalformedRows
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan, observed_streams
from lsmstate.spark_integration.skew.key_watch import skew_streams
from lsmstate.spark_integration.stateful_operator.build import default_buckets, stateful_operator


def spec_operator(
    spec: Spec,
    inputs: Inputs,
    routing: Routing,
    options: OperatorOptions,
    *,
    operator: str,
    explanation: str = "",
    output: T.StructType | None = None,
    late_batches: int | None = None,
    settings: Mapping[str, Any] | None = None,
    malformed: str = "refuse",
) -> DataFrame:
    """Build the operator of a join.

    Args:
        spec: What is joined; its kind is registered in ``kinds``.
        inputs: The inputs, under the names of the spec's streams.
        routing: Which buckets see a row.
        options: Checked options of the operator.
        operator: The name of the function that the user called, for messages.
        explanation: For people: how the join works.
        output: Columns of the results. Default: all columns of all streams.
        late_batches: For how many micro-batches late rows are kept, if the spec keeps them aside.
        settings: What the checkpoint pins beside the join and its inputs.
        malformed: What becomes of malformed rows; "side" keeps them in the state.

    Returns:
        The streaming DataFrame of the results.
    """
    described = {"kind": kind_of(spec).name, **spec.described()}
    # As JSON has it, so that what a later start reads back is equal.
    pinned_here = {
        "join": json.loads(json.dumps(described)),
        **pinned_inputs(inputs, options),
        **(settings or {}),
    }
    plan = plan_of(spec, inputs, routing, options, pinned_here, operator, explanation)
    late = LateRows.of(inputs.plans, spec.event_time, late_batches)
    aside = MalformedRows.of(inputs.plans, malformed, options.backend)
    plan = aside.added_to(late.added_to(plan))
    function = run_join(spec, plan.inputs, late=late, malformed=aside)
    columns = all_columns(inputs) if output is None else output
    return stateful_operator(plan, inputs, function, columns)


def plan_of(
    spec: Spec,
    inputs: Inputs,
    routing: Routing,
    options: OperatorOptions,
    settings: Mapping[str, Any],
    operator: str,
    explanation: str,
    *,
    skew: str | None = None,
    left_open: Mapping[str, Sequence[str]] | None = None,
) -> StatefulPlan:
    """What the workers must know of a join."""
    spark = next(iter(inputs.frames.values())).sparkSession
    return StatefulPlan(
        operator=operator,
        inputs=inputs.plans,
        state=(
            *spec.stream_schemas,
            *skew_streams(skew, len(inputs.frames)),
            *observed_streams(routing),
        ),
        output=spec.output_schema,
        settings=settings,
        keeps_null_keys=False,
        output_mode="append",
        options=options.store,
        backend=options.backend,
        buckets=options.buckets,
        default_buckets=default_buckets(spark),
        state_dir=options.state_dir,
        explanation=explanation,
        storage=options.storage,
        storage_key=options.storage.keep(),
        skew=skew,
        left_open=left_open or {},
        routing=routing,
        join=pinned(spec),
        counters=(*kind_of(spec).counters, *counters_of(routing)),
        watches_time=spec.event_time is not None,
    )


def pinned_inputs(inputs: Inputs, options: OperatorOptions) -> dict[str, Any]:
    """What the checkpoint pins of every join."""
    return {
        "streams": list(inputs.frames),
        "backend": options.backend,
        "key types": inputs.key_types,
        "time zone of the keys": inputs.time_zone,
        **{f"columns of {name}": columns for name, columns in inputs.columns.items()},
    }


def all_columns(inputs: Inputs) -> T.StructType:
    """All columns of all streams, as Spark sees them in the result."""
    names = output_names({name: frame.columns for name, frame in inputs.frames.items()})
    fields: list[T.StructField] = []
    for name, frame in inputs.frames.items():
        fields += output_fields(frame.schema, names[name])
    return T.StructType(fields)
