"""Probe of one SSTable: where the rows of a sorted batch of keys lie, without reading a row.

Partitions, key blocks and keys are visited in order, so each block is loaded at most once per
batch. The filter of a partition is checked before its index is read.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from lsmstate.cython_ext.base.atomic cimport atomic_count
from lsmstate.cython_ext.sstable.block cimport BLOCK_FILTER, BLOCK_INDEX, BLOCK_KEYS, BLOCK_TOP
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.sstable.bloom cimport may_contain, prefetch_filter
from lsmstate.cython_ext.base.coding cimport Buffer, compare, load_u32, load_u64, mix_stream, release
from lsmstate.cython_ext.entries.entry_source cimport FLAG_CONTINUES
from lsmstate.cython_ext.sstable.index_block cimport IndexBlock, index_entry, index_search, parse_index_block
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyEntry, KeySearch, enter_key_block, may_hold, next_entry, row_block_place, search_key_block,
)
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.sstable.sst_reader cimport INDEX_PAYLOAD, USE_PROBE, Sst


cdef extern from *:
    void __builtin_prefetch(const void*) nogil

cdef enum:
    AHEAD_KEYS = 8    # whose part of the filter is asked for before it is looked at
    LINE_BYTES = 64


cdef struct Prober:
    uint32_t partition
    CachedBlock* filter
    CachedBlock* index_block
    uint64_t index_offset
    IndexBlock index
    uint32_t index_place
    CachedBlock* key_block
    uint64_t key_offset
    uint32_t key_size
    KeySearch search
    ProbeCounters counters


cdef Py_ssize_t probe_sst(
    Sst sst, KeyBatch keys, const uint32_t* positions, Py_ssize_t count, Py_ssize_t start,
    HitList* hits, ProbeCounters* counters
) except -1 nogil:
    cdef Prober prober
    memset(&prober, 0, sizeof(Prober))
    prober.partition = <uint32_t> -1
    try:
        return _walk(sst, &prober, keys, positions, count, start, hits)
    finally:
        sst.cache.unpin(prober.filter)
        sst.cache.unpin(prober.index_block)
        sst.cache.unpin(prober.key_block)
        release(&prober.search.key)
        atomic_count(&sst.filter_checks, prober.counters.filter_checks)
        atomic_count(&sst.filter_negatives, prober.counters.filter_negatives)
        counters.visited += prober.counters.visited
        counters.filter_checks += prober.counters.filter_checks
        counters.filter_negatives += prober.counters.filter_negatives
        counters.false_positives += prober.counters.false_positives


cdef Py_ssize_t _walk(
    Sst sst, Prober* prober, KeyBatch keys, const uint32_t* positions, Py_ssize_t count,
    Py_ssize_t start, HitList* hits
) except -1 nogil:
    """Visit partitions, key blocks and keys in order; each block is loaded at most once."""
    cdef Py_ssize_t i
    cdef size_t position, key_size
    cdef const uint8_t* key
    cdef long found, place = 0
    cdef const uint8_t* payload = NULL
    cdef const uint8_t* last
    cdef size_t last_size
    cdef uint32_t stream
    cdef int state
    for i in range(start, count):
        position = positions[i]
        key = keys.data + keys.offsets[position]
        key_size = keys.offsets[position + 1] - keys.offsets[position]
        place = index_search(&sst.top, <uint32_t> place, key, key_size)
        if place < 0:
            sst.damaged(sst._sections[0], BLOCK_TOP)
        if place >= sst.top.count:
            return i
        if <uint32_t> place != prober.partition:
            _enter_partition(sst, prober, <uint32_t> place)
        prober.counters.visited += 1
        if prober.filter != NULL:
            prober.counters.filter_checks += 1
            stream = (<uint32_t> key[0] << 8) | key[1]
            if i + AHEAD_KEYS < count:
                prefetch_filter(
                    prober.filter.data, prober.filter.size,
                    mix_stream(keys.hashes[positions[i + AHEAD_KEYS]], stream),
                )
            if not may_contain(
                prober.filter.data, prober.filter.size,
                mix_stream(keys.hashes[position], stream),
            ):
                prober.counters.filter_negatives += 1
                continue
        if prober.index_block == NULL:
            _load_index(sst, prober)
        found = index_search(&prober.index, prober.index_place, key, key_size)
        if found < 0 or found >= prober.index.count:
            sst.damaged(prober.index_offset, BLOCK_INDEX)
        if prober.key_block == NULL or <uint32_t> found != prober.index_place:
            prober.index_place = <uint32_t> found
            if index_entry(&prober.index, prober.index_place, &last, &last_size, &payload):
                sst.damaged(prober.index_offset, BLOCK_INDEX)
            _load_keys(sst, prober, load_u64(payload), load_u32(payload + 8))
        state = search_key_block(&prober.search, key, key_size)
        if state < 0:
            sst.damaged(prober.key_offset, BLOCK_KEYS)
        if state:
            _add_hit(sst, prober, hits, &prober.search.entry, <uint32_t> position)
            if prober.search.entry.flags & FLAG_CONTINUES:
                _add_segments(
                    sst, prober, hits, <uint32_t> place, <uint32_t> position, key, key_size
                )
        elif prober.filter != NULL:
            prober.counters.false_positives += 1
    return count


cdef int _enter_partition(Sst sst, Prober* prober, uint32_t partition) except -1 nogil:
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t key_size
    sst.cache.unpin(prober.filter)
    sst.cache.unpin(prober.index_block)
    sst.cache.unpin(prober.key_block)
    prober.filter = NULL
    prober.index_block = NULL
    prober.key_block = NULL
    prober.index_place = 0
    prober.partition = partition
    if index_entry(&sst.top, partition, &key, &key_size, &payload):
        sst.damaged(sst._sections[0], BLOCK_TOP)
    if load_u32(payload + 20):
        prober.filter = sst.load(
            load_u64(payload + 12), load_u32(payload + 20), BLOCK_FILTER, USE_PROBE
        )
    return 0


cdef int _load_index(Sst sst, Prober* prober) except -1 nogil:
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t key_size
    if index_entry(&sst.top, prober.partition, &key, &key_size, &payload):
        sst.damaged(sst._sections[0], BLOCK_TOP)
    prober.index_offset = load_u64(payload)
    prober.index_block = sst.load(
        prober.index_offset, load_u32(payload + 8), BLOCK_INDEX, USE_PROBE
    )
    if parse_index_block(
        prober.index_block.data, prober.index_block.size, INDEX_PAYLOAD, &prober.index
    ):
        sst.damaged(prober.index_offset, BLOCK_INDEX)
    return 0


cdef int _load_keys(Sst sst, Prober* prober, uint64_t offset, uint32_t size) except -1 nogil:
    cdef const uint8_t* line
    sst.cache.unpin(prober.key_block)
    prober.key_block = NULL
    prober.key_block = sst.load(offset, size, BLOCK_KEYS, USE_PROBE)
    prober.key_offset = offset
    prober.key_size = size
    if enter_key_block(prober.key_block.data, prober.key_block.size, &prober.search):
        sst.damaged(offset, BLOCK_KEYS)
    line = prober.search.block.restarts
    while line < &prober.search.block.restarts[<size_t> prober.search.block.restart_count * 4]:
        __builtin_prefetch(line)  # what a search looks at first
        line += LINE_BYTES
    return 0


cdef int _add_hit(
    Sst sst, Prober* prober, HitList* hits, const KeyEntry* entry, uint32_t position
) except -1 nogil:
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
    hit.key_block = prober.key_offset
    hit.key_block_size = prober.key_size
    hit.block_index = entry.block_index
    hit.row_index = entry.row_index
    hit.row_block = 0
    hit.row_block_size = 0
    if not may_hold(&prober.search.block, entry) or (
        entry.rows and row_block_place(
            &prober.search.block, entry.block_index, &hit.row_block, &hit.row_block_size
        )
    ):
        sst.damaged(prober.key_offset, BLOCK_KEYS)
    hits.count += 1
    return 0


cdef int _add_segments(
    Sst sst, Prober* prober, HitList* hits, uint32_t partition, uint32_t position,
    const uint8_t* key, size_t key_size
) except -1 nogil:
    """Add more segments of a huge key: each is the first entry of the following key block.

    All of them lie in the partition in which the key ends, because a partition is closed only after
    a whole key.
    """
    cdef KeyEntry entry
    cdef Buffer* found
    cdef const uint8_t* last
    cdef const uint8_t* payload
    cdef size_t last_size
    cdef uint32_t first = prober.index_place
    while True:
        prober.index_place += 1
        if index_entry(&prober.index, prober.index_place, &last, &last_size, &payload):
            sst.damaged(prober.index_offset, BLOCK_INDEX)
        _load_keys(sst, prober, load_u64(payload), load_u32(payload + 8))
        found = &prober.search.key
        found.size = 0
        memset(&entry, 0, sizeof(KeyEntry))
        if next_entry(
            &prober.search.block, prober.search.block.entries, found, &entry
        ) == NULL or compare(found.data, found.size, key, key_size) != 0:
            sst.damaged(prober.key_offset, BLOCK_KEYS)
        _add_hit(sst, prober, hits, &entry, position)
        if not entry.flags & FLAG_CONTINUES:
            break
    # The same key may be asked for again: let the next search begin where this one did.
    sst.cache.unpin(prober.key_block)
    prober.key_block = NULL
    prober.index_place = first
    return 0
