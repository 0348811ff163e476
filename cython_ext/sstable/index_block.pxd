from libc.stdint cimport uint8_t, uint32_t

from lsmstate.cython_ext.base.coding cimport Buffer


cdef struct IndexBlock:    # sorted (key, payload of fixed size): index partitions and the top
    const uint8_t* data
    const uint8_t* offsets
    uint32_t count
    uint32_t payload_bytes
    size_t size

# What the index has for a block instead of its last key: as few bytes as are not less than this and
# less than the key that follows. The last key itself if that is no longer, or `following` is NULL.
cdef int put_separator(
    Buffer* target, const Buffer* last, const uint8_t* following, size_t following_size
) except -1 nogil
# Whether an index block under construction has enough.
cdef bint is_large_index(const Buffer* entries, const Buffer* offsets) noexcept nogil
# Begin an entry; its payload is put behind it.
cdef int put_index_key(Buffer* entries, Buffer* offsets, const Buffer* key) except -1 nogil
# The whole block of these entries.
cdef int put_index_block(Buffer* raw, const Buffer* entries, const Buffer* offsets) except -1 nogil
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
