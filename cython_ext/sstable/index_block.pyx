"""Index blocks, read in place: the index of a partition, and the top index; also the separators in
them.

As in block.pyx, no length is trusted.
"""

from libc.stdint cimport uint8_t, uint32_t

from lsmstate.cython_ext.base.coding cimport Buffer, compare, load_u32, put_bytes, put_u32, shared_prefix

cdef enum:
    # An index block is read, and held, as a whole. A block of few long keys is larger: otherwise
    # the top index would hold nearly all of them.
    ENOUGH_BYTES = 64 << 10
    ENOUGH_ENTRIES = 16


cdef int put_separator(
    Buffer* target, const Buffer* last, const uint8_t* following, size_t following_size
) except -1 nogil:
    cdef size_t size
    target.size = 0
    if following != NULL:
        size = shared_prefix(last.data, last.size, following, following_size) + 1
        if size < last.size and size < following_size:
            return put_bytes(target, following, size)
    return put_bytes(target, last.data, last.size)


cdef bint is_large_index(const Buffer* entries, const Buffer* offsets) noexcept nogil:
    return entries.size >= ENOUGH_BYTES and offsets.size >= ENOUGH_ENTRIES * 4


cdef int put_index_key(Buffer* entries, Buffer* offsets, const Buffer* key) except -1 nogil:
    put_u32(offsets, <uint32_t> entries.size)
    put_u32(entries, <uint32_t> key.size)
    return put_bytes(entries, key.data, key.size)


cdef int put_index_block(Buffer* raw, const Buffer* entries, const Buffer* offsets) except -1 nogil:
    put_bytes(raw, entries.data, entries.size)
    put_bytes(raw, offsets.data, offsets.size)
    return put_u32(raw, <uint32_t> (offsets.size // 4))


cdef int parse_index_block(
    const uint8_t* raw, size_t size, uint32_t payload_bytes, IndexBlock* block
) noexcept nogil:
    if size < 4:
        return -1
    block.count = load_u32(raw + size - 4)
    if <size_t> block.count * 4 + 4 > size:
        return -1
    block.data = raw
    block.offsets = raw + size - 4 - <size_t> block.count * 4
    block.payload_bytes = payload_bytes
    block.size = block.offsets - raw
    return 0


cdef int index_entry(
    const IndexBlock* block, uint32_t i, const uint8_t** key, size_t* key_size,
    const uint8_t** payload
) noexcept nogil:
    cdef size_t offset
    cdef size_t size
    if i >= block.count:
        return -1
    offset = load_u32(block.offsets + 4 * <size_t> i)
    if offset + 4 > block.size:
        return -1
    size = load_u32(block.data + offset)
    if offset + 4 + size + block.payload_bytes > block.size:
        return -1
    key[0] = block.data + offset + 4
    key_size[0] = size
    payload[0] = key[0] + size
    return 0


cdef long index_search(
    const IndexBlock* block, uint32_t start, const uint8_t* key, size_t key_size
) noexcept nogil:
    cdef uint32_t low = start, high, middle, step = 1
    cdef const uint8_t* other
    cdef const uint8_t* payload
    cdef size_t other_size
    # Gallop: neighbours in a sorted batch are mostly near.
    high = low
    while high < block.count:
        if index_entry(block, high, &other, &other_size, &payload):
            return -1
        if compare(other, other_size, key, key_size) >= 0:
            break
        low = high + 1
        high = low + step
        step *= 2
    if high > block.count:
        high = block.count
    while low < high:
        middle = low + (high - low) // 2
        if index_entry(block, middle, &other, &other_size, &payload):
            return -1
        if compare(other, other_size, key, key_size) < 0:
            low = middle + 1
        else:
            high = middle
    return low
