"""unpack: frames of results become rows with the types of the query."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import pyarrow as pa

from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.result_frames import ResultUnpacker
from lsmstate.spark_integration.stateful_operator.result_products import (
    ProductUnpacker,
    RowArrays,
)

UnpackFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

#: Spark's error about an input's own column object shows this name beside the valid columns.
_SHOWN_NAME: Final = "name_columns_by_text_as_listed_here_not_by_an_inputs_own_column_object"


def unpack_function(plan: StatefulPlan, integers: Collection[int] = ()) -> UnpackFunction:
    """The function that mapInArrow runs over (rows, payload). A frame becomes one batch or several.
    Columns at the places ``integers``, decimals of at most 18 digits, leave it as unscaled
    integers."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        unpacker = ResultUnpacker(plan, integers)
        for rows, payload in _frames(batches):
            yield from unpacker.results(rows, payload)

    unpack.__name__ = _SHOWN_NAME
    return unpack


def product_function(plan: StatefulPlan, arrays: RowArrays) -> UnpackFunction:
    """The same where results leave as products (``result_products.py``)."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        unpacker = ProductUnpacker(plan, arrays)
        for rows, payload in _frames(batches):
            yield from unpacker.products(rows, payload)

    unpack.__name__ = _SHOWN_NAME
    return unpack


def _frames(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    """The number of results and the payload of each frame."""
    for batch in batches:
        rows, payloads = batch.column(0), batch.column(1)
        for i in range(batch.num_rows):
            if payloads[i].is_valid:
                yield rows[i].as_py(), payloads[i].as_buffer()
