cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t

from lsmstate.cython_ext.memtable.btree cimport Entry
from lsmstate.cython_ext.memory.budget cimport Budget
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges
from lsmstate.cython_ext.memtable.memtable cimport Memtable
from lsmstate.cython_ext.rows.row_codec cimport RowCodec
from lsmstate.cython_ext.sstable.sst_probe cimport ProbeCounters
from lsmstate.cython_ext.sstable.sst_walker cimport HitList

cdef struct RunHits:
    HitList hits
    void** files          # of each hit, in step with hits.items: the Sst it was found in
    size_t file_room
    int32_t* first        # per key position: its first hit, or -1


cdef class Lookup:
    cdef KeyBatch keys
    cdef Budget budget
    cdef RowCodec codec
    cdef list tables              # keeps the files of the hits open
    cdef Py_ssize_t n
    cdef uint32_t* selected       # key positions in key order
    cdef Py_ssize_t selected_count
    cdef RunHits* runs            # oldest first
    cdef Py_ssize_t run_count
    cdef Py_ssize_t run_room
    cdef list memtables           # keeps the objects alive, not what Memtable.release cleared
    cdef Entry*** entries          # per memtable, oldest first: per key position, or NULL
    cdef Py_ssize_t memtable_count
    cdef int32_t* floor           # per key position: no older tier counts; NULL: all do
    cdef int32_t* start           # per key position: the oldest tier that still counts
    cdef ProbeCounters probe_counters
    cdef int64_t charged
    cdef int64_t copied           # of that: for a copy of the keys
    cdef int _charge(self, int64_t size) except -1
    cdef Entry** _add_memtable(self, Memtable memtable) except NULL

    @cython.final
    cdef inline bint holds(self, Py_ssize_t tier, uint32_t position) noexcept nogil:
        """Whether a tier knows anything about the key, deletions included."""
        if tier >= self.run_count:
            return self.entries[tier - self.run_count][position] != NULL
        return self.runs[tier].first != NULL and self.runs[tier].first[position] >= 0

    cdef bint _add(
        self, Py_ssize_t tier, uint32_t position, int64_t* rows, int64_t* row_bytes
    ) noexcept nogil
    cdef void prefetch_hits(self, uint32_t position) noexcept nogil
    cdef void prefetch(self, uint32_t position, bint rows) noexcept nogil
