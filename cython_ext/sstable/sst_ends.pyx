"""The last keys, or the first ones, of many ranges in one SSTable: each is found by a search for the
range's bound, without a look at the keys in between.

Bounds ascend, so the search goes on where the one before ended. Of the last entry before a bound it
knows the next one: while bounds are not greater than that, one comparison answers.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from lsmstate.cython_ext.base.coding cimport Buffer, compare, put_bytes, release
from lsmstate.cython_ext.entries.entry_source cimport FLAG_CONTINUES
from lsmstate.cython_ext.sstable.block cimport BLOCK_INDEX, BLOCK_KEYS, BLOCK_TOP
from lsmstate.cython_ext.sstable.index_block cimport index_entry
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyEntry, KeySearch, next_entry, restart_before, restart_place,
)
from lsmstate.cython_ext.sstable.sst_walker cimport HitList
from lsmstate.cython_ext.sstable.sst_reader cimport Sst
from lsmstate.cython_ext.sstable.sst_walker cimport (
    SstWalker, advance, begin_walker, end_walker, enter_group, find_block, is_in_block, load_index,
    load_keys, previous_block, put_hit, seek_entry,
)

cdef uint32_t NOWHERE = 0xFFFFFFFF


cdef enum Behind:            # what follows the entry that a walker stands at
    IS_UNKNOWN
    IS_KEY                   # `next_key`
    IS_NOTHING


cdef struct EndWalker:
    SstWalker at             # stands at the last entry before the bound, if there is one
    Behind behind
    Buffer next_key
    Py_ssize_t copy          # of the entry's key among the ends' keys; -1: none
    Py_ssize_t hit           # the entry's; -1: none


cdef int is_end_of(Ends* ends, Py_ssize_t place, const uint8_t* key, size_t size) noexcept nogil:
    cdef const End* end = &ends.items[place]
    cdef int order
    if end.size == 0:
        return 2
    order = compare(key, size, ends.keys.data + end.key, end.size)
    if order == 0:
        return 1
    return 2 if (order > 0) == ends.is_last else 0


cdef int put_end(
    Ends* ends, Py_ssize_t place, const uint8_t* key, size_t size, Py_ssize_t* copy
) except -1 nogil:
    cdef End* end = &ends.items[place]
    if copy[0] < 0:
        copy[0] = ends.keys.size
        put_bytes(&ends.keys, key, size)
    end.key = copy[0]
    end.size = <uint32_t> size
    end.changes += 1
    return 0


cdef Py_ssize_t first_above(
    const Ends* ends, Py_ssize_t start, const uint8_t* key, size_t size
) noexcept nogil:
    cdef Py_ssize_t low = start, high = ends.count, middle
    cdef const uint64_t* at
    while low < high:
        middle = low + (high - low) // 2
        at = ends.offsets + 2 * middle + 1
        if compare(ends.data + at[0], at[1] - at[0], key, size) > 0:
            high = middle
        else:
            low = middle + 1
    return low


cdef Py_ssize_t find_ends_sst(
    Sst sst, Ends* ends, Py_ssize_t start, Py_ssize_t stop, Found* found, HitList* hits
) except -1 nogil:
    cdef EndWalker walker
    memset(&walker, 0, sizeof(EndWalker))
    begin_walker(&walker.at)
    walker.copy = walker.hit = -1
    try:
        if ends.is_last:
            _find_last(sst, &walker, ends, start, stop, found, hits)
            return stop
        return _find_first(sst, &walker, ends, start, stop, found, hits)
    finally:
        end_walker(sst, &walker.at)
        release(&walker.next_key)


cdef int _find_first(
    Sst sst, EndWalker* walker, Ends* ends, Py_ssize_t start, Py_ssize_t stop, Found* found,
    HitList* hits
) except -1 nogil:
    cdef Py_ssize_t i
    cdef const uint64_t* at
    cdef Buffer* key = &walker.at.search.key
    for i in range(start, stop):
        at = ends.offsets + 2 * i
        if not walker.at.stands or compare(
            key.data, key.size, ends.data + at[0], at[1] - at[0]
        ) < 0:
            walker.copy = walker.hit = -1
            if not find_block(sst, &walker.at, ends.data + at[0], at[1] - at[0]):
                return i
            if not seek_entry(sst, &walker.at, ends.data + at[0], at[1] - at[0]):
                return i
        if compare(key.data, key.size, ends.data + at[1], at[2] - at[1]) < 0:
            _offer(sst, walker, ends, i, found, hits)
    return stop


cdef int _find_last(
    Sst sst, EndWalker* walker, Ends* ends, Py_ssize_t start, Py_ssize_t stop, Found* found,
    HitList* hits
) except -1 nogil:
    cdef Py_ssize_t i
    cdef const uint64_t* at
    cdef Buffer* key = &walker.at.search.key
    for i in range(start, stop):
        at = ends.offsets + 2 * i
        _seek_before(sst, walker, ends.data + at[1], at[2] - at[1])
        if walker.at.stands and compare(
            key.data, key.size, ends.data + at[0], at[1] - at[0]
        ) >= 0:
            _offer(sst, walker, ends, i, found, hits)
    return 0


cdef int _offer(
    Sst sst, EndWalker* walker, Ends* ends, Py_ssize_t place, Found* found, HitList* hits
) except -1 nogil:
    """Note the entry as the end of a range, unless a better one is known."""
    cdef const Buffer* key = &walker.at.search.key
    cdef int state = is_end_of(ends, place, key.data, key.size)
    if state == 0:
        return 0
    if state == 2:
        put_end(ends, place, key.data, key.size, &walker.copy)
    if walker.hit < 0:
        walker.hit = hits.count
        put_hit(sst, &walker.at, 0, hits)
    found[place].place = <int> walker.hit
    found[place].changes = ends.items[place].changes
    if _spans_blocks(sst, &walker.at):
        ends.items[place].is_open = True  # it has more hits than this one
    return 0


cdef bint _spans_blocks(Sst sst, const SstWalker* at) except -1 nogil:
    """Whether the entry's key has entries in other key blocks too."""
    cdef const KeySearch* search = &at.search
    cdef const uint8_t* last
    cdef const uint8_t* payload
    cdef size_t last_size
    if search.entry.flags & FLAG_CONTINUES:
        return True
    if search.group or at.index_place == 0:
        return False
    # It may be the block's first entry: what the index has for the block before is then its key.
    if index_entry(&at.index, at.index_place - 1, &last, &last_size, &payload):
        sst.damaged(at.index_offset, BLOCK_INDEX)
    return compare(last, last_size, search.key.data, search.key.size) == 0


