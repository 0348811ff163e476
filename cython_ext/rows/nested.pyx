"""Nested columns rebuilt from their parts.

pyarrow 26 has these limits: its cast does not look inside dictionaries, makes no dictionary inside
a nested type, and returns wrong lengths or offsets for lists of nulls and list views. So only
columns that are not nested are cast.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from lsmstate.cython_ext.errors import InvalidArgumentError


def remade(column, t, convert):
    """Rebuild the nested column with type ``t``, which nests in the same way except for lists and
    list views. ``convert(child, type)`` converts the children; of a slice only its own part."""
    if not len(column):
        return pa.nulls(0, t)  # an empty list may lack its only offset
    validity = pc.is_valid(column).buffers()[1] if column.null_count else None
    if pt.is_struct(t):
        children = [convert(column.field(i), field.type) for i, field in enumerate(t)]
        return pa.Array.from_buffers(t, len(column), [validity], children=children)
    if pt.is_fixed_size_list(t):
        offsets = []
        values = column.values.slice(column.offset * t.list_size, len(column) * t.list_size)
    elif is_any_list_view(column.type):
        offsets = view_offsets(column, t)
        # pyarrow flattens no lists into no values of a dictionary of nested ones.
        values = column.flatten() if offsets[len(column)] else column.values.slice(0, 0)
    else:
        offsets = column.offsets.to_numpy()
        values = column.values.slice(offsets[0], offsets[len(column)] - offsets[0])
        offsets = offsets - offsets[0]
    if is_any_list_view(t):
        offsets = [offsets[:len(column)], np.diff(offsets)]
    elif len(offsets):
        offsets = [offsets]
    buffers = [validity, *map(pa.py_buffer, offsets)]
    children = [convert(values, t.field(0).type)]
    return pa.Array.from_buffers(t, len(column), buffers, children=children)


def is_any_list_view(t) -> bool:
    return pt.is_list_view(t) or pt.is_large_list_view(t)


def view_offsets(column, t):
    """Return offsets of the lists of a column of views, one after another; raise
    InvalidArgumentError if lists of type ``t`` cannot count as many."""
    sizes = column.sizes.to_numpy()
    if column.null_count:
        sizes = np.where(pc.is_valid(column).to_numpy(zero_copy_only=False), sizes, 0)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if pt.is_large_list(t):
        return offsets
    last = int(offsets[len(column)])
    if last > np.iinfo(np.int32).max:
        raise InvalidArgumentError(
            f"{len(column)} rows of a column of {column.type} hold {last} values in all, {t} counts "
            f"{np.iinfo(np.int32).max}; pass fewer rows at a time"
        )
    return offsets.astype(np.int32)
