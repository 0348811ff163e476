from libc.stdint cimport int64_t, uint8_t, uint32_t

from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.sstable.key_block cimport RESTART_ENTRIES, KeyEntry
from lsmstate.cython_ext.memtable.memtable cimport MemtableSource
from lsmstate.cython_ext.sstable.sst_source cimport SstSource


cdef class BackwardMemtableSource(MemtableSource):
    cdef void _enter_from_behind(self, int64_t stream) noexcept nogil


cdef class BackwardSstSource(SstSource):
    # The key block that is walked; the rows of a huge key lead to others in between.
    cdef uint32_t home_partition
    cdef uint32_t home_place
    cdef uint32_t restarts_left              # of that block: groups not decoded yet
    cdef uint32_t group_left                 # of the group: entries not given yet
    cdef KeyEntry group[RESTART_ENTRIES]
    cdef size_t group_ends[RESTART_ENTRIES]  # of their keys in group_keys
    cdef Buffer group_keys
    cdef Buffer reached                      # the first key of the group decoded last
    cdef int _come_home(self) except -1 nogil
    cdef int _previous_key_block(self) except -1 nogil
    cdef int _decode_group(self, uint32_t restart) except -1 nogil
    cdef const uint8_t* _group_key(self, uint32_t i, size_t* size) noexcept nogil
    cdef int _descend(self) except -1 nogil
    cdef bint _began_earlier(self) except -1 nogil
