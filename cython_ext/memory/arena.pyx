"""Slabs from mmap, charged to the budget and returned to the system all at once. The budget keeps
one of them for the next arena (its spare slab).

malloc would keep freed memory under a mixed load; an unmapped slab is returned at once.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from posix.mman cimport munmap

from lsmstate.cython_ext.memory.budget cimport SPARE_SLAB_BYTES, Budget

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #ifndef MADV_HUGEPAGE
    #define MADV_HUGEPAGE 14
    #endif
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    #define HUGE_PAGE ((size_t)2 << 20)

    /* All pages at once: a slab is filled to its end, and a fault for each page costs more. Huge
       pages where the system has them, which cost a seventh, and less to search in. */
    static void* map_slab(size_t size) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS;
        if (size < HUGE_PAGE) {
            void* slab = mmap(0, size, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, -1, 0);
            return slab == MAP_FAILED ? 0 : slab;
        }
        char* mapped = mmap(0, size + HUGE_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (mapped == MAP_FAILED) return 0;
        size_t before = -(uintptr_t)mapped & (HUGE_PAGE - 1);
        char* slab = mapped + before;
        if (before) munmap(mapped, before);
        munmap(slab + size, HUGE_PAGE - before);
        madvise(slab, size, MADV_HUGEPAGE);
        madvise(slab, size, MADV_POPULATE_WRITE);
        return slab;
    }
    """
    void* map_slab(size_t size) nogil

cdef int64_t PAGE = 4096
cdef int64_t SMALL_SLAB_BYTES = 256 * 1024


cdef inline int64_t _pages(int64_t size) noexcept nogil:
    """Round the size in bytes up to whole pages."""
    return (size + PAGE - 1) & ~(PAGE - 1)


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Arena:
    """Bump allocation from slabs; nothing is freed individually."""

    def __cinit__(self, Budget budget not None, int component, int64_t slab_bytes):
        self.budget = budget
        self.component = component
        self.slabs = NULL
        self.free_start = NULL
        self.free_end = NULL
        self.slab_bytes = slab_bytes
        self.held_bytes = 0
        self.granted_bytes = 0

    def __dealloc__(self):
        self.clear()

    cdef void* allocate(self, size_t size) noexcept nogil:
        cdef int64_t wanted, least
        cdef void* memory
        cdef Slab* slab
        cdef uint8_t* found
        size = (size + 7) & ~(<size_t> 7)
        if <size_t> (self.free_end - self.free_start) < size:
            least = _pages(<int64_t> size + <int64_t> sizeof(Slab))
            wanted = max(least, _pages(self.slab_bytes))
            memory = self.budget.take_spare(self.component) if wanted == SPARE_SLAB_BYTES else NULL
            if memory == NULL:
                wanted = self._charge(least, wanted)
                if wanted == 0:
                    return NULL
                memory = map_slab(wanted)
                if memory == NULL:
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
                # The slab with more room serves the next calls.
                self.free_start = found + size
                self.free_end = <uint8_t*> memory + wanted
            return found
        found = self.free_start
        self.free_start += size
        return found

    cdef int64_t _charge(self, int64_t least, int64_t wanted) noexcept nogil:
        cdef int64_t smaller = max(least, min(wanted, SMALL_SLAB_BYTES))
        if self.slab_bytes < least <= self.granted_bytes:
            self.granted_bytes -= least  # what is granted is for what takes a mapping of its own
            return least
        if self.budget.try_charge(self.component, wanted) == 0:
            return wanted
        # If the budget has no room for a slab, a small one serves, or exactly what is needed.
        if self.budget.try_charge(self.component, smaller) == 0:
            return smaller
        if smaller > least and self.budget.try_charge(self.component, least) == 0:
            return least
        if least <= self.granted_bytes:
            self.granted_bytes -= least
            return least
        return 0

    cdef void clear(self) noexcept nogil:
        cdef Slab* slab = self.slabs
        cdef Slab* following
        while slab != NULL:
            following = slab.next
            if slab.size == SPARE_SLAB_BYTES and self.budget.keep_spare(self.component, slab):
                self.held_bytes -= SPARE_SLAB_BYTES
            else:
                munmap(slab, slab.size)
            slab = following
        self.budget.release(self.component, self.held_bytes + self.granted_bytes)
        self.slabs = NULL
        self.free_start = NULL
        self.free_end = NULL
        self.held_bytes = 0
        self.granted_bytes = 0
