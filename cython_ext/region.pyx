"""Memory for the columns of one large batch: a mapping in huge pages that they share.

A small page that was never touched costs the system more than filling it does, huge ones a
sixteenth of that a byte (bench/README.md). Whoever holds a part of a region is one of its users; the
last one lets it go. Users come and go in any thread. Batches are mostly read one after another, so
one region of at most SPARE_BYTES is kept for the next.
"""

from libc.stdint cimport int64_t, uint8_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #ifndef MADV_HUGEPAGE
    #define MADV_HUGEPAGE 14
    #endif
    #define REGION_PAGE ((size_t)2 << 20)

    /* Whole huge pages. */
    static void* map_pages(size_t size) {
        char* mapped = mmap(0, size + REGION_PAGE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return 0;
        size_t before = -(uintptr_t)mapped & (REGION_PAGE - 1);
        if (before) munmap(mapped, before);
        munmap(mapped + before + size, REGION_PAGE - before);
        madvise(mapped + before, size, MADV_HUGEPAGE);
        return mapped + before;
    }
    static void* spare_region;
    #define swap_spare(region) __atomic_exchange_n(&spare_region, (region), __ATOMIC_ACQ_REL)
    #define count_users(region, more) \
        __atomic_add_fetch(&(region)->users, (more), __ATOMIC_ACQ_REL)
    """
    size_t REGION_PAGE
    void* map_pages(size_t size) noexcept nogil
    int munmap(void* place, size_t size) noexcept nogil
    void* swap_spare(void* region) noexcept nogil
    int64_t count_users(Region* region, int64_t more) noexcept nogil

cdef enum:
    HEAD_BYTES = 64
    LEAST_BYTES = 1 << 20  # half of a huge page: less may come out of what malloc has
    SPARE_BYTES = 4 << 20


cdef Region* open_region(size_t size) noexcept nogil:
    cdef size_t wanted = (size + HEAD_BYTES + REGION_PAGE - 1) & ~(REGION_PAGE - 1)
    cdef Region* region
    if size < LEAST_BYTES:
        return NULL
    region = <Region*> swap_spare(NULL)
    if region == NULL or not wanted <= region.size <= 2 * wanted:
        _keep_spare(region)
        region = <Region*> map_pages(wanted)
        if region == NULL:
            return NULL
        region.size = wanted
    region.users = 1
    return region


cdef void _keep_spare(Region* region) noexcept nogil:
    """For the next batch, in place of one that was kept; without need of a kept one it goes."""
    if region != NULL and region.size <= SPARE_BYTES:
        region = <Region*> swap_spare(region)
    if region != NULL:
        munmap(region, region.size)


cdef uint8_t* region_start(Region* region) noexcept nogil:
    return <uint8_t*> region + HEAD_BYTES


cdef bint in_region(const Region* region, const void* place) noexcept nogil:
    if region == NULL:
        return False
    return <const uint8_t*> region <= <const uint8_t*> place < <const uint8_t*> region + region.size


cdef Region* enter_region(Region* region) noexcept nogil:
    if region != NULL:
        count_users(region, 1)
    return region


cdef void leave_region(Region* region) noexcept nogil:
    if region != NULL and count_users(region, -1) == 0:
        _keep_spare(region)
