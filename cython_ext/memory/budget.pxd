from libc.stdint cimport int64_t

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.memory.buffer_pool cimport SpareBuffers

cdef enum:
    MEMTABLE = 0   # slabs of memtables
    CACHE = 1      # blocks held by the block cache
    TABLES = 2     # pinned top indexes of open tables
    MERGE = 3      # buffers of flush and merge
    PROBE = 4      # hits and staging of probes
    FRAMES = 5     # batches being encoded or built
    SPARE = 6      # a slab kept for the next memtable, and room for buffers kept for the next batch
    COMPONENTS = 7
    SPARE_SLAB_BYTES = 2 << 20         # a huge page
    SPARE_LIMIT_BYTES = 32 << 20       # no slab is kept under a smaller cap
    SPARE_BATCH_PART = 16              # of the cap: buffers of batches that are kept


cdef class Budget:
    cdef int64_t limit_bytes
    cdef int64_t merge_reserve
    cdef int64_t total
    cdef int64_t firm    # of it, all but cached blocks, what is spare, and MERGE
    cdef int64_t peak
    cdef int64_t large_limit   # a row of more bytes is large
    cdef int64_t large_rows    # whether there are any
    cdef int64_t free_pieces   # taken: 0 or 1
    cdef int64_t used[7]
    cdef void* spare
    cdef SpareBuffers* buffers
    cdef int64_t small_batches  # one after the other, beside the room for their buffers
    cdef int64_t largest_small  # of these, what can be kept
    # Changes of that room: where the one is more than the other, total and room do not agree.
    cdef int64_t begun_changes
    cdef int64_t ended_changes
    # Called without the GIL when a charge does not fit: frees about `size` bytes of cache.
    cdef void* evictor_object
    cdef int64_t (*evictor)(void* object, int64_t size) noexcept nogil
    # There is a row of so many bytes: whether it is large, so that has_large_rows from now on.
    cpdef bint note_row(self, int64_t size) noexcept nogil
    # A piece of a read is going to be made: whether it is the one of all that are being made whose
    # batch is not counted. Counting it would drive a sixteenth of the cap out of the block cache
    # for a moment, again and again; and once it is handed out it is not counted either.
    cpdef bint begin_free_piece(self) noexcept nogil
    cpdef void end_free_piece(self) noexcept nogil
    cdef int64_t _add(self, int64_t size) noexcept nogil
    cdef int64_t _limit_of_firm(self) noexcept nogil
    cdef int64_t _add_firm(self, int64_t size) noexcept nogil
    cdef int64_t _merges_with(self, int64_t size) noexcept nogil
    # 0: charged; -1: it does not fit, nothing was charged.
    cdef int try_charge(self, int component, int64_t size) noexcept nogil
    # The same, also out of the reserve.
    cdef int try_charge_last(self, int component, int64_t size) noexcept nogil
    # Charge what is already there, or what was reserved and cannot be refused.
    cdef void charge(self, int component, int64_t size) noexcept nogil
    cdef void release(self, int component, int64_t size) noexcept nogil
    # A mapping of SPARE_SLAB_BYTES that is charged to `component` (of memtables) from now on, or NULL.
    cdef void* take_spare(self, int component) noexcept nogil
    # Whether the mapping, charged to `component` so far, is kept instead of being unmapped.
    cdef bint keep_spare(self, int component, void* slab) noexcept nogil
    cdef bint _drop_spare(self) noexcept nogil
    # A batch is handed out: when it is let go, its large buffers may be kept for the next one. Room
    # for them, a part of the limit at most, is charged from now on, also while they are out, if it
    # fits or would fit if cached blocks made way; it becomes less when batches are much smaller for a while.
    cdef void allow_buffers(self, const ArrowArray* batch) noexcept nogil
    cdef int64_t _raise_room(self, int64_t size) noexcept nogil
    cdef bint _evict_for(self, int64_t size) noexcept nogil
    cdef bint _lower_room(self, int64_t room) noexcept nogil


cdef class Holding:
    cdef Budget budget
    cdef int component
    cdef readonly int64_t nbytes
