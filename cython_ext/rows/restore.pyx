"""Columns of plain types, as rows are stored, converted back to dictionaries, views and extension
types.

Arrow cannot cast numbers to a dictionary, so dictionaries are built from their parts.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from lsmstate.cython_ext.errors import InvalidArgumentError
from lsmstate.cython_ext.rows.nested import remade
from lsmstate.cython_ext.rows.row_codec import RowCodec


def restored(column, t):
    """Convert a column of ``plain_type(t)`` to type ``t``."""
    if column.type == t:
        return column
    if isinstance(t, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(t, restored(column, t.storage_type))
    if pt.is_dictionary(t):
        return in_dictionary(column, t)
    return remade(column, t, restored) if pt.is_nested(t) else column.cast(t)


def in_dictionary(column, t):
    """Convert the column to the dictionary type ``t``: each value once."""
    if pt.is_nested(column.type):
        # Arrow cannot compare nested values; equal values have equal bytes as rows.
        batch = pa.record_batch([column], ["value"])
        missing = column.is_null().to_numpy(zero_copy_only=False)
        rows = RowCodec(batch.schema).encode(batch).to_pylist()
        rows = pa.array(rows, pa.large_binary(), mask=missing)
        encoded = rows.dictionary_encode()
        values = column.take(pc.index_in(encoded.dictionary, value_set=rows))
    else:
        encoded = column.dictionary_encode()
        values = encoded.dictionary
    if len(values) > 1 << (t.index_type.bit_width - pt.is_signed_integer(t.index_type)):
        raise InvalidArgumentError(
            f"{len(values)} values in a column of {t} are more than {t.index_type} can count; cast "
            "the column to one with wider indices"
        )
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(t.index_type), restored(values, t.value_type), ordered=t.ordered
    )
