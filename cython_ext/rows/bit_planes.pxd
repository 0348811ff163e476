from libc.stdint cimport uint8_t

# Room for `planes` packed planes of `size` bytes each.
cdef size_t planes_bound(size_t planes, size_t size) noexcept nogil
# Pack planes that lie one behind the other; how many bytes that took.
cdef size_t pack_planes(
    const uint8_t* source, size_t planes, size_t size, uint8_t* target
) noexcept nogil
# 0 if the packed planes are exactly `packed` bytes long, -1 if they are damaged.
cdef int unpack_planes(
    const uint8_t* source, size_t packed, size_t planes, size_t size, uint8_t* target
) noexcept nogil
