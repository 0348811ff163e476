from libc.stdint cimport uint8_t, uint32_t, uint64_t

# Sort positions by the bytes of their keys, ties by the place they had; 0, or -1: no memory.
# Key i is data[offsets[i] + skip : offsets[i + 1]].
cdef int sort_keys(
    const uint8_t* data, const uint64_t* offsets, uint64_t skip, uint32_t* order, Py_ssize_t n
) noexcept nogil
