"""Columns are written one after another, each for all keys, so every loop stays in key_encode."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport Node

# What writing needs of a batch of keys; borrowed from it.
cdef struct KeyRows:
    Py_ssize_t n
    uint8_t* valid  # a byte per key: 0 if it holds a null
    uint64_t* sizes  # bytes of each key

# `start` is the batch's own offset in its columns.
# Clears `valid` where the column is null.
cdef void mark_nulls(
    const Node* node, const ArrowArray* array, int64_t start, const KeyRows* keys
) noexcept nogil
# Adds the column's encoded bytes to the sizes of the valid keys.
cdef void add_sizes(
    const Node* node, const ArrowArray* array, int64_t start, const KeyRows* keys
) noexcept nogil
# Appends the column to every valid key at its cursor; False if a value does not fit its type.
cdef bint put_column(
    const Node* node,
    const ArrowArray* array,
    int64_t start,
    const KeyRows* keys,
    uint8_t** cursors,
) noexcept nogil
