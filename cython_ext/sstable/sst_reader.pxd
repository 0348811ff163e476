from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.sstable.block_cache cimport BlockCache, CachedBlock, PassedBlock
from lsmstate.cython_ext.memory.budget cimport Budget
from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.base.file cimport ReadFile
from lsmstate.cython_ext.sstable.index_block cimport IndexBlock

cdef enum:
    INDEX_PAYLOAD = 12    # of an index entry: offset and size of a key block
    TOP_PAYLOAD = 24      # of the top index: index partition and filter

cdef enum Use:        # what the block cache does with a block
    USE_ONCE          # nothing: merges, checks; its memory is theirs
    USE_SCAN          # keeps it, to be evicted first
    USE_PROBE         # keeps it, and counts


cdef class Sst:
    cdef readonly ReadFile file
    cdef BlockCache cache
    cdef Budget budget
    cdef readonly uint64_t uid
    cdef readonly uint64_t base_sequence
    cdef readonly uint32_t version      # of the format
    cdef readonly uint64_t checksum     # of the footer: it stands for the whole file
    cdef Buffer top_raw
    cdef IndexBlock top
    cdef uint64_t _sections[3]
    cdef uint32_t _section_sizes[3]
    cdef bint _verifying                # blocks come from the file, cached or not
    cdef object _renew                  # of a copy: brings it anew, says where from; or None
    cdef str _original                  # where from, once it was brought anew
    cdef ReadFile _first_file           # the damaged one
    cdef uint64_t filter_checks, filter_negatives, blocks_read, bytes_read
    # A pinned, decoded block.
    cdef CachedBlock* load(
        self, uint64_t offset, uint32_t size, int kind, Use use
    ) except NULL nogil
    # Its two steps. For the rows of a probe: if the cache does not want the block it is that of
    # `passed`.
    cdef CachedBlock* _cached(self, uint64_t offset, Use use) noexcept nogil
    cdef CachedBlock* _missed(
        self, uint64_t offset, uint32_t size, int kind, Use use, PassedBlock* passed
    ) except NULL nogil
    cdef CachedBlock* _read_or_renew(
        self, uint64_t offset, uint32_t size, int kind, Use use, PassedBlock* passed
    ) except NULL
    cdef CachedBlock* _read(
        self, uint64_t offset, uint32_t size, int kind, Use use, PassedBlock* passed
    ) except NULL nogil
    cdef CachedBlock* _unsealed(
        self, const uint8_t* stored, uint64_t offset, uint32_t size, int kind, Use use,
        PassedBlock* passed,
    ) except NULL nogil
    cdef int damaged(self, uint64_t offset, int kind) except -1 nogil
