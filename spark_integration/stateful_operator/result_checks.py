"""Checks of what a stateful function returns, before it leaves the worker."""

from collections.abc import Iterator

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.spark_integration.plan.bucket import Bucket, BucketFunction, InputBatch
from lsmstate.store import MultimapStore
from lsmstate.store_base.checks import same_columns


def checked_results(
    function: BucketFunction,
    bucket: Bucket,
    batches: Iterator[InputBatch],
    store: MultimapStore,
) -> Iterator[pa.RecordBatch | Picked]:
    """The batches that the function returns.

    InvalidArgumentError if one has other columns than the schema, or if the function ends before it
    has read its input, because those rows would be lost without an error.
    """
    results = function(bucket, batches, store)
    try:
        for found in () if results is None else results:
            if isinstance(found, Picked):  # by a function of ours, which the plan knows of
                yield found
                continue
            _check(found, bucket.schema)
            yield from found.to_batches() if isinstance(found, pa.Table) else (found,)
    finally:
        # A generator that was not read to its end ends before the store it still has.
        end = getattr(results, "close", None)
        if end is not None:
            end()
    if next(batches, None) is not None:
        raise InvalidArgumentError(
            f"{_name(function)} returned before it had read all batches of bucket "
            f"{bucket.number}; read them to the end, and skip what is not wanted: "
            "for _ in batches: pass"
        )


def _check(found: object, schema: pa.Schema) -> None:
    if not isinstance(found, pa.RecordBatch | pa.Table):
        raise InvalidArgumentError(
            f"the function returned {type(found).__name__} as a result, not a "
            "pyarrow.RecordBatch or Table; return or yield batches, one after the other"
        )
    if not same_columns(found.schema, schema):
        raise InvalidArgumentError(
            f"the function returned the columns ({_columns(found.schema)}), but the schema has "
            f"({_columns(schema)}); make batches with schema=bucket.schema, or correct the schema"
        )
    for column, field in zip(found.columns, schema, strict=True):
        if column.null_count and not field.nullable:
            raise InvalidArgumentError(
                f"the function returned {column.null_count} nulls in column {field.name!r}, which "
                "is not nullable in the schema; return values, or make the column nullable"
            )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _name(function: BucketFunction) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
