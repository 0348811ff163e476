from libc.stdint cimport uint8_t, uint64_t

from cython_ext.key_ranges cimport KeyRanges
from cython_ext.entries cimport EntrySource, RowRef


cdef struct Head:          # the key that a child stands at
    uint64_t first         # its first eight bytes, as a number of the same order
    uint64_t second        # and the next eight
    const uint8_t* key
    size_t size


cdef class MergingSource(EntrySource):
    cdef list sources             # oldest first; keeps them alive
    cdef void** children          # the same, borrowed, for use without the GIL
    cdef Py_ssize_t count
    cdef void** ranges            # per child: its `deleted` or NULL; NULL: no child has any
    cdef Head* heads              # per child that is not at its end
    cdef uint8_t* state           # per child: 0 at its end, 1 stands at an entry, 2 to be advanced
    cdef Py_ssize_t current       # the child whose rows are being given
    cdef int sign                 # 1: keys ascend, -1: they descend
    cdef int _take_ranges(self) except -1
    cdef int _advance(self) except -1 nogil
    cdef int _advance_child(self, Py_ssize_t i) except -1 nogil


cdef class ChainSource(EntrySource):
    cdef list waiting             # functions that open the files still to come, last one first
    cdef EntrySource source       # the one being read, or None
    cdef int _open_next(self) except -1
