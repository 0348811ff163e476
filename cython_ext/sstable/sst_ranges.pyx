"""Walk of one SSTable over ranges of keys: where the rows of all keys in them lie, without reading
a row.

The ranges are disjoint and ascend, so partitions, key blocks and entries are visited in order. From
one range to the next the walk gallops, over index entries, restarts, or ranges without a key.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from lsmstate.cython_ext.base.coding cimport (
    Buffer, compare, load_u32, load_u64, put_bytes, put_u64,
)
from lsmstate.cython_ext.base.prefetch cimport prefetch_line
from lsmstate.cython_ext.sstable.block cimport BLOCK_KEYS
from lsmstate.cython_ext.sstable.key_block cimport KeyBlock, enter_key_block
from lsmstate.cython_ext.sstable.sst_reader cimport Sst
from lsmstate.cython_ext.sstable.sst_walker cimport (
    SstWalker, advance, begin_walker, end_walker, enter_group, find_block, is_in_block, put_hit,
    seek_entry,
)

cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil
    uint64_t __builtin_bswap64(uint64_t) nogil

cdef uint32_t NOWHERE = 0xFFFFFFFF


cdef enum:
    AHEAD_RESTARTS = 8
    UNKNOWN_WORDS
    HAS_WORDS
    NO_WORDS


cdef struct Words:           # an entry of a group, whose key is known by a word
    uint32_t restart
    uint32_t number          # in the group
    uint64_t word            # its key behind the block's prefix, big-endian and zero-padded
    const uint8_t* at        # behind it
    const uint8_t* end       # of the group


cdef struct Walker:
    SstWalker at
    uint64_t* words          # of the block's restarts
    const uint8_t* first_key # of the block
    uint64_t prefix_word     # the first bytes of the prefix that the restarts' keys share
    uint32_t word_room
    int words_state


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
    begin_walker(&walker.at)
    try:
        return _walk(sst, &walker, segments, start, least, taken)
    finally:
        end_walker(sst, &walker.at)
        free(walker.words)


cdef Py_ssize_t _walk(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t start, const Buffer* least,
    Taken* taken
) except -1 nogil:
    cdef Py_ssize_t place = start
    cdef const uint8_t* low
    cdef size_t low_size
    cdef Buffer* key = &walker.at.search.key
    while place < segments.count:
        _low_of(segments, place, &low, &low_size)
        if place == start and compare(low, low_size, least.data, least.size) < 0:
            low = least.data
            low_size = least.size
        if not walker.at.stands or compare(key.data, key.size, low, low_size) < 0:
            walker.at.stands = False
            if not find_block(sst, &walker.at, low, low_size):
                return place
            # Its first segment may begin at `least`, which the segments do not say.
            if place != start and _is_dense(sst, walker, segments, place):
                if not _walk_block(sst, walker, segments, &place):
                    return place
                if not walker.at.stands:
                    continue
            elif not seek_entry(sst, &walker.at, low, low_size):
                return place
        if not _take_segment(sst, walker, segments, place, taken):
            return place
        place = segment_behind(segments, place + 1, key.data, key.size)
    return place


cdef inline void _low_of(
    const Segments* segments, Py_ssize_t place, const uint8_t** key, size_t* size
) noexcept nogil:
    cdef const uint64_t* at = segments.offsets + 2 * place
    key[0] = segments.data + at[0]
    size[0] = at[1] - at[0]


cdef bint _take_segment(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t place, Taken* taken
) except -1 nogil:
    """Take the entries of a segment from where the walk stands; False: the walk has ended."""
    cdef const uint64_t* at = segments.offsets + 2 * place + 1
    cdef Buffer* key = &walker.at.search.key
    while compare(key.data, key.size, segments.data + at[0], at[1] - at[0]) < 0:
        if is_enough(taken, key.data, key.size):
            return False
        put_hit(sst, &walker.at, <uint32_t> (taken.ends.size // 8), &taken.hits)
        take_key(taken, key.data, key.size)
        if not advance(sst, &walker.at):
            return False
    return True


cdef bint _is_dense(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t place
) except -1 nogil:
    """Whether another segment begins in the current block, whose keys are known by words."""
    cdef const uint8_t* low
    cdef size_t low_size
    if walker.at.is_new:
        walker.at.is_new = False
        walker.words_state = UNKNOWN_WORDS
    if walker.words_state == NO_WORDS or place + 1 >= segments.count:
        return False
    if walker.words_state == HAS_WORDS:
        return True
    _low_of(segments, place + 1, &low, &low_size)
    return is_in_block(sst, &walker.at, low, low_size) and _make_words(walker)


cdef bint _make_words(Walker* walker) noexcept nogil:
    """Note each restart's key as a word: what follows the prefix that all of them share. False: one
    of them is longer than that."""
    cdef const KeyBlock* block = &walker.at.search.block
    cdef size_t prefix = walker.at.search.shared, size
    cdef const uint8_t* place
    cdef uint32_t r
    cdef void* room
    walker.words_state = NO_WORDS
    if walker.word_room < block.restart_count:
        room = realloc(walker.words, <size_t> block.restart_count * sizeof(uint64_t))
        if room == NULL:
            return False
        walker.words = <uint64_t*> room
        walker.word_room = block.restart_count
    for r in range(min(block.restart_count, <uint32_t> AHEAD_RESTARTS)):
        prefetch_line(_restart(block, r))
    for r in range(block.restart_count):
        if r + AHEAD_RESTARTS < block.restart_count:
            prefetch_line(_restart(block, r + AHEAD_RESTARTS))
        place = _restart(block, r)
        # Behind the entries lies the tail of the block: eight bytes can be read.
        if place + 2 >= block.entries_end or place[0] or place[1] & 0x80:
            return False
        size = place[1]
        if size > prefix + 8 or size <= prefix or place + 2 + size >= block.entries_end:
            return False
        walker.words[r] = _cut(__builtin_bswap64(load_u64(place + 2 + prefix)), size - prefix)
    walker.first_key = _restart(block, 0) + 2
    walker.prefix_word = 0
    if prefix:
        walker.prefix_word = _cut(
            __builtin_bswap64(load_u64(walker.first_key)), min(prefix, <size_t> 8)
        )
    walker.words_state = HAS_WORDS
    return True


cdef inline const uint8_t* _restart(const KeyBlock* block, uint32_t index) noexcept nogil:
    """A restart's place, which may lie outside the block; ``_make_words`` checks them all."""
    return block.entries + load_u32(block.restarts + 4 * <size_t> index)


