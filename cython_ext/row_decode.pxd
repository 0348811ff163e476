from libc.stdint cimport int64_t, uint8_t, uint64_t

from cython_ext.arrow_c cimport ArrowArray
from cython_ext.coding cimport Buffer
from cython_ext.arrow_read cimport Node
from cython_ext.row_layout cimport Layout

cdef struct Builder:
    const Node* node
    int64_t length
    int64_t null_count
    Buffer validity  # bits
    Buffer offsets
    Buffer values  # fixed-width values, or the bytes of strings
    Py_ssize_t n_children
    Builder* children

# Where reading stands, for the message of an error.
cdef struct Place:
    int64_t row
    Py_ssize_t column

cdef int open_builder(Builder* builder, const Node* node) except -1 nogil
cdef void close_builder(Builder* builder) noexcept nogil
# Reads the rows into the children of `builder`, which is the root's. CorruptionError and
# MemoryLimitError say what is wrong, `place` where.
cdef int read_rows(
    const Layout* layout,
    const uint8_t* data,
    const uint64_t* offsets,
    int64_t n,
    Builder* builder,
    Place* place,
) except -1 nogil
# Hands the builder's buffers over; whoever holds `array` releases it.
cdef int export_builder(Builder* builder, ArrowArray* array) except -1 nogil
