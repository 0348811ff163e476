"""A place in one SSTable that moves forward: from partition to partition, key block to key block,
entry to entry. Each block is loaded when it is entered, and verified by who loads it.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from lsmstate.cython_ext.base.coding cimport compare, load_u32, load_u64, release
from lsmstate.cython_ext.sstable.block cimport BLOCK_INDEX, BLOCK_KEYS, BLOCK_TOP
from lsmstate.cython_ext.sstable.index_block cimport index_entry, index_search, parse_index_block
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyEntry, KeySearch, enter_key_block, may_hold, next_entry, restart_place, row_block_place,
    search_key_block,
)
from lsmstate.cython_ext.sstable.sst_reader cimport INDEX_PAYLOAD, USE_PROBE, Sst

cdef uint32_t NOWHERE = 0xFFFFFFFF


cdef void begin_walker(SstWalker* walker) noexcept nogil:
    memset(walker, 0, sizeof(SstWalker))
    walker.partition = NOWHERE


cdef void end_walker(Sst sst, SstWalker* walker) noexcept nogil:
    sst.cache.unpin(walker.index_block)
    sst.cache.unpin(walker.key_block)
    release(&walker.search.key)


cdef int load_index(Sst sst, SstWalker* walker, uint32_t partition) except -1 nogil:
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


cdef int load_keys(Sst sst, SstWalker* walker, uint32_t place) except -1 nogil:
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
    walker.is_new = True
    return 0


cdef bint find_block(
    Sst sst, SstWalker* walker, const uint8_t* key, size_t size
) except -1 nogil:
    cdef uint32_t start = 0 if walker.partition == NOWHERE else walker.partition
    cdef long found = index_search(&sst.top, start, key, size)
    if found < 0:
        sst.damaged(sst._sections[0], BLOCK_TOP)
    if found >= sst.top.count:
        return False
    if <uint32_t> found != walker.partition:
        load_index(sst, walker, <uint32_t> found)
    found = index_search(&walker.index, walker.index_place, key, size)
    if found < 0 or found >= walker.index.count:
        sst.damaged(walker.index_offset, BLOCK_INDEX)
    if walker.key_block == NULL or <uint32_t> found != walker.index_place:
        load_keys(sst, walker, <uint32_t> found)
    return True


cdef bint next_block(Sst sst, SstWalker* walker) except -1 nogil:
    if walker.index_place + 1 < walker.index.count:
        load_keys(sst, walker, walker.index_place + 1)
        return True
    if walker.partition + 1 < sst.top.count:
        load_index(sst, walker, walker.partition + 1)
        load_keys(sst, walker, 0)
        return True
    return False


cdef bint previous_block(Sst sst, SstWalker* walker) except -1 nogil:
    if walker.index_place:
        load_keys(sst, walker, walker.index_place - 1)
        return True
    if walker.partition == 0:
        return False
    load_index(sst, walker, walker.partition - 1)
    if walker.index.count == 0:
        sst.damaged(walker.index_offset, BLOCK_INDEX)
    load_keys(sst, walker, walker.index.count - 1)
    return True


cdef bint is_in_block(
    Sst sst, SstWalker* walker, const uint8_t* key, size_t size
) except -1 nogil:
    cdef const uint8_t* last
    cdef const uint8_t* payload
    cdef size_t last_size
    if index_entry(&walker.index, walker.index_place, &last, &last_size, &payload):
        sst.damaged(walker.index_offset, BLOCK_INDEX)
    return compare(key, size, last, last_size) <= 0


cdef bint seek_entry(Sst sst, SstWalker* walker, const uint8_t* key, size_t size) except -1 nogil:
    cdef KeySearch* search = &walker.search
    cdef int state = search_key_block(search, key, size)
    if state < 0:
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    walker.stands = True
    if state:
        return True
    if search.restart == NOWHERE:
        return enter_group(sst, walker, 0) and advance(sst, walker)
    if search.group == search.restart and compare(
        search.key.data, search.key.size, key, size
    ) >= 0:
        return True
    return advance(sst, walker)  # the group ends before the key


cdef bint enter_group(Sst sst, SstWalker* walker, uint32_t restart) except -1 nogil:
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


cdef bint advance(Sst sst, SstWalker* walker) except -1 nogil:
    cdef KeySearch* search = &walker.search
    if search.place >= search.group_end:
        if search.restart + 1 < search.block.restart_count:
            enter_group(sst, walker, search.restart + 1)
        elif next_block(sst, walker):
            enter_group(sst, walker, 0)
        else:
            return False
    search.place = next_entry(&search.block, search.place, &search.key, &search.entry)
    if search.place == NULL or search.place > search.group_end:
        search.group = NOWHERE
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    return True


cdef int put_hit(
    Sst sst, const SstWalker* walker, uint32_t position, HitList* hits
) except -1 nogil:
    cdef const KeySearch* search = &walker.search
    cdef const KeyEntry* entry = &search.entry
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
    hit.position = position
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
    hits.count += 1
    return 0
