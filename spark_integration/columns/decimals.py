"""Decimals of results leave unpack as integers, and Spark turns them into decimals again.

Spark converts a decimal from Arrow through java.math.BigDecimal. The unscaled value of a decimal of
at most 18 digits is an integer, which it takes as it is. Spark's own MakeDecimal then gives it the
scale.
"""

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError

#: Digits that surely fit into 64 bits.
_LONG_DIGITS: Final = 18


def small_decimals(output: T.StructType) -> dict[str, T.DecimalType]:
    """The columns of decimals whose unscaled values fit into 64 bits, without those inside structs,
    arrays and maps."""
    return {
        f.name: f.dataType
        for f in output
        if isinstance(f.dataType, T.DecimalType) and f.dataType.precision <= _LONG_DIGITS
    }


class Unscaling:
    """Turns the columns at ``places`` of batches of ``schema``, decimals of at most 18 digits, into
    integers. Its ``schema`` is that of the result."""

    def __init__(self, schema: pa.Schema, places: Collection[int]) -> None:
        fields = list(schema)
        for place in places:
            fields[place] = fields[place].with_type(pa.int64())
        self.schema = pa.schema(fields)
        self._places = places

    @classmethod
    def of_parts(cls, parts: Iterable[pa.Schema], places: Collection[int]) -> list["Unscaling"]:
        """One for each part; ``places`` count through all of them."""
        found, start = [], 0
        for part in parts:
            end = start + len(part)
            found.append(cls(part, [place - start for place in places if start <= place < end]))
            start = end
        return found

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch. InvalidArgumentError if a decimal has more digits than its type."""
        if not self._places:
            return batch
        columns = batch.columns
        for place in self._places:
            columns[place] = unscaled(columns[place], self.schema.field(place).name)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def unscaled(decimals: pa.Array, name: str) -> pa.Array:
    """The lower halves of decimals of 128 bits. InvalidArgumentError, about the column ``name``, if
    a value does not fit into them, which means that it has more digits than its type. Cost: half of
    Arrow's cast."""
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
