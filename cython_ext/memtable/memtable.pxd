from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.memory.arena cimport Arena
from lsmstate.cython_ext.memtable.btree cimport Chunk, Entry, Place, Search, Tree
from lsmstate.cython_ext.entries.entry_source cimport EntrySource
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges
from lsmstate.cython_ext.rows.row_codec cimport RowBatch

cdef struct RowHead:
    uint32_t size
    uint32_t ordinal
    uint64_t sequence


cdef class Memtable:
    cdef Arena arena
    cdef int64_t _limit_bytes
    cdef Tree* trees               # by stream number
    cdef readonly uint32_t tree_count
    cdef readonly uint64_t keys
    cdef readonly uint64_t rows
    cdef readonly uint64_t row_bytes
    cdef readonly uint64_t first_sequence
    cdef readonly uint64_t last_sequence
    cdef readonly KeyRanges deleted    # of everything older than this table
    cdef bint _written
    cdef bint _resets              # a key was deleted
    cdef int users                 # see retain
    cdef Tree* _tree_for_writing(self, KeyBatch keys) except? NULL
    cdef bint _full(self, size_t size) noexcept nogil
    cdef void* _allocate(self, size_t size) noexcept nogil
    cdef Py_ssize_t _write(
        self, KeyBatch keys, RowBatch rows, bint appending, uint64_t sequence, Py_ssize_t place
    ) except -1
    cdef Py_ssize_t _add_rows(
        self, Entry* entry, KeyBatch keys, RowBatch rows, uint64_t sequence, Py_ssize_t place,
        Py_ssize_t end,
    ) noexcept nogil
    cdef void _forget_rows(self, Entry* entry) noexcept nogil
    cdef Entry* _put(self, Tree* tree, Search* searches, int count) noexcept nogil
    cdef uint8_t* _row_space(self, Entry* entry, size_t size) noexcept nogil

# The tree of a stream, NULL if nothing of it is stored.
cdef Tree* tree_of(Memtable memtable, uint32_t stream) noexcept nogil

cdef class MemtableSource(EntrySource):
    cdef Memtable memtable
    cdef uint32_t stream           # whose tree is being read
    cdef Place following           # the next entry to be given
    cdef Chunk* chunk
    cdef uint32_t place
    cdef void _enter(self, uint32_t stream) noexcept nogil
    cdef void _step(self) noexcept nogil