cdef inline uint64_t _cut(uint64_t word, size_t size) noexcept nogil:
    """Keep the first bytes of a word, 1 to 8."""
    return word & ((<uint64_t> -1) << (64 - 8 * size))


cdef inline int _word_of(
    const Walker* walker, const uint8_t* key, size_t size, uint64_t* word
) noexcept nogil:
    """What follows the prefix of the block's keys in a bound, as far as it fits a word. -1 and 1: it
    does not begin so, and is less, or greater, than all keys that do."""
    cdef size_t prefix = walker.at.search.shared
    cdef uint64_t begin
    cdef int order
    if prefix > 8 or size < prefix:
        order = compare(key, min(size, prefix), walker.first_key, prefix)
        if order:
            return order
    elif prefix:
        begin = _cut(__builtin_bswap64(load_u64(key)), prefix)
        if begin != walker.prefix_word:
            return -1 if begin < walker.prefix_word else 1
    size -= prefix
    word[0] = 0
    if size:
        word[0] = _cut(__builtin_bswap64(load_u64(key + prefix)), min(size, <size_t> 8))
    return 0


cdef bint _walk_block(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t* place
) except -1 nogil:
    """Go on to the next segment with entries, by words as far as the block goes. It stands at the
    first of them then, or does not stand: the segment is to be sought in another block, or by keys.
    False: the file has no more entries."""
    cdef const uint64_t* at
    cdef uint64_t low, high
    cdef int order
    cdef uint32_t last = walker.at.search.block.restart_count - 1
    cdef Words words
    if walker.at.search.restart == NOWHERE:
        walker.at.search.restart = 0
    _begin_words(walker, &words, walker.at.search.restart)
    while place[0] < segments.count:
        at = segments.offsets + 2 * place[0]
        order = _word_of(walker, segments.data + at[0], at[1] - at[0], &low)
        if order > 0:
            return _go_on_in_last_group(sst, walker, segments, place[0])
        if order == 0 and words.word < low:
            _gallop_words(walker, &words, low)
            while words.word < low:
                if words.at >= words.end:
                    if words.restart == last:
                        return _leave_block(sst, walker, segments, place[0])
                    _begin_words(walker, &words, words.restart + 1)
                elif not _next_word(walker, &words):
                    walker.words_state = NO_WORDS
                    return _restart_block(sst, walker)
        order = _word_of(walker, segments.data + at[1], at[2] - at[1], &high)
        if order > 0 or (order == 0 and words.word <= high):
            # It may hold the entry; if words are equal, the rest of the keys decides.
            walker.at.search.key.size = 0
            enter_group(sst, &walker.at, words.restart)
            for _ in range(words.number + 1):
                advance(sst, &walker.at)
            walker.at.stands = True
            return _go_on_to(
                sst, walker, segments.data + at[0], at[1] - at[0]
            )
        place[0] += 1
    return _restart_block(sst, walker)


