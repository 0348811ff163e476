"""Checks of what a stateful function returns, before it leaves the worker."""

from collections.abc import Iterable, Iterator
from typing import cast

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.schema.batches import as_batch, is_arrow
from lsmstate.spark_integration.plan.bucket import Bucket, BucketFunction, InputBatch
from lsmstate.store import BatchLike, MultimapStore


def checked_results(
    function: BucketFunction,
    bucket: Bucket,
    batches: Iterator[InputBatch],
    store: MultimapStore,
) -> Iterator[pa.RecordBatch | Picked]:
    """The batches that the function returns.

    Columns are taken by name, and cast where no value changes. InvalidArgumentError if one has
    other columns than the schema, or if the function ends before it
    has read its input, because those rows would be lost without an error.
    """
    results = function(bucket, batches, store)
    given: Iterable[BatchLike | Picked] = () if results is None else results
    if is_arrow(results) and not isinstance(results, Iterator):
        given = [cast("BatchLike", results)]
    try:
        for found in given:
            if isinstance(found, Picked):  # by a function of ours, which the plan knows of
                yield found
                continue
            yield from _checked(found, bucket.schema)
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


def _checked(found: BatchLike, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    parts = found.to_batches() if isinstance(found, pa.Table) and found.num_rows else [found]
    for part in parts:
        rows = as_batch(part, schema, "the function's result")
        for field in schema:
            if not field.nullable and rows.column(field.name).null_count:
                raise InvalidArgumentError(
                    f"the function returned {rows.column(field.name).null_count} nulls in column "
                    f"{field.name!r}, which is not nullable in the schema; return values, or make "
                    "the column nullable"
                )
        yield rows


def _name(function: BucketFunction) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
