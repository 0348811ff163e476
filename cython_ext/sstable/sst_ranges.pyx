"""Walk of one SSTable over ranges of keys: where the rows of all keys in them lie, without reading
a row.

The ranges are disjoint and ascend, so partitions, key blocks and entries are visited in order. From
one range to the next the walk gallops, over index entries, restarts, or ranges without a key.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from lsmstate.cython_ext.base.coding cimport (
    Buffer, compare, load_u32, load_u64, put_bytes, put_u64, release,
)
from lsmstate.cython_ext.sstable.block cimport BLOCK_INDEX, BLOCK_KEYS, BLOCK_TOP
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.sstable.index_block cimport (
    IndexBlock, index_entry, index_search, parse_index_block,
)
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyEntry, KeySearch, enter_key_block, may_hold, next_entry, restart_place, row_block_place,
    search_key_block,
)
from lsmstate.cython_ext.sstable.sst_probe cimport Hit, HitList
from lsmstate.cython_ext.sstable.sst_reader cimport INDEX_PAYLOAD, USE_PROBE, Sst

cdef uint32_t NOWHERE = 0xFFFFFFFF


cdef struct Walker:
    uint32_t partition
    CachedBlock* index_block
    uint64_t index_offset
    IndexBlock index
    uint32_t index_place
    CachedBlock* key_block
    uint64_t key_offset
    uint32_t key_size
    KeySearch search         # stands at an entry


cdef Py_ssize_t segment_behind(
    const Segments* segments, Py_ssize_t start, const uint8_t* key, size_t size
) noexcept nogil:
    cdef Py_ssize_t low = start, high = start, middle, step = 1
    while high < segments.count and not _ends_behind(segments, high, key, size):
        low = high + 1
        high += step
        step *= 2
    high = min(high, segments.count)
    while low < high:
        middle = low + (high - low) // 2
        if _ends_behind(segments, middle, key, size):
            high = middle
        else:
            low = middle + 1
    return low


cdef inline bint _ends_behind(
    const Segments* segments, Py_ssize_t place, const uint8_t* key, size_t size
) noexcept nogil:
    cdef const uint64_t* at = segments.offsets + 2 * place + 1
    return compare(segments.data + at[0], at[1] - at[0], key, size) > 0


cdef bint is_enough(Taken* taken, const uint8_t* key, size_t size) except -1 nogil:
    cdef size_t count = taken.ends.size // 8
    cdef size_t start
    if taken.has_bound and compare(key, size, taken.bound.data, taken.bound.size) > 0:
        taken.is_full = True
        return True
    if count == taken.begun or (
        count - taken.begun < taken.most_keys
        and taken.keys.size - taken.begun_bytes < taken.most_bytes
    ):
        return False
    # All entries of a key are taken together: it may have one in each of several key blocks.
    start = load_u64(taken.ends.data + 8 * (count - 2)) if count > 1 else 0
    if compare(key, size, taken.keys.data + start, taken.keys.size - start) == 0:
        return False
    taken.bound.size = 0
    put_bytes(&taken.bound, taken.keys.data + start, taken.keys.size - start)
    taken.has_bound = taken.is_full = True
    return True


cdef int take_key(Taken* taken, const uint8_t* key, size_t size) except -1 nogil:
    put_bytes(&taken.keys, key, size)
    return put_u64(&taken.ends, taken.keys.size)


cdef Py_ssize_t walk_sst(
    Sst sst, const Segments* segments, Py_ssize_t start, const Buffer* least, Taken* taken
) except -1 nogil:
    cdef Walker walker
    memset(&walker, 0, sizeof(Walker))
    walker.partition = NOWHERE
    try:
        return _walk(sst, &walker, segments, start, least, taken)
    finally:
        sst.cache.unpin(walker.index_block)
        sst.cache.unpin(walker.key_block)
        release(&walker.search.key)


cdef Py_ssize_t _walk(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t start, const Buffer* least,
    Taken* taken
) except -1 nogil:
    cdef Py_ssize_t place = start
    cdef const uint64_t* at
    cdef const uint8_t* low
    cdef size_t low_size
    cdef Buffer* key = &walker.search.key
    cdef bint stands = False
    while place < segments.count:
        at = segments.offsets + 2 * place
        low = segments.data + at[0]
        low_size = at[1] - at[0]
        if place == start and compare(low, low_size, least.data, least.size) < 0:
            low = least.data
            low_size = least.size
        if not stands or compare(key.data, key.size, low, low_size) < 0:
            if not _seek(sst, walker, low, low_size):
                return place
            stands = True
        while compare(key.data, key.size, segments.data + at[1], at[2] - at[1]) < 0:
            if is_enough(taken, key.data, key.size):
                return place
            _take(sst, walker, taken)
            if not _advance(sst, walker):
                return place
        place = segment_behind(segments, place + 1, key.data, key.size)
    return place


cdef bint _seek(Sst sst, Walker* walker, const uint8_t* key, size_t size) except -1 nogil:
    """Stand at the first entry whose key is not less than this, which is greater than the current
    one; False: the file has none."""
    cdef KeySearch* search = &walker.search
    cdef uint32_t start = 0 if walker.partition == NOWHERE else walker.partition
    cdef long found = index_search(&sst.top, start, key, size)
    cdef int state
    if found < 0:
        sst.damaged(sst._sections[0], BLOCK_TOP)
    if found >= sst.top.count:
        return False
    if <uint32_t> found != walker.partition:
        _load_index(sst, walker, <uint32_t> found)
    found = index_search(&walker.index, walker.index_place, key, size)
    if found < 0 or found >= walker.index.count:
        sst.damaged(walker.index_offset, BLOCK_INDEX)
    if walker.key_block == NULL or <uint32_t> found != walker.index_place:
        _load_keys(sst, walker, <uint32_t> found)
    state = search_key_block(search, key, size)
    if state < 0:
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    if state:
        return True
    if search.restart == NOWHERE:
        return _enter_group(sst, walker, 0) and _advance(sst, walker)
    if search.group == search.restart and compare(
        search.key.data, search.key.size, key, size
    ) >= 0:
        return True
    return _advance(sst, walker)  # the group ends before the key


cdef int _load_index(Sst sst, Walker* walker, uint32_t partition) except -1 nogil:
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t key_size
    sst.cache.unpin(walker.index_block)
    sst.cache.unpin(walker.key_block)
    walker.index_block = walker.key_block = NULL
    walker.partition = partition
    walker.index_place = 0
    if index_entry(&sst.top, partition, &key, &key_size, &payload):
        sst.damaged(sst._sections[0], BLOCK_TOP)
    walker.index_offset = load_u64(payload)
    walker.index_block = sst.load(
        walker.index_offset, load_u32(payload + 8), BLOCK_INDEX, USE_PROBE
    )
    if parse_index_block(
        walker.index_block.data, walker.index_block.size, INDEX_PAYLOAD, &walker.index
    ):
        sst.damaged(walker.index_offset, BLOCK_INDEX)
    return 0


cdef int _load_keys(Sst sst, Walker* walker, uint32_t place) except -1 nogil:
    """Load a key block; stand before its first entry."""
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t key_size
    sst.cache.unpin(walker.key_block)
    walker.key_block = NULL
    walker.index_place = place
    if index_entry(&walker.index, place, &key, &key_size, &payload):
        sst.damaged(walker.index_offset, BLOCK_INDEX)
    walker.key_offset = load_u64(payload)
    walker.key_size = load_u32(payload + 8)
    walker.key_block = sst.load(walker.key_offset, walker.key_size, BLOCK_KEYS, USE_PROBE)
    if enter_key_block(walker.key_block.data, walker.key_block.size, &walker.search):
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    return 0


cdef bint _enter_group(Sst sst, Walker* walker, uint32_t restart) except -1 nogil:
    """Stand before the first entry of a restart's group."""
    cdef KeySearch* search = &walker.search
    search.place = restart_place(&search.block, restart)
    search.group_end = search.block.entries_end
    if restart + 1 < search.block.restart_count:
        search.group_end = restart_place(&search.block, restart + 1)
    if search.place == NULL or search.group_end == NULL or search.place >= search.group_end:
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    search.restart = search.group = restart
    if restart == 0:
        search.key.size = 0
    memset(&search.entry, 0, sizeof(KeyEntry))
    return True


