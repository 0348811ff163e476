from libc.stdint cimport int64_t, uint8_t

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport Node
from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.rows.row_layout cimport Place, Tile
from lsmstate.cython_ext.memory.buffer_pool cimport SpareBuffers

cdef struct Builder:
    const Node* node
    SpareBuffers* spares  # that large buffers are taken from and come back to, or NULL
    int64_t length
    int64_t null_count
    int64_t room  # of a batch: the rows that its columns have room for
    int64_t spare_rows  # of a batch: which may be written behind these
    Buffer validity  # bits
    Buffer offsets
    Buffer values  # fixed-width values, or the bytes of strings
    Py_ssize_t n_children
    Builder* children

cdef int open_builder(
    Builder* builder, const Node* node, SpareBuffers* spares
) except -1 nogil
cdef void close_builder(Builder* builder) noexcept nogil
# What its buffers hold, without the room they have for more.
cdef int64_t builder_bytes(const Builder* builder) noexcept nogil
# Hands the builder's buffers over; whoever holds `array` releases it.
cdef int export_builder(Builder* builder, ArrowArray* array) except -1 nogil
# Room in a batch's columns for `rows` in all, and for `expected` ones, as far as their width is
# fixed; those behind its length are valid until something else is written.
cdef int reserve_rows(Builder* batch, int64_t rows, int64_t expected) except -1 nogil
cdef int grow_bytes(Builder* builder, int64_t extra) except -1 nogil
# The end of a list, which must fit the type; strings and lists begin with a 0.
cdef int push_offset(Builder* builder, int64_t value) except -1 nogil
# Column `c` of a tile, whose sizes are read; the loop is here, not a call for each row.
cdef int read_nested(Builder* builder, Py_ssize_t c, Tile* tile, Place* place) except -1 nogil
# Raises CorruptionError.
cdef int corrupt(const char* what) except -1 nogil
