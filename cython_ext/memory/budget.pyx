"""Atomic byte counters of a process's memory budget.

- Capacity is charged, not length: what was requested from the system, whether or not it is full.
- The policy (what to flush, when to wait) is lsmstate.process.memory_budget. This module counts,
  and releases what it can at once and without the GIL: the block cache and spare memory. Spare
  memory is a slab of a memtable, or buffers of batches, kept for reuse: the system would clear new
  memory first.
- Any thread may charge and release at any time.
- A part of the limit is reserved for flushes and merges, which release memory and charge without
  asking. Everything else that asks gets no memory from that part, unless it can be evicted.
"""

cimport cython
from libc.stdint cimport int64_t
from posix.mman cimport munmap

from lsmstate.cython_ext.errors import InvalidArgumentError

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.base.atomic cimport (
    atomic_add, atomic_add_within, atomic_count_in_order, atomic_exchange, atomic_get,
    atomic_get_in_order, atomic_lower, atomic_max, atomic_set,
)
from lsmstate.cython_ext.memory.buffer_pool cimport keepable_bytes, leave_spares, new_spares, trim_spares

cdef enum:
    MOST_SMALL_BATCHES = 64  # then the room for larger ones is released
    MOST_TRIES = 1000

cdef extern from "<sched.h>":
    int sched_yield() noexcept nogil

COMPONENT_NAMES = ("memtable", "cache", "tables", "merge", "probe", "frames", "spare")


cdef inline bint _is_firm(int component) noexcept nogil:
    """Whether it cannot be evicted and must leave the reserve free."""
    return component != CACHE and component != SPARE and component != MERGE


