"""A whole SSTable at a time: check every block of it, or say what its parts take."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cython_ext.block cimport BLOCK_FILTER, BLOCK_ROWS, BLOCK_TOP, index_entry
from cython_ext.coding cimport load_u32, load_u64
from cython_ext.entries cimport RowRef
from cython_ext.sst_reader cimport USE_ONCE, Sst
from cython_ext.sst_source cimport SstSource


def layout(Sst sst not None) -> dict[str, int]:
    """Partitions, and stored bytes of index and filter partitions. No block is read."""
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


def verify(Sst sst not None) -> dict[str, int]:
    """Read and check every block; counts of keys and rows. Cost: the whole file is read."""
    # Opened anew: who shares this table goes on reading it through the cache.
    cdef Sst own
    try:
        own = Sst(sst.file.path, sst.cache, sst.file.size, sst._renew)
    except FileNotFoundError:
        if sst._renew is None:
            raise
        sst._renew(sst.file.size)  # a copy, which was evicted
        own = Sst(sst.file.path, sst.cache, sst.file.size, sst._renew)
    own._verifying = True
    _check_filters(own)
    own.section("properties")
    own.section("edit")
    return _check_entries(own)


cdef const uint8_t* _partition(Sst sst, uint32_t number) except NULL:
    """What the top index says of a partition."""
    cdef const uint8_t* key
    cdef const uint8_t* payload
    cdef size_t key_size
    if index_entry(&sst.top, number, &key, &key_size, &payload):
        sst.damaged(sst._sections[0], BLOCK_TOP)
    return payload


cdef int _check_filters(Sst sst) except -1:
    cdef uint32_t number
    cdef const uint8_t* payload
    for number in range(sst.top.count):
        payload = _partition(sst, number)
        if load_u32(payload + 20):
            sst.cache.unpin(
                sst.load(load_u64(payload + 12), load_u32(payload + 20), BLOCK_FILTER, USE_ONCE)
            )
    return 0


def _check_entries(Sst sst not None) -> dict[str, int]:
    cdef SstSource source = SstSource(sst)
    cdef RowRef row
    cdef uint64_t keys = 0, rows = 0, seen
    with nogil:
        while source.next_key():
            keys += 1
            seen = 0
            while source.next_row(&row):
                seen += 1
            if seen != source.rows:
                sst.damaged(source.row_block_offset, BLOCK_ROWS)
            rows += seen
    return {"keys": keys, "rows": rows}
