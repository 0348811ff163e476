from libc.stdint cimport int64_t, uint8_t

from lsmstate.cython_ext.memory.budget cimport Budget

cdef struct Slab:
    Slab* next
    int64_t size


cdef class Arena:
    cdef Budget budget
    cdef int component
    cdef Slab* slabs
    cdef uint8_t* free_start
    cdef uint8_t* free_end
    cdef int64_t slab_bytes
    cdef int64_t held_bytes
    # Charged already, for what the budget has no room for.
    cdef int64_t granted_bytes
    # 8-aligned memory, or NULL if the budget or the system has no more.
    cdef void* allocate(self, size_t size) noexcept nogil
    # The size that a slab is charged with: `wanted`, `least` or between; 0 if neither fits.
    cdef int64_t _charge(self, int64_t least, int64_t wanted) noexcept nogil
    cdef void clear(self) noexcept nogil
