"""Range deletion in a memtable.

The table's own entries in the range are removed at once. The range itself is kept beside the keys,
because it deletes from all older tables and runs too. Later appends are newer, so they stay.
"""

from libc.stdint cimport uint8_t

from lsmstate.cython_ext.memory.arena cimport Arena
from lsmstate.cython_ext.memtable.btree cimport Entry, Place, Tree, entry_at, find_place, go_on, key_of
from lsmstate.cython_ext.base.coding cimport compare
from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges
from lsmstate.cython_ext.memtable.memtable cimport Memtable, tree_of

cdef enum:
    MOST_RANGE_BYTES = 64 * 1024  # every probe of a run looks through its ranges: few are kept


def delete_range(
    Memtable memtable not None, bytes low not None, bytes high not None, sequence
) -> bool:
    """Delete the stored keys of one stream from `low` on and below `high`. False: the table has too
    many ranges and must be flushed."""
    cdef KeyRanges deleted = KeyRanges([*memtable.deleted.items, (low, high)], memtable.arena.budget)
    if deleted.nbytes > MOST_RANGE_BYTES and memtable.deleted.count:
        return False
    memtable._note(sequence)
    memtable.deleted = deleted
    if low < high and len(low) >= 2:
        _forget(memtable, low, high)
    return True


cdef int _forget(Memtable memtable, bytes low, bytes high) except -1:
    cdef Place place
    cdef Entry* entry
    cdef const uint8_t* start = <const uint8_t*> <const char*> low
    cdef const uint8_t* end = <const uint8_t*> <const char*> high
    cdef size_t start_size = len(low), end_size = len(high)
    cdef Tree* tree = tree_of(memtable, (<unsigned int> start[0] << 8) | start[1])
    if tree == NULL:
        return 0
    with nogil:
        find_place(tree, start, start_size, &place)
        while place.leaf != NULL:
            entry = entry_at(&place)
            if compare(key_of(entry), entry.key_size, end, end_size) >= 0:
                break
            memtable._forget_rows(entry)
            entry.flags = 0  # older rows are deleted by the range
            go_on(&place)
    return 0
