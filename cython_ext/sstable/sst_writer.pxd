from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.sstable.block_output cimport BlockOutput
from lsmstate.cython_ext.memory.budget cimport Budget
from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.entries.entry_source cimport EntrySource, RowRef
from lsmstate.cython_ext.rows.zone_columns cimport ZoneColumns

cdef enum:
    FORMAT_VERSION = 4
    HEADER_BYTES = 16
    FOOTER_BYTES = 80


cdef class SstWriter:
    cdef BlockOutput output
    cdef Budget budget
    cdef int64_t charged
    cdef int codec
    cdef size_t block_bytes
    cdef size_t row_block_bytes
    cdef int filter_bits
    cdef uint64_t uid
    cdef uint64_t base_sequence
    # the row block under construction
    cdef Buffer row_data, row_ends, row_sequences, row_ordinals
    cdef uint32_t row_count
    cdef size_t row_width
    cdef bint row_mixed
    cdef Buffer row_zones   # a Zone for each zone column
    # the key block under construction
    cdef Buffer entries, restarts, block_ends, last_key
    cdef Buffer block_zones  # of its row blocks
    cdef ZoneColumns zones   # of its stream; None: of the rows of several streams without zones
    cdef uint64_t row_base
    cdef uint32_t entry_count
    cdef uint32_t since_restart
    cdef uint32_t last_block
    # the entry under construction
    cdef uint64_t entry_rows, entry_bytes
    cdef uint32_t entry_block, entry_row
    cdef uint8_t entry_flags
    cdef Buffer entry_key
    cdef bint entry_continued
    cdef bint inside_key    # consume paused there
    # the index partition under construction, and the top index
    cdef Buffer index, index_offsets, hashes, top, top_offsets
    cdef Buffer index_key  # of the key block closed last
    # zone columns by number of the stream, and the stream of the last key
    cdef dict zones_of
    cdef bint has_zones
    cdef int32_t zone_stream
    # facts
    cdef Buffer first_key
    cdef uint64_t keys, rows, raw_bytes, min_sequence, max_sequence, tombstones
    cdef bint finished
    cdef int begin_key(self, const uint8_t* key, size_t size, uint8_t flags) except -1 nogil
    cdef int _begin_stream(self, const uint8_t* key, size_t size) except -1 nogil
    cdef bint _shares(self, const uint8_t* key, size_t size) noexcept nogil
    cdef int add_row(self, const RowRef* row) except -1 nogil
    cdef void _begin_zones(self) noexcept nogil
    cdef int _close_key_block_if_full(self) except -1 nogil
    cdef int end_key(self) except -1 nogil
    cdef int _consume_rows(
        self, EntrySource source, int64_t max_bytes, int64_t* done
    ) except -1 nogil
    cdef int _put_entry(self, uint8_t flags) except -1 nogil
    cdef int _close_row_block(self) except -1 nogil
    cdef int _close_key_block(
        self, const uint8_t* following, size_t following_size
    ) except -1 nogil
    cdef int _close_partition(self) except -1 nogil
    cdef void _account(self) noexcept nogil
