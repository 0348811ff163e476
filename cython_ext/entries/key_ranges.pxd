from libc.stdint cimport int64_t, uint8_t

from lsmstate.cython_ext.memory.budget cimport Budget

cdef struct Bound:
    const uint8_t* data
    size_t size


cdef class KeyRanges:
    cdef readonly tuple items      # of (low, high), ascending, apart from one another
    cdef Bound* bounds             # the same, borrowed: low, high, low, high ...
    cdef Py_ssize_t count
    cdef readonly int64_t nbytes   # bytes of memory held, roughly
    cdef Budget budget             # charged with nbytes, or None
    cdef int component
    cdef void _charge(self, Budget budget, int component) noexcept
    cdef Py_ssize_t _first_behind(self, bytes key) except -1
    cdef double _part_of_one(self, bytes least, bytes greatest) except -1
    # Whether the key lies in one of the ranges.
    cdef bint covers(self, const uint8_t* key, size_t size) noexcept nogil
