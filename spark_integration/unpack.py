"""unpack: frames of results -> rows with the types the query sees."""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from spark_integration.frames import unpack_rows
from spark_integration.plan import StatefulPlan

UnpackFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def unpack_function(plan: StatefulPlan, integers: Collection[int] = ()) -> UnpackFunction:
    """The function mapInArrow runs over (rows, payload); one frame becomes one batch, of which
    the columns at the places ``integers``, decimals of at most 18 digits, become integers."""
    schema = plan.output
    unpacked = _with_integers(schema, integers)

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows, payloads = batch.column(0), batch.column(1)
            for i in range(batch.num_rows):
                if payloads[i].is_valid:
                    found = unpack_rows(payloads[i].as_py(), rows[i].as_py(), schema)
                    columns = found.columns
                    for place in integers:
                        columns[place] = unscaled(columns[place], schema.field(place).name)
                    yield pa.RecordBatch.from_arrays(columns, schema=unpacked)

    # Spark's error about an input's own column object shows this name beside the valid columns.
    unpack.__name__ = "name_columns_by_text_as_listed_here_not_by_an_inputs_own_column_object"
    return unpack


def _with_integers(schema: pa.Schema, places: Collection[int]) -> pa.Schema:
    """The columns, of which some are integers."""
    fields = list(schema)
    for place in places:
        fields[place] = fields[place].with_type(pa.int64())
    return pa.schema(fields)


def unscaled(decimals: pa.Array, name: str) -> pa.Array:
    """The lower halves of decimals of 128 bits; InvalidArgumentError, about the column ``name``, if
    one does not fit into them, so has more digits than its type. Cost: half of Arrow's cast."""
    end = decimals.offset + len(decimals)
    validity, values = decimals.buffers()
    halves = np.frombuffer(values, np.int64, 2 * end).reshape(-1, 2)
    lower = halves[:, 0].copy()
    units = [validity, pa.py_buffer(lower)]
    found = pa.Array.from_buffers(pa.int64(), len(decimals), units, offset=decimals.offset)
    is_too_long = (halves[:, 1] != lower >> 63)[decimals.offset :]
    if is_too_long.any() and found.filter(pa.array(is_too_long)).drop_null():
        raise InvalidArgumentError(
            f"column {name!r} holds a value with more digits than its type {decimals.type} has; "
            "round it in the function, or give the column more digits in the schema"
        )
    return found