cdef bint _go_on_to(Sst sst, Walker* walker, const uint8_t* key, size_t size) except -1 nogil:
    """Stand at the first entry from here on whose key is not less; False: there is none."""
    while compare(walker.at.search.key.data, walker.at.search.key.size, key, size) < 0:
        if not advance(sst, &walker.at):
            return False
    return True


cdef bint _restart_block(Sst sst, Walker* walker) except -1 nogil:
    """Have the next search in the block begin at its start."""
    if enter_key_block(walker.at.key_block.data, walker.at.key_block.size, &walker.at.search):
        sst.damaged(walker.at.key_offset, BLOCK_KEYS)
    return True


cdef bint _go_on_in_last_group(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t place
) except -1 nogil:
    """A segment begins behind all keys with the prefix of the restarts: only the last group may have
    such keys, as those of the next stream. Stand there, or stand nowhere if the index leads to
    another block. False: the file has no more entries."""
    cdef const uint8_t* low
    cdef size_t low_size
    _low_of(segments, place, &low, &low_size)
    if not is_in_block(sst, &walker.at, low, low_size):
        return _restart_block(sst, walker)
    walker.at.search.key.size = 0
    enter_group(sst, &walker.at, walker.at.search.block.restart_count - 1)
    walker.at.stands = True
    return advance(sst, &walker.at) and _go_on_to(sst, walker, low, low_size)


cdef bint _leave_block(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t place
) except -1 nogil:
    """All keys of the block are less than a segment's: stand at the next block's first entry, if the
    index does not lead elsewhere. False: the file has no more entries."""
    cdef const uint8_t* low
    cdef size_t low_size
    _low_of(segments, place, &low, &low_size)
    enter_group(sst, &walker.at, walker.at.search.block.restart_count - 1)
    walker.at.search.place = walker.at.search.group_end
    if not is_in_block(sst, &walker.at, low, low_size):
        return _restart_block(sst, walker)
    walker.at.search.key.size = 0
    walker.at.stands = True
    return advance(sst, &walker.at) and _go_on_to(sst, walker, low, low_size)


cdef inline void _begin_words(
    const Walker* walker, Words* words, uint32_t restart
) noexcept nogil:
    """Stand at the first entry of a restart's group."""
    cdef const KeyBlock* block = &walker.at.search.block
    words.restart = restart
    words.number = 0
    words.word = walker.words[restart]
    words.at = _restart(block, restart)
    words.at = _behind_numbers(words.at + 2 + words.at[1])
    words.end = block.entries_end
    if restart + 1 < block.restart_count:
        words.end = _restart(block, restart + 1)


cdef inline void _gallop_words(const Walker* walker, Words* words, uint64_t low) noexcept nogil:
    """Go on to the last restart that is not greater."""
    cdef uint32_t first = words.restart, high = first + 1, middle, step = 1
    cdef uint32_t count = walker.at.search.block.restart_count
    while high < count and walker.words[high] <= low:
        first = high
        high += step
        step *= 2
    high = min(high, count)
    while first + 1 < high:
        middle = first + (high - first) // 2
        if walker.words[middle] <= low:
            first = middle
        else:
            high = middle
    if first != words.restart:
        _begin_words(walker, words, first)


cdef inline const uint8_t* _behind_numbers(const uint8_t* place) noexcept nogil:
    """The place behind an entry's flags and its four numbers; NULL: they are too large for this."""
    cdef uint64_t ends = ~load_u64(place + 1) & <uint64_t> 0x8080808080808080
    ends &= ends - 1
    ends &= ends - 1
    ends &= ends - 1
    return place + 2 + (__builtin_ctzll(ends) >> 3) if ends else NULL


cdef inline bint _next_word(const Walker* walker, Words* words) noexcept nogil:
    """Stand at the group's next entry; False: its key is no word behind the prefix."""
    cdef const uint8_t* at = words.at
    cdef size_t prefix = walker.at.search.shared, kept, size
    cdef uint64_t word
    if at == NULL or (at[0] | at[1]) & 0x80:
        return False
    kept = <size_t> at[0] - prefix  # wraps if it is less, and is too large then
    size = kept + at[1]
    if kept > 7 or at[1] == 0 or size > 8 or at + 2 + at[1] >= words.end:
        return False
    word = __builtin_bswap64(load_u64(at + 2))
    if kept:
        word = (word >> (8 * kept)) | _cut(words.word, kept)
    words.word = _cut(word, size)
    words.number += 1
    words.at = _behind_numbers(at + 2 + at[1])
    return words.at != NULL and words.at <= words.end