cdef bint _advance(Sst sst, Walker* walker) except -1 nogil:
    """Stand at the next entry; False: the file has no more."""
    cdef KeySearch* search = &walker.search
    if search.place >= search.group_end:
        if search.restart + 1 < search.block.restart_count:
            _enter_group(sst, walker, search.restart + 1)
        elif walker.index_place + 1 < walker.index.count:
            _load_keys(sst, walker, walker.index_place + 1)
            _enter_group(sst, walker, 0)
        elif walker.partition + 1 < sst.top.count:
            _load_index(sst, walker, walker.partition + 1)
            _load_keys(sst, walker, 0)
            _enter_group(sst, walker, 0)
        else:
            return False
    search.place = next_entry(&search.block, search.place, &search.key, &search.entry)
    if search.place == NULL or search.place > search.group_end:
        search.group = NOWHERE
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    return True


cdef int _take(Sst sst, Walker* walker, Taken* taken) except -1 nogil:
    cdef KeySearch* search = &walker.search
    cdef const KeyEntry* entry = &search.entry
    cdef HitList* hits = &taken.hits
    cdef Hit* hit
    cdef void* items
    cdef size_t capacity
    if hits.count == hits.capacity:
        capacity = hits.capacity * 2 if hits.capacity else 64
        items = realloc(hits.items, capacity * sizeof(Hit))
        if items == NULL:
            with gil:
                raise MemoryError(f"cannot allocate {capacity * sizeof(Hit)} bytes")
        hits.items = <Hit*> items
        hits.capacity = capacity
    hit = &hits.items[hits.count]
    hit.position = <uint32_t> (taken.ends.size // 8)
    hit.flags = entry.flags
    hit.rows = entry.rows
    hit.row_bytes = entry.row_bytes
    hit.key_block = walker.key_offset
    hit.key_block_size = walker.key_size
    hit.block_index = entry.block_index
    hit.row_index = entry.row_index
    hit.row_block = 0
    hit.row_block_size = 0
    if not may_hold(&search.block, entry) or (
        entry.rows and row_block_place(
            &search.block, entry.block_index, &hit.row_block, &hit.row_block_size
        )
    ):
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    take_key(taken, search.key.data, search.key.size)
    hits.count += 1
    return 0
