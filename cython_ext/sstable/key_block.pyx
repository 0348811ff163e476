"""Key blocks: reading their entries, and searching them for ascending keys, in place.

As in all blocks, neither lengths nor the order of keys are trusted (block.pyx).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from lsmstate.cython_ext.sstable.block cimport LARGEST_RAW
from lsmstate.cython_ext.base.coding cimport (
    STREAM_BYTES,
    Buffer, compare, copy_suffix, get_varint, load_u32, load_u64, reserve, shared_prefix,
)
from lsmstate.cython_ext.entries.entry_source cimport FLAG_CONTINUES, FLAG_RESET

cdef uint32_t NOWHERE = 0xFFFFFFFF

cdef extern from *:
    void __builtin_prefetch(const void*) nogil

cdef enum:
    LINE_BYTES = 64
    LINES_AHEAD = 5  # of a group that comes next, about all of it
    ROWS_OF_A_BLOCK = 1 << 28  # fewer: each takes eight bytes beside its own


cdef int parse_key_block(const uint8_t* raw, size_t size, KeyBlock* block) noexcept nogil:
    cdef const uint8_t* tail
    cdef size_t arrays, zones = 0
    if size < KEY_TAIL_BYTES:
        return -1
    tail = raw + size - KEY_TAIL_BYTES
    block.row_base = load_u64(tail)
    block.row_blocks = load_u32(tail + 8)
    block.restart_count = load_u32(tail + 12)
    block.count = load_u32(tail + 16)
    block.zone_columns = load_u32(tail + 20)  # before version 4 always 0
    if block.zone_columns > MOST_ZONES:
        return -1
    if block.zone_columns:
        zones = 4 * <size_t> block.zone_columns + <size_t> block.row_blocks * (
            4 + 16 * <size_t> block.zone_columns
        )
    arrays = <size_t> block.row_blocks * 8 + <size_t> block.restart_count * 4 + zones
    if arrays + KEY_TAIL_BYTES > size or block.restart_count == 0 or block.count == 0:
        return -1
    block.entries = raw
    block.restarts = tail - <size_t> block.restart_count * 4
    block.row_ends = block.restarts - <size_t> block.row_blocks * 8
    block.entries_end = block.zones = block.row_ends - zones
    return 0


cdef const uint8_t* next_entry(
    const KeyBlock* block, const uint8_t* place, Buffer* key, KeyEntry* entry
) except? NULL nogil:
    cdef uint64_t shared, unshared, rows, row_bytes, step, row_index
    cdef const uint8_t* end = block.entries_end
    place = get_varint(place, end, &shared)
    place = get_varint(place, end, &unshared)
    if place == NULL or shared > key.size or unshared > <uint64_t> (end - place):
        return NULL
    # Keys ascend: after the prefix shared with the previous key, an entry is greater. A damaged
    # block thus cannot make rows come out of order, into a merge's file or past a bound.
    if shared + unshared < STREAM_BYTES or not _ascends(key, shared, place, unshared):
        return NULL
    if unshared + 8 > key.capacity - shared:
        reserve(key, shared + unshared + 8 - key.size)
    copy_suffix(key.data + shared, place, unshared)  # behind the entries lies the block's tail
    key.size = shared + unshared
    place += unshared
    if place >= end:
        return NULL
    entry.flags = place[0]
    place = get_varint(place + 1, end, &rows)
    place = get_varint(place, end, &row_bytes)
    place = get_varint(place, end, &step)
    place = get_varint(place, end, &row_index)
    if place == NULL or step > <uint64_t> 0xFFFFFFFF or row_index > <uint64_t> 0xFFFFFFFF:
        return NULL
    entry.rows = rows
    entry.row_bytes = row_bytes
    entry.block_index += <uint32_t> step
    entry.row_index = <uint32_t> row_index
    return place


cdef inline bint _ascends(
    const Buffer* key, size_t shared, const uint8_t* suffix, size_t size
) noexcept nogil:
    if shared == 0:
        return key.size == 0 or compare(key.data, key.size, suffix, size) < 0
    return size != 0 and (key.size == shared or key.data[shared] < suffix[0])


cdef bint may_hold(const KeyBlock* block, const KeyEntry* entry) noexcept nogil:
    return (
        entry.flags <= (FLAG_RESET | FLAG_CONTINUES)
        and entry.rows <= <uint64_t> block.row_blocks * ROWS_OF_A_BLOCK
        and entry.row_bytes <= <uint64_t> block.row_blocks * LARGEST_RAW
    )


cdef int row_block_place(
    const KeyBlock* block, uint32_t index, uint64_t* offset, uint32_t* size
) noexcept nogil:
    cdef uint64_t start, end
    if index >= block.row_blocks:
        return -1
    start = load_u64(block.row_ends + 8 * (<size_t> index - 1)) if index else 0
    end = load_u64(block.row_ends + 8 * <size_t> index)
    if end < start or end - start > <uint64_t> 0xFFFFFFFF:
        return -1
    offset[0] = block.row_base + start
    size[0] = <uint32_t> (end - start)
    return 0


cdef const uint8_t* restart_place(const KeyBlock* block, uint32_t index) noexcept nogil:
    cdef uint32_t offset = load_u32(block.restarts + 4 * <size_t> index)
    if offset >= <size_t> (block.entries_end - block.entries):
        return NULL
    return block.entries + offset


cdef int _restart_key(
    const KeyBlock* block, uint32_t index, const uint8_t** key, size_t* size
) noexcept nogil:
    cdef uint64_t shared, unshared
    cdef const uint8_t* place = restart_place(block, index)
    place = get_varint(place, block.entries_end, &shared)
    place = get_varint(place, block.entries_end, &unshared)
    if place == NULL or shared or unshared > <uint64_t> (block.entries_end - place):
        return -1
    key[0] = place
    size[0] = unshared
    return 0


cdef int restart_before(
    const KeyBlock* block, const uint8_t* key, size_t key_size, uint32_t* found
) noexcept nogil:
    """Return the last restart whose key is not greater, or the first."""
    cdef uint32_t low = 0, high = block.restart_count - 1, middle
    cdef const uint8_t* other
    cdef size_t other_size
    while low < high:
        middle = low + (high - low + 1) // 2
        if _restart_key(block, middle, &other, &other_size):
            return -1
        if compare(other, other_size, key, key_size) <= 0:
            low = middle
        else:
            high = middle - 1
    found[0] = low
    return 0


cdef int enter_key_block(const uint8_t* raw, size_t size, KeySearch* search) noexcept nogil:
    cdef const uint8_t* first
    cdef const uint8_t* last
    cdef size_t first_size, last_size
    search.restart = search.group = NOWHERE
    if (
        parse_key_block(raw, size, &search.block)
        or _restart_key(&search.block, 0, &first, &first_size)
        or _restart_key(&search.block, search.block.restart_count - 1, &last, &last_size)
    ):
        return -1
    search.shared = shared_prefix(first, first_size, last, last_size)
    return 0


cdef int search_key_block(KeySearch* search, const uint8_t* key, size_t size) except? -1 nogil:
    cdef const KeyBlock* block = &search.block
    cdef size_t shared = search.shared
    cdef int order = -1
    if _seek_restart(search, key, size):
        return -1
    if search.restart == NOWHERE:
        return 0
    if search.restart + 1 == block.restart_count:
        shared = 0  # keys behind the last restart may share less
    if search.group == search.restart:
        order = _compare_behind(shared, search.key.data, search.key.size, key, size)
    elif _enter_group(search):
        return -1
    while order < 0 and search.place < search.group_end:
        search.place = next_entry(block, search.place, &search.key, &search.entry)
        if search.place == NULL or search.place > search.group_end:
            search.group = NOWHERE
            return -1
        order = _compare_behind(shared, search.key.data, search.key.size, key, size)
    if order:
        return 0
    # Keys ascend within a group; that its first one begins as all restarts do was not looked at.
    return 1 if compare(search.key.data, shared, key, shared) == 0 else -1


cdef inline int _enter_group(KeySearch* search) noexcept nogil:
    """Seek to the first entry of the restart's group; -1: a damaged block."""
    cdef const KeyBlock* block = &search.block
    search.place = restart_place(block, search.restart)
    search.group_end = block.entries_end
    if search.restart + 1 < block.restart_count:
        search.group_end = restart_place(block, search.restart + 1)
    if search.place == NULL or search.group_end == NULL or search.place >= search.group_end:
        return -1
    _prefetch_group(search.group_end, block.entries_end)  # the next search may go on there
    search.group = search.restart
    search.key.size = 0
    memset(&search.entry, 0, sizeof(KeyEntry))
    return 0


