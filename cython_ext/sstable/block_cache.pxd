from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.memory.budget cimport Budget
from lsmstate.cython_ext.base.file cimport ReadAhead

cdef struct CachedBlock:
    uint64_t file
    uint64_t offset
    uint8_t* data          # right behind this record
    size_t size            # of the data
    size_t capacity        # bytes charged
    uint32_t pins          # more of them under the mutex only, fewer at any time
    uint8_t component      # of the budget; if not CACHE, it is not in the table, and freed when unpinned
    uint8_t used           # asked for since it was last up for eviction
    uint8_t transposed     # of a PassedBlock: see block.unseal_row_block
    uint8_t listed         # in table and list, which free it
    CachedBlock* newer
    CachedBlock* older

cdef struct Slot:
    uint32_t hash          # of file and offset
    uint32_t size          # of the block's data
    CachedBlock* block     # or NULL: free

cdef struct PassedBlock:   # a reader's own memory for what it reads past the cache
    CachedBlock block      # room for it twice
    ReadAhead ahead

# Room for a block of `size` bytes; -1: no memory.
cdef int make_room(PassedBlock* passed, size_t size) noexcept nogil
cdef size_t passed_bytes(const PassedBlock* passed) noexcept nogil
cdef void free_passed(PassedBlock* passed) noexcept nogil


cdef class BlockCache:
    cdef Budget budget
    cdef Slot* slots         # open addressing; a power of two, at most half of them taken
    cdef Slot* outgrown      # those that were in use before, each with the next in its first slot
    cdef size_t slot_count
    cdef size_t count
    cdef CachedBlock* newest
    cdef CachedBlock* oldest
    cdef void* mutex
    cdef readonly uint64_t hits
    cdef readonly uint64_t misses
    cdef readonly uint64_t evicted_bytes
    cdef uint8_t* marks      # a bit for each hash of a block that was missed lately
    cdef size_t mark_count
    # The pinned block, or NULL. `promote`: it is marked as used, and counted.
    cdef CachedBlock* get(self, uint64_t file, uint64_t offset, bint promote) noexcept nogil
    # Have the processor fetch what a look-up will touch: first its slot, then the block's record, of
    # the data `size` bytes from `start` on, and the end.
    cdef void prefetch_slot(self, uint64_t file, uint64_t offset) noexcept nogil
    cdef void prefetch(
        self, uint64_t file, uint64_t offset, size_t start, size_t size
    ) noexcept nogil
    # A pinned block of `size` bytes to fill, not visible to others yet; NULL: no memory. `kept`: it
    # is to be published, if the budget has room; one that is not is a merge's.
    cdef CachedBlock* allocate(
        self, uint64_t file, uint64_t offset, size_t size, bint kept
    ) noexcept nogil
    cdef bint holds(self, uint64_t file, uint64_t offset) noexcept nogil
    # Whether a block that was just missed should be kept; a reader may pass over one that should not.
    cdef bint wants(self, uint64_t file, uint64_t offset, size_t size) noexcept nogil
    # Make a filled block visible to others; it stays pinned. `cold`: it is evicted first.
    cdef void publish(self, CachedBlock* block, bint cold) noexcept nogil
    cdef void unpin(self, CachedBlock* block) noexcept nogil
    cdef int64_t evict(self, int64_t size) noexcept nogil
    cdef void _drop(self, CachedBlock* block) noexcept nogil
    cdef void _destroy(self, CachedBlock* block) noexcept nogil
    cdef void _link(self, CachedBlock* block) noexcept nogil
    cdef void _unlink(self, CachedBlock* block) noexcept nogil
    cdef size_t _find(self, uint64_t file, uint64_t offset) noexcept nogil
    cdef void _empty_slot(self, size_t place) noexcept nogil
    cdef bint _grow(self) noexcept nogil
