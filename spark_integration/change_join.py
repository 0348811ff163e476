"""multiway_join beyond inner joins of rows that stay: join types, changelogs, what changes."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from joins.change_spec import (
    FINAL,
    OPERATION,
    ChangeSpec,
    GraphChangeSpec,
    check_no_keys,
)
from joins.changes import operation_columns
from joins.graph_spec import GraphSpec
from joins.join_types import Tree, nullable_streams
from joins.local.change_join import ChangeJoin
from joins.local.graph_change_join import GraphChangeJoin
from joins.spec import output_names
from lsmstate.errors import InvalidArgumentError
from lsmstate.store import MultimapStore
from spark_integration.bucket import Bucket, BucketFunction, InputBatch
from spark_integration.inputs import Inputs
from spark_integration.join_function import CoercedSpec, coerced_graph, stored_rows
from spark_integration.schemas import output_fields

_log = logging.getLogger("lsmstate")


def change_spec(
    inputs: Inputs, tree: Tree | None, emit: str, changes: Mapping[str, str] | None
) -> ChangeSpec | GraphChangeSpec | None:
    """What changes, where more is asked for than inner joins of rows that stay; None otherwise.
    InvalidArgumentError names what does not fit."""
    if emit == FINAL:
        raise InvalidArgumentError(
            "emit='final' (results that wait until the watermark says that no partner can come) is "
            "not available on Spark in this version; use emit='changes'"
        )
    rows = {plan.name: plan.rows for plan in inputs.plans}
    operations = operation_columns(rows, changes or {})
    if tree is None and emit == "append" and not operations:
        return None
    if any(len(key.columns) < len(rows) for key in inputs.keys):
        if tree is not None:
            raise InvalidArgumentError(
                f"{tree}: the streams have no common key, and by several keys only inner joins are "
                "made on Spark in this version; join the streams of one key here, and the result "
                "with the others in a query of its own"
            )
        graph = coerced_graph(inputs)
        check_no_keys(graph, operations)
        stored = _without_operations(graph.streams, operations)
        shown = {name: count - (name in operations) for name, count in graph.shown.items()}
        return GraphChangeSpec.of(GraphSpec(stored, graph.classes, shown), emit, operations)
    spec = CoercedSpec.of(inputs)
    check_no_keys(spec, operations)
    stored = _without_operations(rows, operations)
    return ChangeSpec.of(CoercedSpec(stored, spec.keys, spec.coerced), tree, emit, operations)


def change_settings(spec: ChangeSpec | GraphChangeSpec | None) -> dict[str, Any]:
    """What the checkpoint has to agree with; inner joins of rows that stay say nothing."""
    if spec is None:
        return {"joins other than inner": None, "changelog inputs": None, "emit": None}
    changelogs = [f"{name}.{column}" for name, column in spec.operations.items()]
    return {
        "joins other than inner": str(spec.tree) if isinstance(spec, ChangeSpec) else None,
        "changelog inputs": changelogs or None,
        "emit": _emit(spec),
    }


def explained(spec: ChangeSpec | GraphChangeSpec) -> str:
    """For people: how the streams are joined, and what becomes of it."""
    lines = [f"joins: {spec.tree}"] if isinstance(spec, ChangeSpec) else []
    if spec.operations:
        listed = ", ".join(f"{name} by {column}" for name, column in spec.operations.items())
        lines.append(f"changelogs: {listed}")
    if _emit(spec) == "changes":
        lines.append(f"results: column {OPERATION!r} is +I where one comes, -D where one goes")
    return "\n".join(lines)


def routes_null_keys(spec: ChangeSpec) -> frozenset[str]:
    """The inputs of which a row with a null in its key is a result, and goes to a bucket too."""
    return frozenset(name for name in spec.streams if spec.is_preserved(name))


def change_output(
    spec: ChangeSpec | GraphChangeSpec, schemas: Mapping[str, T.StructType]
) -> T.StructType:
    """The columns of the result as Spark sees them."""
    shown = spec.shown if isinstance(spec, ChangeSpec) else tuple(spec.streams)
    may_be_null = nullable_streams(spec.tree) if isinstance(spec, ChangeSpec) else set()
    stored = {
        name: T.StructType([f for f in schemas[name] if f.name != spec.operations.get(name)])
        for name in shown
    }
    names = output_names({name: schema.names for name, schema in stored.items()})
    fields = [T.StructField(OPERATION, T.StringType(), False)] if _emit(spec) == "changes" else []
    for name, schema in stored.items():
        for field in output_fields(schema, names[name]):
            nullable = field.nullable or name in may_be_null
            fields.append(T.StructField(field.name, field.dataType, nullable, field.metadata))
    return T.StructType(fields)


def change_join_function(
    spec: ChangeSpec | GraphChangeSpec, inputs: Inputs, unmatched: str
) -> BucketFunction:
    """ChangeJoin or GraphChangeJoin over the bucket's store. The batches of an input in one
    micro-batch count as one: a retraction may stand before its row."""
    plans = {plan.name: plan for plan in inputs.plans}
    arriving = coerced_graph(inputs).streams if isinstance(spec, GraphChangeSpec) else {}

    def join(
        bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch]:
        joined: ChangeJoin | GraphChangeJoin
        if isinstance(spec, ChangeSpec):
            joined = ChangeJoin(spec, store, unmatched=unmatched)
        else:
            joined = GraphChangeJoin(spec, store, unmatched=unmatched)
        for batch, more in _with_more(batches):
            if isinstance(joined, ChangeJoin):
                yield from joined.process(batch.input, batch.rows, batch.keys, more=more)
            else:
                rows = stored_rows(plans[batch.input], batch, arriving[batch.input])
                yield from joined.process(batch.input, rows, more=more)
        if joined.unmatched_retractions:
            _log.warning(
                "bucket %d, micro-batch %d: %d retractions left out, there were no such rows",
                bucket.number,
                bucket.batch_id,
                joined.unmatched_retractions,
            )

    return join


def _emit(spec: ChangeSpec | GraphChangeSpec) -> str:
    is_append = isinstance(spec, ChangeSpec) and not spec.emits_changes
    return "append" if is_append else "changes"


def _without_operations(
    streams: Mapping[str, pa.Schema], operations: Mapping[str, str]
) -> dict[str, pa.Schema]:
    return {
        name: pa.schema([field for field in schema if field.name != operations.get(name)])
        for name, schema in streams.items()
    }


def _with_more(batches: Iterator[InputBatch]) -> Iterator[tuple[InputBatch, bool]]:
    """Each batch, and whether the next one is of the same input."""
    waiting = next(batches, None)
    while waiting is not None:
        following = next(batches, None)
        yield waiting, following is not None and following.input == waiting.input
        waiting = following