@cython.final
cdef class Budget:
    """Bytes in use by component, under one limit."""

    def __cinit__(self):
        cdef int component
        self.limit_bytes = 0
        self.merge_reserve = 0
        self.total = 0
        self.firm = 0
        self.peak = 0
        self.large_limit = 0
        self.large_rows = 0
        self.spare = NULL
        self.buffers = new_spares()
        self.evictor = NULL
        self.evictor_object = NULL
        for component in range(COMPONENTS):
            self.used[component] = 0

    def __init__(self, int64_t limit_bytes):
        self.limit = limit_bytes
        self.large_bytes = limit_bytes

    def __dealloc__(self):
        self._drop_spare()
        if self.buffers != NULL:
            self._lower_room(0)  # memory returned later is not kept
            leave_spares(self.buffers)

    @property
    def limit(self) -> int:
        """The memory cap in bytes; the next charge obeys a changed cap."""
        return atomic_get(&self.limit_bytes)

    @limit.setter
    def limit(self, int64_t value):
        if value <= 0:
            raise InvalidArgumentError(f"memory limit {value}: give a positive number of bytes")
        atomic_set(&self.limit_bytes, value)
        if value < SPARE_LIMIT_BYTES:
            self._drop_spare()
        self._lower_room(value // SPARE_BATCH_PART)

    @property
    def reserve(self) -> int:
        """Bytes of the limit that only flushes, merges and evictable memory may use."""
        return atomic_get(&self.merge_reserve)

    @reserve.setter
    def reserve(self, int64_t value):
        if value < 0:
            raise InvalidArgumentError(f"memory reserve {value}: give a number of bytes from 0 on")
        atomic_set(&self.merge_reserve, value)

    @property
    def large_bytes(self) -> int:
        """Size beyond which a row is large: what several writes, flushes and merges of such rows
        hold at a time would fill the cap. At first no row is."""
        return atomic_get(&self.large_limit)

    @large_bytes.setter
    def large_bytes(self, int64_t value):
        if value <= 0:
            raise InvalidArgumentError(f"large rows of {value} bytes: give a positive number")
        atomic_set(&self.large_limit, value)

    @property
    def has_large_rows(self) -> bool:
        """Whether there were any so far; a new start sets it to False."""
        return atomic_get(&self.large_rows) != 0

    @has_large_rows.setter
    def has_large_rows(self, bint value):
        atomic_set(&self.large_rows, value)

    cpdef bint begin_free_piece(self) noexcept nogil:
        return atomic_add_within(&self.free_pieces, 1, 1) == 1

    cpdef void end_free_piece(self) noexcept nogil:
        atomic_add(&self.free_pieces, -1)

    cpdef bint note_row(self, int64_t size) noexcept nogil:
        """Note a row of this size; return whether it is large, which sets has_large_rows."""
        if size <= atomic_get(&self.large_limit):
            return False
        if not atomic_get(&self.large_rows):
            atomic_set(&self.large_rows, 1)
        return True

    cdef int try_charge(self, int component, int64_t size) noexcept nogil:
        cdef int64_t total
        if _is_firm(component):
            if self._add_firm(size) < 0:
                return -1
        elif component == MERGE and self._merges_with(size) > self._limit_of_firm():
            return -1  # what a merge can do without
        total = self._add(size)
        if total < 0:
            if _is_firm(component):
                atomic_add(&self.firm, -size)
            return -1
        atomic_add(&self.used[component], size)
        atomic_max(&self.peak, total)
        return 0

    cdef int try_charge_last(self, int component, int64_t size) noexcept nogil:
        cdef int64_t total = self._add(size)
        if total < 0:
            return -1
        if _is_firm(component):
            atomic_add(&self.firm, size)
        atomic_add(&self.used[component], size)
        atomic_max(&self.peak, total)
        return 0

    cdef void charge(self, int component, int64_t size) noexcept nogil:
        cdef int64_t total = self._add(size)
        if total < 0:
            total = atomic_add(&self.total, size)
        if _is_firm(component):
            atomic_add(&self.firm, size)
        atomic_add(&self.used[component], size)
        atomic_max(&self.peak, total)

    cdef int64_t _limit_of_firm(self) noexcept nogil:
        return atomic_get(&self.limit_bytes) - atomic_get(&self.merge_reserve)

    cdef int64_t _add_firm(self, int64_t size) noexcept nogil:
        """Charge firm memory; -1 if it would reach into the reserve."""
        return atomic_add_within(&self.firm, size, self._limit_of_firm())

    cdef int64_t _merges_with(self, int64_t size) noexcept nogil:
        """Return all memory that cannot be evicted, with so much more of it."""
        return atomic_get(&self.firm) + atomic_get(&self.used[MERGE]) + size

    cdef int64_t _add(self, int64_t size) noexcept nogil:
        """Charge; return the new total, or -1 if it does not fit even after the spare slab was
        released, the cache was evicted and, last, spare buffers were released.

        Another thread may take what the cache released, so the cache is asked until it has no more.
        The room for spare buffers is handled likewise. It is in transit while another thread
        changes it; in a forked child that thread may not exist, so this ends.
        """
        cdef int64_t limit = atomic_get(&self.limit_bytes)
        cdef int64_t total = atomic_add_within(&self.total, size, limit)
        cdef int64_t ended
        cdef int tries
        cdef bint is_lowered
        if total < 0 and self._drop_spare():
            total = atomic_add_within(&self.total, size, limit)
        while total < 0 and self.evictor != NULL and self.evictor(
            self.evictor_object, max(1, atomic_get(&self.total) + size - limit)
        ):
            total = atomic_add_within(&self.total, size, limit)
        for tries in range(MOST_TRIES):
            if total >= 0:
                break
            ended = atomic_get_in_order(&self.ended_changes)
            is_lowered = self._lower_room(0)
            total = atomic_add_within(&self.total, size, limit)
            if not is_lowered and atomic_get_in_order(&self.begun_changes) == ended:
                break  # none was in transit
            if tries & 63 == 63:
                sched_yield()
        return total

    cdef void release(self, int component, int64_t size) noexcept nogil:
        if _is_firm(component):
            atomic_add(&self.firm, -size)
        atomic_add(&self.used[component], -size)
        atomic_add(&self.total, -size)

    cdef void* take_spare(self, int component) noexcept nogil:
        cdef void* slab
        if self._add_firm(SPARE_SLAB_BYTES) < 0:
            return NULL
        slab = atomic_exchange(&self.spare, NULL)
        if slab == NULL:
            atomic_add(&self.firm, -<int64_t> SPARE_SLAB_BYTES)
            return NULL
        atomic_add(&self.used[SPARE], -<int64_t> SPARE_SLAB_BYTES)
        atomic_add(&self.used[component], SPARE_SLAB_BYTES)
        return slab

    cdef bint keep_spare(self, int component, void* slab) noexcept nogil:
        if atomic_get(&self.limit_bytes) < SPARE_LIMIT_BYTES:
            return False
        atomic_add(&self.firm, -<int64_t> SPARE_SLAB_BYTES)
        atomic_add(&self.used[component], -<int64_t> SPARE_SLAB_BYTES)
        atomic_add(&self.used[SPARE], SPARE_SLAB_BYTES)
        slab = atomic_exchange(&self.spare, slab)
        if slab != NULL:  # one was already kept: the older one is released
            munmap(slab, SPARE_SLAB_BYTES)
            self.release(SPARE, SPARE_SLAB_BYTES)
        return True

    cdef bint _drop_spare(self) noexcept nogil:
        """Release the spare slab; return whether there was one."""
        cdef void* slab = atomic_exchange(&self.spare, NULL)
        if slab == NULL:
            return False
        munmap(slab, SPARE_SLAB_BYTES)
        self.release(SPARE, SPARE_SLAB_BYTES)
        return True

    cdef void allow_buffers(self, const ArrowArray* batch) noexcept nogil:
        cdef int64_t most = atomic_get(&self.limit_bytes) // SPARE_BATCH_PART
        cdef int64_t size = min(most, keepable_bytes(batch, most))
        cdef int64_t room = atomic_get(&self.buffers.room)
        cdef int64_t raised = -1
        if 2 * size >= room:
            atomic_set(&self.small_batches, 0)
            atomic_set(&self.largest_small, 0)
        else:
            atomic_max(&self.largest_small, size)
            if atomic_add(&self.small_batches, 1) >= MOST_SMALL_BATCHES:
                self._lower_room(atomic_get(&self.largest_small))
                atomic_set(&self.small_batches, 0)
                atomic_set(&self.largest_small, 0)
        while size > room:
            raised = self._raise_room(size - room)
            if raised >= 0 or not self._evict_for(size - room):
                break
            room = atomic_get(&self.buffers.room)
        if raised >= 0:
            # Another thread may have made room meanwhile, or lowered the limit.
            most = atomic_get(&self.limit_bytes) // SPARE_BATCH_PART
            self._lower_room(min(most, max(size, raised - (size - room))))

    cdef int64_t _raise_room(self, int64_t size) noexcept nogil:
        """Raise the room for spare buffers; return it, or -1 if that does not fit."""
        cdef int64_t total, room = -1
        atomic_count_in_order(&self.begun_changes)
        total = atomic_add_within(&self.total, size, atomic_get(&self.limit_bytes))
        if total >= 0:
            atomic_add(&self.used[SPARE], size)
            atomic_max(&self.peak, total)
            room = atomic_add(&self.buffers.room, size)
        atomic_count_in_order(&self.ended_changes)
        return room

    cdef bint _evict_for(self, int64_t size) noexcept nogil:
        """Evict cached blocks if all of them would suffice; return whether any were."""
        cdef int64_t limit = atomic_get(&self.limit_bytes)
        if self.evictor == NULL or self._merges_with(size) + atomic_get(&self.used[SPARE]) > limit:
            return False
        return self.evictor(
            self.evictor_object, max(1, atomic_get(&self.total) + size - limit)
        ) != 0

    cdef bint _lower_room(self, int64_t room) noexcept nogil:
        """Lower the room for spare buffers; return whether there was more. The thread that has the
        lock frees the buffers just after they are no longer charged."""
        cdef int64_t freed
        if atomic_get(&self.buffers.room) <= room:
            return False
        atomic_count_in_order(&self.begun_changes)
        freed = atomic_lower(&self.buffers.room, room)
        self.release(SPARE, freed)
        atomic_count_in_order(&self.ended_changes)
        trim_spares(self.buffers)
        return freed > 0

    @property
    def spare_buffers(self) -> tuple[int, int]:
        """Return the number of kept buffers and their bytes."""
        return self.buffers.count, atomic_get(&self.buffers.kept)

    def hold(self, str component not None, int64_t size) -> None:
        """Charge `size` bytes (negative: release them) for something made in Python."""
        cdef int number = COMPONENT_NAMES.index(component)
        if size >= 0:
            self.charge(number, size)
        else:
            self.release(number, -size)

    def try_hold(self, str component not None, int64_t size) -> bool:
        """Charge `size` bytes that do not exist yet; return False if they do not fit even after
        evicting."""
        return self.try_charge(COMPONENT_NAMES.index(component), size) == 0

    def has_room(self, int64_t size) -> bool:
        """Test whether so many bytes fit beside everything that cannot be evicted."""
        return self._merges_with(size) <= atomic_get(&self.limit_bytes)

    def usage(self) -> dict[str, int]:
        """Return the bytes in use by component."""
        return {
            name: atomic_get(&self.used[number]) for number, name in enumerate(COMPONENT_NAMES)
        }

    @property
    def total_bytes(self) -> int:
        return atomic_get(&self.total)

    @property
    def firm_bytes(self) -> int:
        """Bytes that cannot be evicted, without those that the reserve is for."""
        return atomic_get(&self.firm)

    @property
    def peak_bytes(self) -> int:
        """Highest total since the start or the last reset_peak."""
        return atomic_get(&self.peak)

    def reset_peak(self) -> None:
        atomic_set(&self.peak, atomic_get(&self.total))


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Holding:
    """Bytes of one component that Python code has charged. Charged and releasable bytes are one
    number, which an interrupt cannot split. The rest is released with the object."""

    def __cinit__(self, Budget budget not None, str component not None, int64_t size=0):
        self.budget = budget
        self.component = COMPONENT_NAMES.index(component)
        self.nbytes = 0
        self.grow(size)

    def __dealloc__(self):
        if self.nbytes:  # otherwise there may be no budget
            self.budget.release(self.component, self.nbytes)

    def grow(self, int64_t size) -> None:
        """Charge so many more bytes, whether or not they fit."""
        self.budget.charge(self.component, size)
        self.nbytes += size

    def try_grow(self, int64_t size) -> bool:
        """Charge so many more bytes; return False if they do not fit even after evicting."""
        if self.budget.try_charge(self.component, size) != 0:
            return False
        self.nbytes += size
        return True

    def try_grow_last(self, int64_t size) -> bool:
        """Charge as try_grow, but also from the reserve, after everything else was released. A
        flush may then exceed the limit by what it holds."""
        if self.budget.try_charge_last(self.component, size) != 0:
            return False
        self.nbytes += size
        return True

    def __enter__(self) -> Holding:
        return self

    def __exit__(self, *_) -> None:
        self.release()

    def release(self) -> None:
        """Release everything, as the end of ``with`` does."""
        cdef int64_t size = self.nbytes
        self.nbytes = 0
        self.budget.release(self.component, size)
