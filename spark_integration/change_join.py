"""multiway_join beyond inner joins of rows that stay: join types, changelogs, what changes."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from joins.change_spec import OPERATION, ChangeSpec, check_no_keys, several_keys
from joins.changes import operation_columns
from joins.join_types import Tree, nullable_streams
from joins.local.change_join import ChangeJoin
from joins.spec import output_names
from lsmstate.store import MultimapStore
from spark_integration.bucket import Bucket, BucketFunction, InputBatch
from spark_integration.inputs import Inputs
from spark_integration.join_function import CoercedSpec
from spark_integration.schemas import output_fields

_log = logging.getLogger("lsmstate")


def change_spec(
    inputs: Inputs, tree: Tree | None, emit: str, changes: Mapping[str, str] | None
) -> ChangeSpec | None:
    """What changes, where more is asked for than inner joins of rows that stay; None otherwise.
    InvalidArgumentError names what does not fit."""
    rows = {plan.name: plan.rows for plan in inputs.plans}
    operations = operation_columns(rows, changes or {})
    if tree is None and emit == "append" and not operations:
        return None
    if any(len(key.columns) < len(rows) for key in inputs.keys):
        raise several_keys(tree)
    spec = CoercedSpec.of(inputs)
    check_no_keys(spec, operations)
    stored = {
        name: pa.schema([field for field in schema if field.name != operations.get(name)])
        for name, schema in rows.items()
    }
    return ChangeSpec.of(CoercedSpec(stored, spec.keys, spec.coerced), tree, emit, operations)


def change_settings(spec: ChangeSpec | None) -> dict[str, Any]:
    """What the checkpoint has to agree with; inner joins of rows that stay say nothing."""
    if spec is None:
        return {"joins other than inner": None, "changelog inputs": None, "emit": None}
    return {
        "joins other than inner": str(spec.tree),
        "changelog inputs": [f"{n}.{column}" for n, column in spec.operations.items()] or None,
        "emit": "changes" if spec.emits_changes else "append",
    }


def explained(spec: ChangeSpec) -> str:
    """For people: how the streams are joined, and what becomes of it."""
    lines = [f"joins: {spec.tree}"]
    if spec.operations:
        listed = ", ".join(f"{name} by {column}" for name, column in spec.operations.items())
        lines.append(f"changelogs: {listed}")
    if spec.emits_changes:
        lines.append(f"results: column {OPERATION!r} is +I where one comes, -D where one goes")
    return "\n".join(lines)


def routes_null_keys(spec: ChangeSpec) -> frozenset[str]:
    """The inputs of which a row with a null in its key is a result, and goes to a bucket too."""
    return frozenset(name for name in spec.streams if spec.is_preserved(name))


def change_output(spec: ChangeSpec, schemas: Mapping[str, T.StructType]) -> T.StructType:
    """The columns of the result as Spark sees them."""
    stored = {
        name: T.StructType([f for f in schemas[name] if f.name != spec.operations.get(name)])
        for name in spec.shown
    }
    names = output_names({name: schema.names for name, schema in stored.items()})
    may_be_null = nullable_streams(spec.tree)
    fields = [T.StructField(OPERATION, T.StringType(), False)] if spec.emits_changes else []
    for name, schema in stored.items():
        for field in output_fields(schema, names[name]):
            nullable = field.nullable or name in may_be_null
            fields.append(T.StructField(field.name, field.dataType, nullable, field.metadata))
    return T.StructType(fields)


def change_join_function(spec: ChangeSpec, unmatched: str) -> BucketFunction:
    """ChangeJoin over the bucket's store. The batches of an input in one micro-batch count as one:
    a retraction may stand before its row."""

    def join(
        bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch]:
        joined = ChangeJoin(spec, store, unmatched=unmatched)
        for batch, more in _with_more(batches):
            yield from joined.process(batch.input, batch.rows, batch.keys, more=more)
        if joined.unmatched_retractions:
            _log.warning(
                "bucket %d, micro-batch %d: %d retractions left out, there were no such rows",
                bucket.number,
                bucket.batch_id,
                joined.unmatched_retractions,
            )

    return join


def _with_more(batches: Iterator[InputBatch]) -> Iterator[tuple[InputBatch, bool]]:
    """Each batch, and whether the next one is of the same input."""
    waiting = next(batches, None)
    while waiting is not None:
        following = next(batches, None)
        yield waiting, following is not None and following.input == waiting.input
        waiting = following
