"""Block cache: decoded blocks, charged by bytes, with file identity and offset as the key.

Files are immutable and have random identities. A cached block is therefore never outdated, and the
cache outlives the stores.

Invariants: every block in the table is in the list; pinned blocks are not evicted; the capacity of
all blocks is charged.

Lookups: most blocks are not in the processor's caches, so a lookup touches no block but its hit.
The table holds hashes, and a hit sets a mark ("second chance": a marked block that is next for
eviction loses its mark and moves to the other end of the list).

Threads share the cache. One mutex guards table, list and counters. It is held only while they
change, and nothing is charged, read or compressed meanwhile (releasing a charge is atomic). It is
the last lock of docs/design/memory-and-threads.md: its holder takes no other. Pins are released
without it. A block without pins is evicted under the mutex, where no new pins are taken. A block's
content is written before it is published, and never again.

Insertion: probes of sorted batches sweep over a state that may be larger than the cache, and a
sweep would replace a cache without ever hitting it. A new block is therefore inserted at the end
that is evicted first, except one in KEPT, and a hit marks it ("bimodal insertion", Qureshi et al.,
ISCA 2007). Part of a sweep stays for the next one, and frequent blocks still get in.

Admission: keeping a block costs as much as reading it (untouched memory, transposing all rows,
another eviction). Readers of row blocks therefore ask first ("doorkeeper", Einziger et al., ACM
Transactions on Storage 2017). A block missed once is not kept. One missed again while its mark
exists is kept, or one in KEPT of those once memory is short. A block that is not kept is decoded
into the reader's own memory.

Scans use cached blocks, set no marks, and insert their own blocks where they are evicted first. A
scan thus replaces its own last block. Its hits and misses are not counted.

A block for which the budget has no room is transient: charged, and freed at its last unpin. A
reader never fails for lack of cache. Every block of a merge is transient, too, and charged what it
holds.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from lsmstate.cython_ext.base.atomic cimport atomic_get
from lsmstate.cython_ext.memory.budget cimport CACHE, MERGE, PROBE, Budget
from lsmstate.cython_ext.base.coding cimport release
from lsmstate.cython_ext.base.prefetch cimport prefetch_line

cdef extern from *:
    """
    #define add_pin(pins) ((void)__atomic_add_fetch((pins), 1, __ATOMIC_RELAXED))
    /* What was read of the block was read before somebody sees that it may go. */
    #define take_pin(pins) ((void)__atomic_sub_fetch((pins), 1, __ATOMIC_RELEASE))
    #define seen_pins(pins) __atomic_load_n((pins), __ATOMIC_ACQUIRE)
    /* Who sees the new size sees the table that has it, or a later one. */
    #define set_size(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)
    #define seen_size(place) __atomic_load_n((place), __ATOMIC_ACQUIRE)
    """
    void add_pin(uint32_t* pins) noexcept nogil
    void take_pin(uint32_t* pins) noexcept nogil
    uint32_t seen_pins(uint32_t* pins) noexcept nogil
    void set_size(size_t* place, size_t value) noexcept nogil
    size_t seen_size(size_t* place) noexcept nogil

cdef enum:
    LINE_BYTES = 64
    MOST_SLOTS_AHEAD = 4  # looked at for a block to prefetch

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_mutex_destroy(pthread_mutex_t*)

# The record, what malloc adds, and its part of a table that is a quarter to a half full.
cdef size_t OVERHEAD = sizeof(CachedBlock) + 16 + 4 * sizeof(Slot)


#: One new block in so many is taken for one that will be asked for again.
cdef enum:
    KEPT = 8
    MARK_BITS = 18  # a bit for each hash of so many
    MOST_MARKS = 1 << (MARK_BITS - 3)  # an eighth of them set: now and then one is kept at once
    LARGEST_PART = 16  # of the cap: a block that takes more is not kept


cdef int64_t _evict(void* cache, int64_t size) noexcept nogil:
    return (<BlockCache> cache).evict(size)


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class BlockCache:
    """The block cache of a budget, shared by all stores that are charged to it."""

    def __cinit__(self, Budget budget not None):
        self.budget = budget
        self.slot_count = 1024
        self.count = 0
        self.outgrown = NULL
        self.newest = NULL
        self.oldest = NULL
        self.hits = 0
        self.misses = 0
        self.evicted_bytes = 0
        self.slots = <Slot*> calloc(self.slot_count, sizeof(Slot))
        self.marks = <uint8_t*> calloc(1 << (MARK_BITS - 3), 1)
        self.mark_count = 0
        self.mutex = malloc(sizeof(pthread_mutex_t))
        if self.slots == NULL or self.marks == NULL or self.mutex == NULL:
            raise MemoryError("no memory for the block cache's table")
        pthread_mutex_init(<pthread_mutex_t*> self.mutex, NULL)

    def __init__(self, Budget budget not None):
        if self.budget.evictor != NULL:
            raise ValueError("this budget already has a block cache")
        self.budget.evictor_object = <void*> self
        self.budget.evictor = _evict

    def __dealloc__(self):
        cdef Slot* slots
        cdef CachedBlock* block
        cdef CachedBlock* older
        if self.mutex != NULL:
            block = self.newest
            while block != NULL:
                older = block.older
                self._destroy(block)
                block = older
            pthread_mutex_destroy(<pthread_mutex_t*> self.mutex)
            if self.budget.evictor_object == <void*> self:
                self.budget.evictor = NULL
                self.budget.evictor_object = NULL
        free(self.mutex)
        free(self.marks)
        free(self.slots)
        while self.outgrown != NULL:
            slots = self.outgrown
            self.outgrown = <Slot*> slots.block
            free(slots)

    cdef CachedBlock* get(self, uint64_t file, uint64_t offset, bint promote) noexcept nogil:
        cdef CachedBlock* block
        pthread_mutex_lock(<pthread_mutex_t*> self.mutex)
        block = self.slots[self._find(file, offset)].block
        if block != NULL:
            add_pin(&block.pins)
            block.used |= promote
        if promote:
            self.hits += block != NULL
            self.misses += block == NULL
        pthread_mutex_unlock(<pthread_mutex_t*> self.mutex)
        return block

    cdef size_t _find(self, uint64_t file, uint64_t offset) noexcept nogil:
        """Return the slot of a block, or the free one where it would be put."""
        cdef uint32_t hash = <uint32_t> _hash(file, offset)
        cdef size_t place = hash & (self.slot_count - 1)
        cdef CachedBlock* block = self.slots[place].block
        while block != NULL and (
            self.slots[place].hash != hash or block.offset != offset or block.file != file
        ):
            place = (place + 1) & (self.slot_count - 1)
            block = self.slots[place].block
        return place

    cdef void prefetch_slot(self, uint64_t file, uint64_t offset) noexcept nogil:
        # Without the mutex: if the table changes meanwhile, a wrong line is fetched.
        prefetch_line(&self.slots[_hash(file, offset) & (self.slot_count - 1)])

    cdef void prefetch(
        self, uint64_t file, uint64_t offset, size_t start, size_t size
    ) noexcept nogil:
        # Without the mutex, too: only the slots are read. A table lives as long as the cache, and
        # is never smaller than the size seen before.
        cdef uint32_t hash = <uint32_t> _hash(file, offset)
        cdef size_t mask = seen_size(&self.slot_count) - 1
        cdef Slot* slots = self.slots
        cdef Slot found
        cdef const uint8_t* data
        cdef int step
        for step in range(MOST_SLOTS_AHEAD):
            found = slots[(hash + step) & mask]
            if found.block == NULL:
                return
            if found.hash == hash:
                # The record itself is not fetched yet, so its place and size are not read from it.
                prefetch_line(found.block)
                data = <uint8_t*> found.block + sizeof(CachedBlock)
                prefetch_line(data + found.size - 1)
                size = min(start + size, <size_t> found.size)
                while start < size:
                    prefetch_line(data + start)
                    start += LINE_BYTES
                return

    cdef CachedBlock* allocate(
        self, uint64_t file, uint64_t offset, size_t size, bint kept
    ) noexcept nogil:
        cdef int64_t capacity = <int64_t> size + OVERHEAD
        cdef int component = CACHE
        cdef CachedBlock* block
        # A very large block is not kept: it could not be evicted while it is read.
        if (
            not kept or <int64_t> size > atomic_get(&self.budget.limit_bytes) // LARGEST_PART
            or self.budget.try_charge(CACHE, capacity)
        ):
            # Reads have a share of their own, which merges must not use.
            component = PROBE if kept else MERGE
            self.budget.charge(component, capacity)
        # Only now, after the eviction of a block, which mostly has this size.
        block = <CachedBlock*> malloc(sizeof(CachedBlock) + size)
        if block == NULL:
            self.budget.release(component, capacity)
            return NULL
        block.data = <uint8_t*> block + sizeof(CachedBlock)
        block.file = file
        block.offset = offset
        block.size = size
        block.capacity = <size_t> capacity
        block.pins = 1
        block.component = <uint8_t> component
        block.used = 0
        block.listed = 0
        block.newer = NULL
        block.older = NULL
        return block

    cdef bint holds(self, uint64_t file, uint64_t offset) noexcept nogil:
        cdef bint found
        pthread_mutex_lock(<pthread_mutex_t*> self.mutex)
        found = self.slots[self._find(file, offset)].block != NULL
        pthread_mutex_unlock(<pthread_mutex_t*> self.mutex)
        return found

    cdef bint wants(self, uint64_t file, uint64_t offset, size_t size) noexcept nogil:
        cdef uint64_t hash = _hash(file, offset) >> (64 - MARK_BITS)
        cdef uint8_t bit = <uint8_t> (1 << (hash & 7))
        # Other threads may set marks too: one block more or less is kept.
        if not self.marks[hash >> 3] & bit:
            if self.mark_count >= MOST_MARKS:
                memset(self.marks, 0, 1 << (MARK_BITS - 3))
                self.mark_count = 0
            self.marks[hash >> 3] |= bit
            self.mark_count += 1
            return False
        return self.misses % KEPT == 0 or (
            atomic_get(&self.budget.total) + <int64_t> size
            <= atomic_get(&self.budget.limit_bytes)
        )

    cdef void publish(self, CachedBlock* block, bint cold) noexcept nogil:
        cdef Slot* slot
        if block.component != CACHE:
            return
        pthread_mutex_lock(<pthread_mutex_t*> self.mutex)
        if self.count * 2 >= self.slot_count and not self._grow():
            pthread_mutex_unlock(<pthread_mutex_t*> self.mutex)
            return
        slot = &self.slots[self._find(block.file, block.offset)]
        if slot.block == NULL:  # else another thread was first
            slot.hash = <uint32_t> _hash(block.file, block.offset)
            slot.size = <uint32_t> block.size
            slot.block = block
            block.listed = 1
            self.count += 1
            if (cold or self.misses % KEPT) and self.oldest != NULL:
                _link_oldest(self, block)
            else:
                self._link(block)
        pthread_mutex_unlock(<pthread_mutex_t*> self.mutex)

    cdef void unpin(self, CachedBlock* block) noexcept nogil:
        if block == NULL:
            return
        if block.listed:
            take_pin(&block.pins)
        else:
            # It belongs to the reader: it is transient, or an error came before publish, or another
            # one was already there, or there was no slot.
            self._destroy(block)

    cdef int64_t evict(self, int64_t size) noexcept nogil:
        cdef int64_t freed = 0
        cdef CachedBlock* block
        cdef CachedBlock* newer
        pthread_mutex_lock(<pthread_mutex_t*> self.mutex)
        block = self.oldest
        while block != NULL and freed < size:
            newer = block.newer
            if block.used:
                block.used = 0
                if newer == NULL:
                    continue
                self._unlink(block)
                self._link(block)
            elif seen_pins(&block.pins) == 0:
                freed += <int64_t> block.capacity
                self._drop(block)
            block = newer
        self.evicted_bytes += freed
        pthread_mutex_unlock(<pthread_mutex_t*> self.mutex)
        return freed

    def drop(self, const uint64_t[::1] files not None) -> None:
        """Drop the blocks of some files, by identity, since they will hardly be used again. Cost:
        every block is visited."""
        cdef CachedBlock* block
        cdef CachedBlock* newer
        cdef Py_ssize_t i
        with nogil:
            pthread_mutex_lock(<pthread_mutex_t*> self.mutex)
            block = self.oldest
            while block != NULL:
                newer = block.newer
                for i in range(files.shape[0]):
                    if block.file == files[i] and seen_pins(&block.pins) == 0:
                        self._drop(block)
                        break
                block = newer
            pthread_mutex_unlock(<pthread_mutex_t*> self.mutex)

    cdef void _drop(self, CachedBlock* block) noexcept nogil:
        """Remove a block from table and list, and free its memory; under the mutex."""
        self._unlink(block)
        self._empty_slot(self._find(block.file, block.offset))
        self._destroy(block)

    cdef void _destroy(self, CachedBlock* block) noexcept nogil:
        self.budget.release(block.component, <int64_t> block.capacity)
        free(block)

    cdef void _link(self, CachedBlock* block) noexcept nogil:
        block.newer = NULL
        block.older = self.newest
        if self.newest != NULL:
            self.newest.newer = block
        self.newest = block
        if self.oldest == NULL:
            self.oldest = block

    cdef void _unlink(self, CachedBlock* block) noexcept nogil:
        if block.newer != NULL:
            block.newer.older = block.older
        else:
            self.newest = block.older
        if block.older != NULL:
            block.older.newer = block.newer
        else:
            self.oldest = block.newer

    cdef void _empty_slot(self, size_t place) noexcept nogil:
        """Empty a slot: following blocks that are away from the slot of their hash move up."""
        cdef size_t mask = self.slot_count - 1
        cdef size_t later = (place + 1) & mask
        while self.slots[later].block != NULL:
            if ((later - self.slots[later].hash) & mask) >= ((later - place) & mask):
                self.slots[place] = self.slots[later]
                place = later
            later = (later + 1) & mask
        self.slots[place].block = NULL
        self.count -= 1

    cdef bint _grow(self) noexcept nogil:
        """Double the slots; return whether there was memory for them."""
        cdef size_t mask = self.slot_count * 2 - 1
        cdef Slot* slots = <Slot*> calloc(mask + 1, sizeof(Slot))
        cdef size_t i, place
        if slots == NULL:
            return False
        for i in range(self.slot_count):
            if self.slots[i].block != NULL:
                place = self.slots[i].hash & mask
                while slots[place].block != NULL:
                    place = (place + 1) & mask
                slots[place] = self.slots[i]
        self.slots[0].block = <CachedBlock*> self.outgrown
        self.outgrown = self.slots  # prefetch may be reading them
        self.slots = slots
        set_size(&self.slot_count, mask + 1)
        return True

    def clear(self) -> int:
        """Evict all blocks that are not pinned; return the freed bytes."""
        return self.evict(<int64_t> 1 << 62)

    def __len__(self) -> int:
        return self.count


cdef int make_room(PassedBlock* passed, size_t size) noexcept nogil:
    cdef CachedBlock* block = &passed.block
    if block.data == NULL or block.capacity < 2 * size:
        free(block.data)
        block.data = <uint8_t*> malloc(2 * size + 1)  # the block may be damaged and claim to be empty
        block.capacity = 2 * size if block.data != NULL else 0
    block.size = size
    return 0 if block.data != NULL else -1


cdef size_t passed_bytes(const PassedBlock* passed) noexcept nogil:
    return passed.block.capacity + passed.ahead.bytes.capacity


cdef void free_passed(PassedBlock* passed) noexcept nogil:
    """Free its blocks; may be called again: a read that found no memory frees everything, and is
    dropped later."""
    free(passed.block.data)
    passed.block.data = NULL
    passed.block.capacity = 0
    release(&passed.ahead.bytes)


cdef inline void _link_oldest(BlockCache cache, CachedBlock* block) noexcept nogil:
    """Put a block where it is evicted first; the list is not empty."""
    block.older = NULL
    block.newer = cache.oldest
    cache.oldest.older = block
    cache.oldest = block


cdef inline uint64_t _hash(uint64_t file, uint64_t offset) noexcept nogil:
    cdef uint64_t mixed = (file ^ (offset * <uint64_t> 0x9E3779B97F4A7C15))
    mixed ^= mixed >> 29
    mixed *= <uint64_t> 0xBF58476D1CE4E5B9
    return mixed ^ (mixed >> 32)
