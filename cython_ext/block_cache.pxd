from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from cython_ext.budget cimport Budget

cdef struct CachedBlock:
    uint64_t file
    uint64_t offset
    uint8_t* data          # right behind this record
    size_t size            # of the data
    size_t capacity        # bytes charged
    uint32_t pins
    uint8_t transient      # not in the table: freed at the last unpin
    CachedBlock* chain
    CachedBlock* newer
    CachedBlock* older


cdef class BlockCache:
    cdef Budget budget
    cdef CachedBlock** slots
    cdef size_t slot_count
    cdef size_t count
    cdef CachedBlock* newest
    cdef CachedBlock* oldest
    cdef void* mutex
    cdef readonly uint64_t hits
    cdef readonly uint64_t misses
    cdef readonly uint64_t evicted_bytes
    # The pinned block, or NULL. `promote`: it is evicted last from now on, and counted.
    cdef CachedBlock* get(self, uint64_t file, uint64_t offset, bint promote) noexcept nogil
    # A pinned block of `size` bytes to fill, not visible to others yet; NULL: no memory.
    cdef CachedBlock* allocate(self, uint64_t file, uint64_t offset, size_t size) noexcept nogil
    # Make a filled block visible to others; it stays pinned. `cold`: it is evicted first.
    cdef void publish(self, CachedBlock* block, bint cold) noexcept nogil
    cdef void unpin(self, CachedBlock* block) noexcept nogil
    cdef int64_t evict(self, int64_t size) noexcept nogil
    cdef void _destroy(self, CachedBlock* block, int component) noexcept nogil
    cdef void _link(self, CachedBlock* block) noexcept nogil
    cdef void _unlink(self, CachedBlock* block) noexcept nogil
    cdef void _unchain(self, CachedBlock* block) noexcept nogil
    cdef void _grow(self) noexcept nogil
