"""Checks of a whole SSTable, and the sizes of its parts.

Checksums show that blocks are those that were written. Here they are also compared with each other,
so that a block that was built wrong (by bad memory or a bug) is found.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from lsmstate.cython_ext.sstable.block cimport BLOCK_FILTER, BLOCK_INDEX, BLOCK_KEYS, BLOCK_ROWS, BLOCK_TOP
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.sstable.bloom cimport may_contain
from lsmstate.cython_ext.base.compression cimport xxh3
from lsmstate.cython_ext.base.coding cimport (
    STREAM_BYTES, Buffer, compare, load_u32, load_u64, mix_stream, put_bytes, release,
)
from lsmstate.cython_ext.entries.entry_source cimport FLAG_CONTINUES, RowRef
from lsmstate.cython_ext.sstable.index_block cimport IndexBlock, index_entry, parse_index_block
from lsmstate.cython_ext.rows.zone_columns cimport ZoneColumns, zone_word
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyBlock, KeyEntry, Zone, next_entry, parse_key_block, zone_at, zone_column, zone_rows,
)
from lsmstate.cython_ext.sstable.sst_reader cimport INDEX_PAYLOAD, USE_ONCE, Sst
from lsmstate.cython_ext.sstable.sst_source cimport SstSource
from lsmstate.cython_ext.sstable.sst_writer cimport FOOTER_BYTES, HEADER_BYTES

from lsmstate.cython_ext.errors import CorruptionError, InvalidArgumentError

cdef enum:
    SEPARATORS_VERSION = 3  # before it the index has whole last keys


cdef struct Before:    # the key block before
    Buffer bound       # what the index has for it, which parts it from the next one
    bint is_exact      # its last key is that
    bint continues     # with that key in the next one


def layout(Sst sst not None) -> dict[str, int]:
    """Return the number of partitions, and stored bytes of index and filter partitions. No block is
    read."""
    cdef uint32_t partition
    cdef uint64_t index_bytes = 0, filter_bytes = 0
    cdef const uint8_t* payload
    for partition in range(sst.top.count):
        payload = _partition(sst, partition)
        index_bytes += load_u32(payload + 8)
        filter_bytes += load_u32(payload + 20)
    return {
        "partitions": sst.top.count,
        "index_bytes": index_bytes,
        "filter_bytes": filter_bytes,
    }


def verify(Sst sst not None, codecs=()) -> dict[str, int]:
    """Read and check the header and every block, and whether they fit together; return counts of
    keys and rows. CorruptionError.

    ``codecs``: the RowCodec of each stream by number; without them, values are not compared with
    the zones of their blocks. Cost: the whole file is read, its key blocks twice.
    """
    # Opened again: others that share this table continue to read through the cache.
    cdef Sst own
    try:
        own = Sst(sst.file.path, sst.cache, sst.file.size, sst._renew)
    except FileNotFoundError:
        if sst._renew is None:
            raise
        sst._renew(sst.file.size)  # a copy that was evicted
        own = Sst(sst.file.path, sst.cache, sst.file.size, sst._renew)
    own._verifying = True
    _check_header(own)
    _check_partitions(own)
    own.section("properties")
    own.section("edit")
    return _check_entries(own, list(codecs))


cdef int _check_header(Sst sst) except -1:
    """Check the first bytes, which nothing else reads, against the footer."""
    cdef bytes footer = sst.file.read(sst.file.size - FOOTER_BYTES, FOOTER_BYTES)
    cdef bytes magic = footer[72:], version = footer[36:40]
    if sst.file.read(0, HEADER_BYTES) != magic + version + bytes(4):
        raise CorruptionError(
            "the header is damaged, but no row depends on it; lsmstate repair rewrites the file",
            sst.file.path,
            0,
        )
    return 0


cdef const uint8_t* _partition(Sst sst, uint32_t number) except NULL:
    """Return the top index entry of a partition."""
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t key_size
    if index_entry(&sst.top, number, &key, &key_size, &payload):
        sst.damaged(sst._sections[0], BLOCK_TOP)
    return payload


cdef int _check_partitions(Sst sst) except -1:
    """Check index, filter and key blocks against each other."""
    cdef uint32_t number
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t size
    cdef CachedBlock* filter = NULL
    cdef CachedBlock* block = NULL
    cdef Before before
    memset(&before, 0, sizeof(Before))
    before.is_exact = True  # of none
    try:
        for number in range(sst.top.count):
            payload = _partition(sst, number)
            index_entry(&sst.top, number, &key, &size, &payload)
            if load_u32(payload + 20):
                filter = sst.load(
                    load_u64(payload + 12), load_u32(payload + 20), BLOCK_FILTER, USE_ONCE
                )
            block = sst.load(load_u64(payload), load_u32(payload + 8), BLOCK_INDEX, USE_ONCE)
            with nogil:
                _check_partition(sst, block, filter, key, size, &before)
            sst.cache.unpin(filter)
            sst.cache.unpin(block)
            filter = block = NULL
        if not before.is_exact or before.continues:
            sst.damaged(sst._sections[0], BLOCK_TOP)
    finally:
        release(&before.bound)
        sst.cache.unpin(filter)
        sst.cache.unpin(block)
    return 0


cdef int _check_partition(
    Sst sst, CachedBlock* block, CachedBlock* filter, const uint8_t* last, size_t last_size,
    Before* before,
) except -1 nogil:
    cdef IndexBlock index
    cdef const uint8_t* key = NULL
    cdef const uint8_t* payload
    cdef size_t size = 0
    cdef uint32_t i
    if parse_index_block(block.data, block.size, INDEX_PAYLOAD, &index) or index.count == 0:
        sst.damaged(block.offset, BLOCK_INDEX)
    for i in range(index.count):
        if index_entry(&index, i, &key, &size, &payload):
            sst.damaged(block.offset, BLOCK_INDEX)
        if not _check_key_block(
            sst, filter, load_u64(payload), load_u32(payload + 8), key, size, before
        ):
            sst.damaged(block.offset, BLOCK_INDEX)
        before.bound.size = 0
        put_bytes(&before.bound, key, size)
    if compare(key, size, last, last_size) != 0:
        sst.damaged(sst._sections[0], BLOCK_TOP)
    return 0


cdef bint _check_key_block(
    Sst sst, CachedBlock* filter, uint64_t offset, uint32_t size, const uint8_t* bound,
    size_t bound_size, Before* before,
) except -1 nogil:
    """Check its restarts and entries, whether the filter knows its keys, whether its row blocks
    precede it, and whether its keys lie where the index says. ``before`` becomes it, except the
    bound."""
    cdef CachedBlock* block = sst.load(offset, size, BLOCK_KEYS, USE_ONCE)
    cdef KeyBlock keys
    cdef KeyEntry entry
    cdef Buffer key
    cdef const uint8_t* place
    cdef uint32_t restarts = 0, entries = 0
    cdef uint64_t rows_end = 0
    memset(&entry, 0, sizeof(KeyEntry))
    memset(&key, 0, sizeof(Buffer))
    try:
        if parse_key_block(block.data, block.size, &keys):
            sst.damaged(offset, BLOCK_KEYS)
        place = keys.entries
        while place < keys.entries_end:
            if place[0] == 0:
                if restarts == keys.restart_count or load_u32(
                    keys.restarts + 4 * <size_t> restarts
                ) != <size_t> (place - keys.entries):
                    sst.damaged(offset, BLOCK_KEYS)
                restarts += 1
            place = next_entry(&keys, place, &key, &entry)
            if place == NULL:
                sst.damaged(offset, BLOCK_KEYS)
            if entries == 0 and not _may_follow(&key, before):
                return False
            entries += 1
            if filter != NULL and not may_contain(filter.data, filter.size, _hash_of(&key)):
                sst.damaged(filter.offset, BLOCK_FILTER)
        if keys.row_blocks:
            rows_end = load_u64(keys.row_ends + 8 * (<size_t> keys.row_blocks - 1))
        if (
            entries != keys.count or restarts != keys.restart_count
            or keys.row_base + rows_end != offset
        ):
            sst.damaged(offset, BLOCK_KEYS)
        before.is_exact = compare(key.data, key.size, bound, bound_size) == 0
        before.continues = (entry.flags & FLAG_CONTINUES) != 0
        if sst.version < SEPARATORS_VERSION or before.continues:
            return before.is_exact
        return compare(key.data, key.size, bound, bound_size) <= 0
    finally:
        release(&key)
        sst.cache.unpin(block)


cdef bint _may_follow(const Buffer* key, const Before* before) noexcept nogil:
    """Test whether the next key block may begin with this key."""
    cdef int order
    if before.bound.size == 0:
        return True
    order = compare(key.data, key.size, before.bound.data, before.bound.size)
    return order == 0 if before.continues else order > 0


cdef uint64_t _hash_of(const Buffer* key) noexcept nogil:
    return mix_stream(
        xxh3(key.data + STREAM_BYTES, key.size - STREAM_BYTES),
        (<uint32_t> key.data[0] << 8) | key.data[1],
    )


cdef dict _check_entries(Sst sst, list codecs):
    """Check rows against the entries that refer to them: each entry has its own, one after another,
    all rows belong to one, and they are in the order of arrival. The zones of a block hold them."""
    cdef SstSource source = SstSource(sst)
    cdef ZoneColumns zones = None
    cdef uint64_t zoned_block = 0
    cdef RowRef row
    cdef uint64_t keys = 0, rows = 0, seen, seen_bytes, sequence
    cdef uint32_t ordinal, block = 0, place = 0
    cdef uint64_t key_block = 0
    with nogil:
        while source.next_key():
            keys += 1
            seen = seen_bytes = sequence = 0
            ordinal = 0
            if source.key_block.offset != key_block:
                key_block = source.key_block.offset
                block = place = 0
            if source.rows and (source.block_index != block or source.row_index != place):
                sst.damaged(key_block, BLOCK_KEYS)
            while source.next_row(&row):
                if source.keys.zone_columns:
                    if source.key_block.offset != zoned_block:
                        zoned_block = source.key_block.offset
                        with gil:
                            zones = _zone_columns(source, codecs)
                    if not _lies_in_zones(source, zones, &row):
                        sst.damaged(zoned_block, BLOCK_KEYS)
                if seen and (
                    row.sequence < sequence
                    or (
                        row.sequence == sequence and row.ordinal <= ordinal
                        and sequence != sst.base_sequence  # older ones count as of that write
                    )
                ):
                    sst.damaged(source.row_block_offset, BLOCK_ROWS)
                sequence = row.sequence
                ordinal = row.ordinal
                seen += 1
                seen_bytes += row.size
            if seen != source.rows or seen_bytes != source.row_bytes:
                sst.damaged(source.key_block.offset, BLOCK_KEYS)
            rows += seen
            if seen == 0:  # a tombstone may follow the last row of a full block
                continue
            key_block = source.key_block.offset  # of the last segment
            block = source.block_index
            place = source.row_index
            if source.consumed:
                block += 1
                place = 0
    return {"keys": keys, "rows": rows}


cdef ZoneColumns _zone_columns(SstSource source, list codecs):
    """Return the zone columns of a key block; None if there are no codecs."""
    cdef uint32_t stream = (<uint32_t> source.key[0] << 8) | source.key[1], place
    if not codecs:
        return None
    numbers = [zone_column(&source.keys, place) for place in range(source.keys.zone_columns)]
    if stream >= <uint32_t> len(codecs):
        source.sst.damaged(source.key_block.offset, BLOCK_KEYS)
    try:
        return ZoneColumns(codecs[stream], numbers)
    except InvalidArgumentError:
        source.sst.damaged(source.key_block.offset, BLOCK_KEYS)


cdef bint _lies_in_zones(SstSource source, ZoneColumns zones, const RowRef* row) noexcept nogil:
    """Test whether the zones of the current row block hold a row of it."""
    cdef uint32_t block = source.row_block_index, place
    cdef uint64_t word = 0
    cdef Zone zone
    if zone_rows(&source.keys, block) != source.row_view.rows:
        return False
    if <void*> zones == <void*> None:
        return True
    for place in range(source.keys.zone_columns):
        if zone_word(&zones.columns[place], row.data, row.size, &word):
            zone = zone_at(&source.keys, block, place)
            if not zone.least <= word <= zone.greatest:
                return False
    return True
