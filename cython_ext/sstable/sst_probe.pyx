"""Probe of one SSTable: where the rows of a sorted batch of keys lie, without reading a row.

Partitions, key blocks and keys are visited in order, so each block is loaded at most once per
batch. The filter of a partition is checked before its index is read.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from lsmstate.cython_ext.base.atomic cimport atomic_count
from lsmstate.cython_ext.base.coding cimport Buffer, compare, load_u32, load_u64, mix_stream
from lsmstate.cython_ext.base.prefetch cimport prefetch_line
from lsmstate.cython_ext.entries.entry_source cimport FLAG_CONTINUES
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.sstable.block cimport BLOCK_FILTER, BLOCK_INDEX, BLOCK_KEYS, BLOCK_TOP
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.sstable.bloom cimport may_contain, prefetch_filter
from lsmstate.cython_ext.sstable.index_block cimport index_entry, index_search
from lsmstate.cython_ext.sstable.key_block cimport KeyEntry, next_entry, search_key_block
from lsmstate.cython_ext.sstable.sst_reader cimport USE_PROBE, Sst
from lsmstate.cython_ext.sstable.sst_walker cimport (
    SstWalker, begin_walker, end_walker, load_index, load_keys, put_hit,
)

cdef enum:
    AHEAD_KEYS = 8    # whose part of the filter is asked for before it is looked at
    LINE_BYTES = 64


cdef struct Prober:
    uint32_t partition
    CachedBlock* filter
    SstWalker at          # in the partition, once its filter did not say no
    ProbeCounters counters


cdef Py_ssize_t probe_sst(
    Sst sst, KeyBatch keys, const uint32_t* positions, Py_ssize_t count, Py_ssize_t start,
    HitList* hits, ProbeCounters* counters
) except -1 nogil:
    cdef Prober prober
    memset(&prober, 0, sizeof(Prober))
    prober.partition = <uint32_t> -1
    begin_walker(&prober.at)
    try:
        return _walk(sst, &prober, keys, positions, count, start, hits)
    finally:
        sst.cache.unpin(prober.filter)
        end_walker(sst, &prober.at)
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
    cdef SstWalker* at = &prober.at
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
        if at.index_block == NULL:
            load_index(sst, at, prober.partition)
        found = index_search(&at.index, at.index_place, key, key_size)
        if found < 0 or found >= at.index.count:
            sst.damaged(at.index_offset, BLOCK_INDEX)
        if at.key_block == NULL or <uint32_t> found != at.index_place:
            _enter_keys(sst, at, <uint32_t> found)
        state = search_key_block(&at.search, key, key_size)
        if state < 0:
            sst.damaged(at.key_offset, BLOCK_KEYS)
        if state:
            put_hit(sst, at, <uint32_t> position, hits)
            if at.search.entry.flags & FLAG_CONTINUES:
                _add_segments(sst, at, hits, <uint32_t> position, key, key_size)
        elif prober.filter != NULL:
            prober.counters.false_positives += 1
    return count


cdef int _enter_partition(Sst sst, Prober* prober, uint32_t partition) except -1 nogil:
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t key_size
    cdef SstWalker* at = &prober.at
    sst.cache.unpin(prober.filter)
    sst.cache.unpin(at.index_block)
    sst.cache.unpin(at.key_block)
    prober.filter = NULL
    at.index_block = NULL
    at.key_block = NULL
    at.index_place = 0
    prober.partition = partition
    if index_entry(&sst.top, partition, &key, &key_size, &payload):
        sst.damaged(sst._sections[0], BLOCK_TOP)
    if load_u32(payload + 20):
        prober.filter = sst.load(
            load_u64(payload + 12), load_u32(payload + 20), BLOCK_FILTER, USE_PROBE
        )
    return 0


cdef int _enter_keys(Sst sst, SstWalker* at, uint32_t place) except -1 nogil:
    cdef const uint8_t* line
    load_keys(sst, at, place)
    line = at.search.block.restarts
    while line < &at.search.block.restarts[<size_t> at.search.block.restart_count * 4]:
        prefetch_line(line)  # what a search looks at first
        line += LINE_BYTES
    return 0


cdef int _add_segments(
    Sst sst, SstWalker* at, HitList* hits, uint32_t position, const uint8_t* key, size_t key_size
) except -1 nogil:
    """Add more segments of a huge key: each is the first entry of the following key block.

    All of them lie in the partition in which the key ends, because a partition is closed only after
    a whole key.
    """
    cdef Buffer* found = &at.search.key
    cdef uint32_t first = at.index_place
    while True:
        _enter_keys(sst, at, at.index_place + 1)
        found.size = 0
        memset(&at.search.entry, 0, sizeof(KeyEntry))
        if next_entry(
            &at.search.block, at.search.block.entries, found, &at.search.entry
        ) == NULL or compare(found.data, found.size, key, key_size) != 0:
            sst.damaged(at.key_offset, BLOCK_KEYS)
        put_hit(sst, at, position, hits)
        if not at.search.entry.flags & FLAG_CONTINUES:
            break
    # The same key may be asked for again: let the next search begin where this one did.
    sst.cache.unpin(at.key_block)
    at.key_block = NULL
    at.index_place = first
    return 0
