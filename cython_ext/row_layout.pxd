"""Where the parts of a row lie, and the small writes and copies both directions share."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cython_ext.arrow_read cimport KIND_BOOL, KIND_FIXED, KIND_NULL, Node

cdef enum:
    TILE = 256  # rows handled together, column by column; a multiple of 8

cdef struct Layout:
    const Node* root
    int64_t bitmap  # bytes
    int64_t header  # bytes of bitmap and fixed part
    int64_t* places  # of the fixed-width columns in a row

# A cell of one to eight bytes as a number; what it means does not matter here.
ctypedef fused word:
    uint8_t
    uint16_t
    uint32_t
    uint64_t


cdef inline bint is_fixed(const Node* node) noexcept nogil:
    return node.kind == KIND_FIXED or node.kind == KIND_BOOL or node.kind == KIND_NULL


cdef inline int64_t varint_size(uint64_t value) noexcept nogil:
    cdef int64_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t* write_varint(uint8_t* target, uint64_t value) noexcept nogil:
    while value >= 0x80:
        target[0] = <uint8_t> (value | 0x80)
        target += 1
        value >>= 7
    target[0] = <uint8_t> value
    return target + 1


cdef inline void copy_bytes(uint8_t* target, const uint8_t* source, int64_t size) noexcept nogil:
    """memcpy without the call for the short strings that most are: two overlapping words."""
    cdef uint64_t head
    cdef uint64_t tail
    cdef uint32_t half
    cdef uint32_t rest
    if size > 16:
        memcpy(target, source, size)
    elif size >= 8:
        memcpy(&head, source, 8)
        memcpy(&tail, source + size - 8, 8)
        memcpy(target, &head, 8)
        memcpy(target + size - 8, &tail, 8)
    elif size >= 4:
        memcpy(&half, source, 4)
        memcpy(&rest, source + size - 4, 4)
        memcpy(target, &half, 4)
        memcpy(target + size - 4, &rest, 4)
    elif size:
        target[0] = source[0]
        target[size >> 1] = source[size >> 1]
        target[size - 1] = source[size - 1]
