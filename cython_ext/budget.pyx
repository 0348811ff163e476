"""Atomic byte counters of the one memory budget of a process.

Capacity is charged, not length: what was asked of the system, whether or not it is full. The
policy (what to flush, when to wait) is lsmstate.memory_budget; here only counting and the one
thing that can be given back at once and without the GIL, the block cache.
"""

from libc.stdint cimport int64_t

from cython_ext.errors import InvalidArgumentError

cdef extern from *:
    """
    #include <stdint.h>
    #define atomic_add(place, value) __atomic_add_fetch((place), (value), __ATOMIC_RELAXED)
    #define atomic_get(place) __atomic_load_n((place), __ATOMIC_RELAXED)
    static void atomic_max(int64_t* place, int64_t value) {
        int64_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
        while (seen < value && !__atomic_compare_exchange_n(
            place, &seen, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    }
    """
    int64_t atomic_add(int64_t* place, int64_t value) noexcept nogil
    int64_t atomic_get(int64_t* place) noexcept nogil
    void atomic_max(int64_t* place, int64_t value) noexcept nogil

COMPONENT_NAMES = ("memtable", "cache", "tables", "merge", "probe", "frames")


cdef class Budget:
    """Bytes in use by component, against one limit."""

    def __cinit__(self):
        cdef int component
        self.limit_bytes = 0
        self.total = 0
        self.peak = 0
        self.evictor = NULL
        self.evictor_object = NULL
        for component in range(COMPONENTS):
            self.used[component] = 0

    def __init__(self, int64_t limit_bytes):
        self.limit = limit_bytes

    @property
    def limit(self) -> int:
        """The cap in bytes; it may be changed, and is then obeyed by the next charge."""
        return self.limit_bytes

    @limit.setter
    def limit(self, int64_t value):
        if value <= 0:
            raise InvalidArgumentError(f"memory limit {value}: give a positive number of bytes")
        self.limit_bytes = value

    cdef int try_charge(self, int component, int64_t size) noexcept nogil:
        cdef int64_t total = atomic_add(&self.total, size)
        if total > self.limit_bytes:
            atomic_add(&self.total, -size)
            if self.evictor != NULL:
                self.evictor(self.evictor_object, total - self.limit_bytes)
            total = atomic_add(&self.total, size)
            if total > self.limit_bytes:
                atomic_add(&self.total, -size)
                return -1
        atomic_add(&self.used[component], size)
        atomic_max(&self.peak, total)
        return 0

    cdef void charge(self, int component, int64_t size) noexcept nogil:
        cdef int64_t total = atomic_get(&self.total) + size
        if total > self.limit_bytes and self.evictor != NULL:
            self.evictor(self.evictor_object, total - self.limit_bytes)
        atomic_max(&self.peak, atomic_add(&self.total, size))
        atomic_add(&self.used[component], size)

    cdef void release(self, int component, int64_t size) noexcept nogil:
        atomic_add(&self.used[component], -size)
        atomic_add(&self.total, -size)

    def hold(self, str component not None, int64_t size) -> None:
        """Charge `size` bytes (negative: give them back) for something made in Python."""
        cdef int number = COMPONENT_NAMES.index(component)
        if size >= 0:
            self.charge(number, size)
        else:
            self.release(number, -size)

    def usage(self) -> dict[str, int]:
        """Bytes in use by component."""
        return {
            name: atomic_get(&self.used[number]) for number, name in enumerate(COMPONENT_NAMES)
        }

    @property
    def total_bytes(self) -> int:
        return atomic_get(&self.total)

    @property
    def peak_bytes(self) -> int:
        """The highest total since the start or the last reset_peak."""
        return atomic_get(&self.peak)

    def reset_peak(self) -> None:
        self.peak = atomic_get(&self.total)
