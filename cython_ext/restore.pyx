"""Columns of plain types, as rows are stored, made what they were: dictionaries, views, extensions.

Arrow casts what it can. It casts numbers to no dictionary, and nothing to what holds one; those are
made of their parts.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from cython_ext.errors import InvalidArgumentError
from cython_ext.row_codec import RowCodec


def restored(column, t):
    """A column of ``plain_type(t)``, which begins where its buffers do, as one of type ``t``."""
    if column.type == t:
        return column
    if isinstance(t, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(t, restored(column, t.storage_type))
    if pt.is_dictionary(t):
        return in_dictionary(column, t)
    if not holds_dictionary(t):
        return column.cast(t)
    missing = column.is_null()
    if pt.is_struct(t):
        children = [restored(column.field(i), field.type) for i, field in enumerate(t)]
        return pa.StructArray.from_arrays(children, fields=list(t), mask=missing)
    if pt.is_map(t):
        keys, items = restored(column.keys, t.key_type), restored(column.items, t.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=t, mask=missing)
    values = restored(column.values, t.value_type)
    if pt.is_fixed_size_list(t):
        return pa.FixedSizeListArray.from_arrays(values, type=t, mask=missing)
    lists = pa.LargeListArray if pt.is_large_list(t) else pa.ListArray
    return lists.from_arrays(column.offsets, values, type=t, mask=missing)


def holds_dictionary(t) -> bool:
    return pt.is_dictionary(t) or any(holds_dictionary(t.field(i).type) for i in range(t.num_fields))


def in_dictionary(column, t):
    """The column as the dictionary type ``t``: each value once."""
    if pt.is_nested(column.type):
        # Arrow finds no equal ones among nested values; equal values are equal bytes as rows.
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
            f"{len(values)} values in a column of {t} are more than {t.index_type} counts; cast "
            "the column to one with wider indices"
        )
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(t.index_type), restored(values, t.value_type), ordered=t.ordered
    )
