from libc.stdint cimport int64_t, uint8_t

cdef struct Region:
    int64_t users
    size_t size    # of the mapping, this record included

# Room for `size` bytes, with one user; NULL: no memory, or malloc serves as well.
cdef Region* open_region(size_t size) noexcept nogil
# Its first byte; aligned to 64, as Arrow wants buffers to be.
cdef uint8_t* region_start(Region* region) noexcept nogil
# Whether a place lies there; nothing lies in NULL.
cdef bint in_region(const Region* region, const void* place) noexcept nogil
# One more user of a region, or of NULL; it.
cdef Region* enter_region(Region* region) noexcept nogil
# One user less; the last one lets it go.
cdef void leave_region(Region* region) noexcept nogil
