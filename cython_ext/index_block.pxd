from libc.stdint cimport uint8_t, uint32_t


cdef struct IndexBlock:    # sorted (last key, payload of fixed size): index partitions and the top
    const uint8_t* data
    const uint8_t* offsets
    uint32_t count
    uint32_t payload_bytes
    size_t size

cdef int parse_index_block(
    const uint8_t* raw, size_t size, uint32_t payload_bytes, IndexBlock* block
) noexcept nogil
# Key and payload of entry i; -1 if it is damaged.
cdef int index_entry(
    const IndexBlock* block, uint32_t i, const uint8_t** key, size_t* key_size,
    const uint8_t** payload
) noexcept nogil
# The first entry from `start` on whose key is not less (count if none); -1 damaged.
cdef long index_search(
    const IndexBlock* block, uint32_t start, const uint8_t* key, size_t key_size
) noexcept nogil