cdef int _seek_before(
    Sst sst, EndWalker* walker, const uint8_t* bound, size_t size
) except -1 nogil:
    """Stand at the last entry whose key is less than the bound; stand nowhere if there is none. No
    bound is less than the one before."""
    cdef SstWalker* at = &walker.at
    cdef uint32_t restart
    if walker.behind == IS_NOTHING or (
        walker.behind == IS_KEY
        and compare(walker.next_key.data, walker.next_key.size, bound, size) >= 0
    ):
        return 0
    if at.key_block == NULL or not is_in_block(sst, at, bound, size):
        if not find_block(sst, at, bound, size):
            _enter_last_block(sst, at)
    if restart_before(&at.search.block, bound, size, &restart):
        sst.damaged(at.key_offset, BLOCK_KEYS)
    if not (at.stands and at.search.group == restart):
        _enter(sst, walker, restart)
        if compare(at.search.key.data, at.search.key.size, bound, size) >= 0:
            return _step_back(sst, walker, restart)
    return _go_on(sst, walker, bound, size)


cdef int _enter_last_block(Sst sst, SstWalker* at) except -1 nogil:
    """Enter the last block of the file, whose keys are all less than the bound."""
    if sst.top.count == 0:
        sst.damaged(sst._sections[0], BLOCK_TOP)
    if at.partition != sst.top.count - 1:
        load_index(sst, at, sst.top.count - 1)
    if at.index.count == 0:
        sst.damaged(at.index_offset, BLOCK_INDEX)
    if at.key_block == NULL or at.index_place != at.index.count - 1:
        load_keys(sst, at, at.index.count - 1)
    return 0


cdef int _enter(Sst sst, EndWalker* walker, uint32_t restart) except -1 nogil:
    """Stand at the first entry of a group."""
    walker.copy = walker.hit = -1
    walker.at.search.key.size = 0
    enter_group(sst, &walker.at, restart)
    walker.at.stands = True
    advance(sst, &walker.at)
    return 0


cdef int _step_back(Sst sst, EndWalker* walker, uint32_t restart) except -1 nogil:
    """The first entry of a group is not less than the bound: stand at the entry before it."""
    cdef SstWalker* at = &walker.at
    walker.behind = IS_KEY
    walker.next_key.size = 0
    put_bytes(&walker.next_key, at.search.key.data, at.search.key.size)
    if restart:
        restart -= 1
    elif previous_block(sst, at):
        restart = at.search.block.restart_count - 1
    else:
        at.stands = False
        return 0
    _enter(sst, walker, restart)
    while at.search.place < at.search.group_end:
        advance(sst, at)
    if compare(
        at.search.key.data, at.search.key.size, walker.next_key.data, walker.next_key.size
    ) > 0:
        sst.damaged(at.key_offset, BLOCK_KEYS)
    return 0


cdef int _go_on(Sst sst, EndWalker* walker, const uint8_t* bound, size_t size) except -1 nogil:
    """Go on to the last entry of the group that is less than the bound; the first one is."""
    cdef SstWalker* at = &walker.at
    cdef KeySearch* search = &at.search
    cdef KeyEntry entry
    cdef Buffer key
    cdef const uint8_t* place
    while search.place < search.group_end:
        walker.next_key.size = 0
        put_bytes(&walker.next_key, search.key.data, search.key.size)
        entry = search.entry
        place = next_entry(&search.block, search.place, &walker.next_key, &entry)
        if place == NULL or place > search.group_end:
            sst.damaged(at.key_offset, BLOCK_KEYS)
        if compare(walker.next_key.data, walker.next_key.size, bound, size) >= 0:
            walker.behind = IS_KEY
            return 0
        key = search.key
        search.key = walker.next_key
        walker.next_key = key
        search.entry = entry
        search.place = place
        walker.copy = walker.hit = -1
    return _look_behind(sst, walker)


cdef int _look_behind(Sst sst, EndWalker* walker) except -1 nogil:
    """Note what follows the group, as far as the block goes."""
    cdef SstWalker* at = &walker.at
    cdef KeyEntry entry
    cdef const uint8_t* place
    walker.behind = IS_UNKNOWN
    if at.search.group + 1 < at.search.block.restart_count:
        place = restart_place(&at.search.block, at.search.group + 1)
        walker.next_key.size = 0
        memset(&entry, 0, sizeof(KeyEntry))
        if place == NULL or next_entry(
            &at.search.block, place, &walker.next_key, &entry
        ) == NULL:
            sst.damaged(at.key_offset, BLOCK_KEYS)
        walker.behind = IS_KEY
    elif at.index_place + 1 == at.index.count and at.partition + 1 == sst.top.count:
        walker.behind = IS_NOTHING
    return 0
