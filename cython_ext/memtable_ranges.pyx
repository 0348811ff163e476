"""Deleting a range of keys in a memtable.

What the table holds of it is forgotten at once; the range itself is kept beside the keys, because
it deletes from all older tables and runs too. Appends that follow are newer, so they are kept.
"""

from libc.stdint cimport uint8_t

from cython_ext.arena cimport Arena
from cython_ext.coding cimport compare
from cython_ext.key_ranges cimport KeyRanges
from cython_ext.memtable cimport Memtable, list_of
from cython_ext.skiplist cimport MAX_HEIGHT, Node, StreamList, find_node, key_of, start_path

cdef enum:
    MOST_RANGE_BYTES = 64 * 1024  # every probe of a run looks through its ranges: few are kept


def delete_range(
    Memtable memtable not None, bytes low not None, bytes high not None, sequence
) -> bool:
    """Delete the stored keys of one stream from `low` on and below `high`; False if the table has
    too many ranges already and is to be flushed."""
    cdef KeyRanges deleted = KeyRanges([*memtable.deleted.items, (low, high)], memtable.arena.budget)
    if deleted.nbytes > MOST_RANGE_BYTES and memtable.deleted.count:
        return False
    memtable._note(sequence)
    memtable.deleted = deleted
    if low < high and len(low) >= 2:
        _forget(memtable, low, high)
    return True


cdef int _forget(Memtable memtable, bytes low, bytes high) except -1:
    cdef Node* path[MAX_HEIGHT]
    cdef Node* node
    cdef const uint8_t* start = <const uint8_t*> <const char*> low
    cdef const uint8_t* end = <const uint8_t*> <const char*> high
    cdef size_t start_size = len(low), end_size = len(high)
    cdef StreamList* stream_list = list_of(memtable, (<unsigned int> start[0] << 8) | start[1])
    if stream_list == NULL:
        return 0
    with nogil:
        start_path(stream_list, path)
        node = find_node(stream_list, path, start, start_size)
        while node != NULL and compare(key_of(node), node.key_size, end, end_size) < 0:
            memtable._forget_rows(node)
            node.flags = 0  # older rows are deleted by the range
            node = node.next[0].node
    return 0
