from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges
from lsmstate.cython_ext.entries.entry_source cimport EntrySource, RowRef


cdef extern from *:
    """
    typedef unsigned __int128 lsm_words;

    typedef struct {           /* where a child stands; see merging_iter.pyx */
        lsm_words words;
        uint64_t rank;
        const uint8_t* key;
        size_t size;
        size_t rest;           /* bytes of the key behind the common ones */
    } lsm_head;
    """
    ctypedef struct Head "lsm_head":
        uint64_t rank
        const uint8_t* key
        size_t size
        size_t rest


cdef enum:
    MOST_COMMON = 256  # bytes that heads are found to have in common; keys may be larger


cdef class MergingSource(EntrySource):
    cdef list sources             # oldest first; keeps them alive
    cdef void** children          # the same, borrowed, for use without the GIL
    cdef Py_ssize_t count
    cdef void** ranges            # per child: its `deleted` or NULL; NULL: no child has any
    cdef Head* heads              # per child
    # A tournament of the heads: tree[0] is the least one's child, tree[n] who lost at node n; the
    # children are the leaves from `count` on, and the node above n is n // 2.
    cdef uint32_t* tree
    cdef uint8_t common[MOST_COMMON]
    cdef size_t common_size       # of `common`: all heads' keys begin with so much of it
    cdef uint32_t steps_to_common # until the heads are asked for more
    cdef bint has_tree            # else the children have to be advanced first
    cdef bint halfway             # an error left some children further on than others
    cdef uint32_t* standing       # the children that stand at the current key, oldest first
    cdef Py_ssize_t stand         # how many
    cdef Py_ssize_t place         # in `standing`, of the child whose rows are being given
    cdef int sign                 # 1: keys ascend, -1: they descend
    cdef int _take_ranges(self) except -1
    cdef int _grow_tree(self) except -1 nogil
    cdef int _advance(self) except -1 nogil
    cdef int _advance_child(self, uint32_t i) except -1 nogil
    cdef void _set_common(self, size_t size) noexcept nogil
    cdef void _find_common(self) noexcept nogil
    cdef int _refuse(self) except -1 nogil
    cdef void _find_equals(self, uint32_t i, size_t top) noexcept nogil
    cdef void _take_entries(self) noexcept nogil
    cdef bint _is_covered(self, Py_ssize_t start, Py_ssize_t end) noexcept nogil
    cdef void* _child(self) noexcept nogil
    cdef void _take_giver(self) noexcept nogil


cdef class ChainSource(EntrySource):
    cdef list waiting             # functions that open the files still to come, last one first
    cdef EntrySource source       # the one being read, or None
    cdef int _open_next(self) except -1
