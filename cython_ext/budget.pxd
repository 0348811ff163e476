from libc.stdint cimport int64_t

cdef enum:
    MEMTABLE = 0   # slabs of memtables
    CACHE = 1      # blocks held by the block cache
    TABLES = 2     # pinned top indexes of open tables
    MERGE = 3      # buffers of flush, merge and scan
    PROBE = 4      # hits and staging of probes
    FRAMES = 5     # batches being encoded or built
    COMPONENTS = 6


cdef class Budget:
    cdef int64_t limit_bytes
    cdef int64_t total
    cdef int64_t peak
    cdef int64_t used[6]
    # Called without the GIL when a charge does not fit: frees about `size` bytes of cache.
    cdef void* evictor_object
    cdef int64_t (*evictor)(void* object, int64_t size) noexcept nogil
    cdef int64_t _add(self, int64_t size) noexcept nogil
    # 0: charged; -1: it does not fit, nothing was charged.
    cdef int try_charge(self, int component, int64_t size) noexcept nogil
    # Charge what is already there, or what was reserved and cannot be refused.
    cdef void charge(self, int component, int64_t size) noexcept nogil
    cdef void release(self, int component, int64_t size) noexcept nogil
