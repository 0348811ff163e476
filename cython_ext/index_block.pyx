"""Index blocks, read in place: the index of a partition, and the top index.

As in block.pyx nothing here trusts a length.
"""

from libc.stdint cimport uint8_t, uint32_t

from cython_ext.coding cimport compare, load_u32


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
