"""Type trees: what both codecs need to know of a schema, and how they read Arrow's buffers.

A position is absolute: it already contains the array's own offset. The child of a struct at
position i lies at ``child.offset + i``.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray

cdef extern from *:
    """
    #if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "lsmstate stores little-endian rows: big-endian machines are not supported"
    #endif
    """

cdef enum Kind:
    KIND_NULL
    KIND_BOOL
    KIND_FIXED  # one buffer of `width` bytes per value
    KIND_BYTES  # int32 offsets
    KIND_LARGE_BYTES  # int64 offsets
    KIND_STRUCT
    KIND_LIST  # int32 offsets; a map is a list of entries
    KIND_LARGE_LIST  # int64 offsets
    KIND_FIXED_LIST  # `width` elements each

cdef enum Order:
    ORDER_RAW  # bytes as they are
    ORDER_UNSIGNED
    ORDER_SIGNED
    ORDER_FLOAT
    ORDER_DECIMAL
    ORDER_INTERVAL  # months, days, nanoseconds

cdef struct Node:
    Kind kind
    Order order
    int64_t width  # bytes of a value in Arrow's buffer; elements of a fixed-size list
    int64_t row_width  # bytes in a row (decimals are narrowed); 0 if not fixed-width
    int64_t key_width  # bytes in a key; 0 if not fixed-width
    bint required  # an entry or key of a map: never null
    Py_ssize_t n_children
    Node* children


cdef class TypeTree:
    cdef Node root  # the schema as a struct: a child per column
    cdef readonly object schema
    cdef object storage
    cdef object types
    cdef object adapt(self, object batch, bint named)


cdef const ArrowArray* borrowed(object capsule) except NULL


cdef inline bint has_nulls(const ArrowArray* array) noexcept nogil:
    return array.null_count != 0 and array.n_buffers > 0 and array.buffers[0] != NULL


cdef inline bint bit_at(const void* bits, int64_t i) noexcept nogil:
    return ((<const uint8_t*> bits)[i >> 3] >> (i & 7)) & 1


cdef inline bint is_valid(const Node* node, const ArrowArray* array, int64_t i) noexcept nogil:
    if node.kind == KIND_NULL:
        return False
    return not has_nulls(array) or bit_at(array.buffers[0], i)


cdef inline const uint8_t* bytes_at(
    const Node* node, const ArrowArray* array, int64_t i, int64_t* size
) noexcept nogil:
    """One value of a string or binary column."""
    cdef int64_t start
    if node.kind == KIND_BYTES:
        start = (<const int32_t*> array.buffers[1])[i]
        size[0] = (<const int32_t*> array.buffers[1])[i + 1] - start
    else:
        start = (<const int64_t*> array.buffers[1])[i]
        size[0] = (<const int64_t*> array.buffers[1])[i + 1] - start
    return <const uint8_t*> array.buffers[2] + start


cdef inline int64_t list_at(
    const Node* node, const ArrowArray* array, int64_t i, int64_t* start
) noexcept nogil:
    """The number of elements of one list; `start` becomes the first one's position."""
    cdef int64_t size
    if node.kind == KIND_FIXED_LIST:
        start[0] = i * node.width
        size = node.width
    elif node.kind == KIND_LIST:
        start[0] = (<const int32_t*> array.buffers[1])[i]
        size = (<const int32_t*> array.buffers[1])[i + 1] - start[0]
    else:
        start[0] = (<const int64_t*> array.buffers[1])[i]
        size = (<const int64_t*> array.buffers[1])[i + 1] - start[0]
    start[0] += array.children[0].offset
    return size
