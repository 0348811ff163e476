"""Nested columns made anew of their parts.

pyarrow's cast knows nothing inside dictionaries, makes no dictionary inside a nested type, and gives
a list of nulls too few of them (pyarrow 26); so only columns that are not nested are cast.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt


def remade(column, t, convert):
    """The nested column as one of type ``t``, which nests alike, with the children that
    ``convert(child, type)`` gives. Of a slice only its own part of the children is converted."""
    if not len(column):
        return pa.nulls(0, t)  # an empty list may lack its only offset
    validity = pc.is_valid(column).buffers()[1] if column.null_count else None
    if pt.is_struct(t):
        children = [convert(column.field(i), field.type) for i, field in enumerate(t)]
        return pa.Array.from_buffers(t, len(column), [validity], children=children)
    value_type = t.field(0).type
    if pt.is_fixed_size_list(t):
        values = column.values.slice(column.offset * t.list_size, len(column) * t.list_size)
        children = [convert(values, value_type)]
        return pa.Array.from_buffers(t, len(column), [validity], children=children)
    offsets = column.offsets
    first, last = offsets[0], offsets[len(column)]
    values = column.values.slice(first.as_py(), last.as_py() - first.as_py())
    children = [convert(values, value_type)]
    offsets = pc.subtract(offsets, first)
    buffers = [validity, offsets.buffers()[1]]
    return pa.Array.from_buffers(t, len(column), buffers, children=children)