cdef inline void _prefetch_group(const uint8_t* start, const uint8_t* end) noexcept nogil:
    """Prefetch a group, except its first line: galloping has read the key in it."""
    cdef Py_ssize_t line, lines = min(LINES_AHEAD, (end - start) // LINE_BYTES)
    for line in range(1, lines + 1):
        __builtin_prefetch(start + line * LINE_BYTES)


cdef inline int _compare_behind(
    size_t shared, const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size
) noexcept nogil:
    """Compare two keys that both begin with the same `shared` bytes."""
    cdef size_t shorter = min(a_size, b_size)
    if shared + 8 > shorter:  # a whole word, if they have one
        shared = shorter - 8 if shorter > 8 else 0
    return compare(a + shared, a_size - shared, b + shared, b_size - shared)


cdef int _seek_restart(KeySearch* search, const uint8_t* key, size_t size) noexcept nogil:
    """Seek to the last restart whose key is not greater, if there is one; -1: a damaged block.

    Gallops from the restart of the previous search, whose key is not greater either. A key without
    the restarts' common prefix goes to the last one at once.
    """
    cdef const KeyBlock* block = &search.block
    cdef const uint8_t* other
    cdef size_t other_size, shared = search.shared
    cdef uint32_t low = search.restart, high, middle, step = 1
    if _restart_key(block, 0, &other, &other_size):
        return -1
    if low == NOWHERE:
        if compare(other, other_size, key, size) > 0:
            return 0
        low = 0
    # A key that does not begin as they do, but is not less than the first, is greater than all.
    if size < shared or compare(other, shared, key, shared) != 0:
        search.restart = block.restart_count - 1
        return 0
    high = low + 1
    while high < block.restart_count:
        if _restart_key(block, high, &other, &other_size) or other_size < shared:
            return -1
        if _compare_behind(shared, other, other_size, key, size) > 0:
            break
        low = high
        step *= 2
        high = low + step
    high = min(high, block.restart_count)
    while low + 1 < high:
        middle = low + (high - low) // 2
        if _restart_key(block, middle, &other, &other_size) or other_size < shared:
            return -1
        if _compare_behind(shared, other, other_size, key, size) <= 0:
            low = middle
        else:
            high = middle
    search.restart = low
    return 0
