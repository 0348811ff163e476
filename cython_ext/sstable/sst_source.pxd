from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.sstable.block cimport RowBlock
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.entries.entry_source cimport EntrySource
from lsmstate.cython_ext.sstable.index_block cimport IndexBlock
from lsmstate.cython_ext.sstable.key_block cimport KeyBlock, KeyEntry
from lsmstate.cython_ext.sstable.sst_reader cimport Sst, Use


cdef class SstSource(EntrySource):
    cdef Sst sst
    cdef Use use
    cdef uint32_t partition
    cdef uint32_t index_place
    cdef CachedBlock* index_block
    cdef IndexBlock index
    cdef CachedBlock* key_block
    cdef KeyBlock keys
    cdef const uint8_t* place
    cdef CachedBlock* row_block
    cdef RowBlock row_view
    cdef readonly uint64_t row_block_offset
    cdef uint32_t row_block_index  # its number in the key block
    cdef uint32_t block_index
    cdef uint32_t row_index
    cdef bint consumed            # the row given last was its block's last one
    cdef uint64_t rows_left       # of the current segment
    cdef bint continues
    cdef KeyEntry entry
    cdef Buffer key_buffer
    cdef Buffer segment_key       # what the segment read last says; key_buffer stays where it is
    cdef Buffer ahead             # bytes of the file from ahead_offset on
    cdef uint64_t ahead_offset
    cdef bint pending             # next_key is to give the entry decoded by seek
    cdef CachedBlock* _load(self, uint64_t offset, uint32_t size, int kind) except NULL nogil
    cdef int _load_row_block(self) except -1 nogil
    cdef int _next_key_block(self) except -1 nogil
    cdef int _next_segment(self) except -1 nogil
    cdef int _load_index(self) except -1 nogil
    cdef int _load_key_block(self) except -1 nogil
    cdef int _decode(self, Buffer* key) except -1 nogil
    cdef void _begin_rows(self) noexcept nogil
    cdef void _give(self) noexcept nogil
    cdef void _forget(self) noexcept nogil
