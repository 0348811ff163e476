from libc.stdint cimport int64_t

from cython_ext.coding cimport Buffer

cdef enum:
    LEAST_SPARE_BYTES = 16 << 10  # of a buffer that is kept: smaller ones the heap has anyway
    MOST_SPARES = 64

cdef struct SpareBuffer:
    void* data
    size_t capacity

cdef struct SpareBuffers:
    int64_t holders  # who may come back to it: the budget, and each array that is out
    int64_t lock
    int64_t room     # bytes that may be kept, which the budget has charged; changed under the lock
    size_t kept
    Py_ssize_t count
    SpareBuffer items[MOST_SPARES]  # the oldest first

# With one holder, who leaves it in the end.
cdef SpareBuffers* new_spares() except NULL
cdef void hold_spares(SpareBuffers* spares) noexcept nogil
# The last one to leave frees it.
cdef void leave_spares(SpareBuffers* spares) noexcept nogil
# As `reserve`, with a spare buffer if there is one of that size. `spares` may be NULL.
cdef int reserve_spare(SpareBuffers* spares, Buffer* buffer, size_t extra) except -1 nogil
# Let go what growing by half, or expecting more, left over.
cdef void trim_buffer(Buffer* buffer) noexcept nogil
# Keep what was allocated, or free it. `spares` may be NULL.
cdef void give_back(SpareBuffers* spares, void* data, size_t capacity) noexcept nogil
# Whether it is the caller's now.
cdef bint try_lock_spares(SpareBuffers* spares) noexcept nogil
cdef void unlock_spares(SpareBuffers* spares) noexcept nogil
# Free all; by who has the lock, or is the last holder.
cdef void free_spares(SpareBuffers* spares) noexcept nogil
