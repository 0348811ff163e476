from libc.stdint cimport int64_t, uint8_t, uint64_t

from lsmstate.cython_ext.memory.budget cimport Budget

cdef struct Slot:
    uint64_t low           # of the hash; both halves 0: nobody's
    uint64_t high
    uint64_t count


cdef class RowCounts:
    cdef Budget budget
    cdef int component
    cdef size_t most_slots
    cdef Slot* slots
    cdef size_t room
    cdef size_t used
    cdef uint64_t secret[2]
    cdef uint64_t part
    cdef uint64_t parts
    # Empty, with room for so many rows, or fewer where they do not fit; only the rows of one part
    # of ``parts`` are counted from now on.
    cdef int start(self, size_t expected, uint64_t part, uint64_t parts) except -1 nogil
    # 1: counted, or of another part; 0: there is no room, nothing changed.
    cdef int add(self, int64_t group, const uint8_t* row, size_t size) except -1 nogil
    # Whether the row was counted, and is from now on once less.
    cdef bint take(self, int64_t group, const uint8_t* row, size_t size) noexcept nogil
    cdef int _resize(self, size_t room, bint forced) except -1 nogil
    cdef Slot* _find(self, uint64_t low, uint64_t high) noexcept nogil
