from libc.stdint cimport int64_t

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.base.coding cimport Buffer

cdef enum:
    LEAST_SPARE_BYTES = 16 << 10  # of a buffer that is kept: smaller ones the heap has anyway
    MOST_SPARES = 256

cdef struct SpareBuffer:
    void* data
    int64_t capacity

cdef struct SpareBuffers:
    int64_t holders  # who may come back to it: the budget, and each array that is out
    int64_t room     # bytes that may be kept, which the budget has charged
    int64_t lock     # of what follows
    int64_t kept
    Py_ssize_t count
    SpareBuffer items[MOST_SPARES]  # the oldest first

# What an exported array gives back: its private_data.
cdef struct Owned:
    SpareBuffers* spares  # which it holds, or NULL
    int64_t capacities[3]  # of its buffers

# With one holder, who leaves it in the end.
cdef SpareBuffers* new_spares() except NULL
cdef void hold_spares(SpareBuffers* spares) noexcept nogil
# The last one to leave frees it.
cdef void leave_spares(SpareBuffers* spares) noexcept nogil
cdef int take_or_grow(SpareBuffers* spares, Buffer* buffer, size_t extra) except -1 nogil


cdef inline int reserve_spare(
    SpareBuffers* spares, Buffer* buffer, size_t extra
) except -1 nogil:
    """As `reserve`, with a spare buffer if there is one of that size. `spares` may be NULL."""
    if buffer.size + extra <= buffer.capacity:
        return 0
    return take_or_grow(spares, buffer, extra)


# Let go what growing by half, or expecting more, left over.
cdef void trim_buffer(Buffer* buffer) noexcept nogil
# Keep what was allocated, or free it. `spares` may be NULL.
cdef void give_back(SpareBuffers* spares, void* data, int64_t capacity) noexcept nogil
# Free what is beyond the room: after it was made smaller.
cdef void trim_spares(SpareBuffers* spares) noexcept nogil
# What can be kept of an exported array and its children when they are let go, in a room of `most`.
cdef int64_t keepable_bytes(const ArrowArray* array, int64_t most) noexcept nogil
