"""Slabs from mmap, charged to the budget, given back to the system all at once.

malloc would keep what a mixed load frees; a mapping of our own is gone when it is unmapped.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_POPULATE, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap,
)

from cython_ext.budget cimport Budget

cdef int64_t PAGE = 4096


@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Arena:
    """Bump allocation out of slabs; nothing is freed singly."""

    def __cinit__(self, Budget budget not None, int component, int64_t slab_bytes):
        self.budget = budget
        self.component = component
        self.slabs = NULL
        self.free_start = NULL
        self.free_end = NULL
        self.slab_bytes = slab_bytes
        self.held_bytes = 0

    def __dealloc__(self):
        self.clear()

    cdef void* allocate(self, size_t size) noexcept nogil:
        cdef int64_t wanted
        cdef void* memory
        cdef Slab* slab
        cdef uint8_t* found
        size = (size + 7) & ~(<size_t> 7)
        if <size_t> (self.free_end - self.free_start) < size:
            wanted = <int64_t> size + <int64_t> sizeof(Slab)
            if wanted < self.slab_bytes:
                wanted = self.slab_bytes
            wanted = (wanted + PAGE - 1) & ~(PAGE - 1)
            if self.budget.try_charge(self.component, wanted):
                return NULL
            # All pages at once: a slab is filled to its end, and a fault for each page costs more.
            memory = mmap(
                NULL, wanted, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0,
            )
            if memory == MAP_FAILED:
                self.budget.release(self.component, wanted)
                return NULL
            slab = <Slab*> memory
            slab.next = self.slabs
            slab.size = wanted
            self.slabs = slab
            self.held_bytes += wanted
            found = <uint8_t*> memory + sizeof(Slab)
            if <size_t> (wanted - <int64_t> sizeof(Slab)) - size > <size_t> (
                self.free_end - self.free_start
            ):
                # The slab with more room left serves the next calls.
                self.free_start = found + size
                self.free_end = <uint8_t*> memory + wanted
            return found
        found = self.free_start
        self.free_start += size
        return found

    cdef void clear(self) noexcept nogil:
        cdef Slab* slab = self.slabs
        cdef Slab* following
        while slab != NULL:
            following = slab.next
            munmap(slab, slab.size)
            slab = following
        self.budget.release(self.component, self.held_bytes)
        self.slabs = NULL
        self.free_start = NULL
        self.free_end = NULL
        self.held_bytes = 0
