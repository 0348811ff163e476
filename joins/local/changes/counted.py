"""Products of results that may be taken back: beside what is joined they have nulls, and the
operation, which is the column of a stream of its own."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from lsmstate.joins.local.parts.products import Product, beside
from lsmstate.joins.specs.aggregates import OPERATION_STREAM
from lsmstate.joins.specs.changes import OPERATION


def with_operation(product: Product, operation: str) -> Product:
    """The product, all of whose results have this operation."""
    rows = pa.RecordBatch.from_arrays([pa.array([operation])], names=[OPERATION])
    return replace(beside(product, {OPERATION_STREAM: rows}), operation=operation)


def with_nulls(product: Product, streams: Mapping[str, pa.Schema]) -> Product:
    """The product, whose results have nulls for some streams."""
    rows = {
        name: pa.RecordBatch.from_arrays(
            [pa.nulls(1, field.type) for field in schema], names=schema.names
        )
        for name, schema in streams.items()
    }
    return beside(product, rows)
