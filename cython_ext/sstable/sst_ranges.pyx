"""Walk of one SSTable over ranges of keys: where the rows of all keys in them lie, without reading
a row.

The ranges are disjoint and ascend, so partitions, key blocks and entries are visited in order. From
one range to the next the walk gallops, over index entries, restarts, or ranges without a key.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from lsmstate.cython_ext.base.coding cimport (
    Buffer, compare, load_u32, load_u64, put_bytes, put_u64, release,
)
from lsmstate.cython_ext.base.prefetch cimport prefetch_line
from lsmstate.cython_ext.sstable.block cimport BLOCK_INDEX, BLOCK_KEYS, BLOCK_TOP
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.sstable.index_block cimport (
    IndexBlock, index_entry, index_search, parse_index_block,
)
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyBlock, KeyEntry, KeySearch, enter_key_block, may_hold, next_entry, restart_place, row_block_place,
    search_key_block,
)
from lsmstate.cython_ext.sstable.sst_probe cimport Hit, HitList
from lsmstate.cython_ext.sstable.sst_reader cimport INDEX_PAYLOAD, USE_PROBE, Sst

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
    uint32_t partition
    CachedBlock* index_block
    uint64_t index_offset
    IndexBlock index
    uint32_t index_place
    CachedBlock* key_block
    uint64_t key_offset
    uint32_t key_size
    KeySearch search
    bint stands              # at an entry, of `search`
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
    walker.partition = NOWHERE
    try:
        return _walk(sst, &walker, segments, start, least, taken)
    finally:
        sst.cache.unpin(walker.index_block)
        sst.cache.unpin(walker.key_block)
        release(&walker.search.key)
        free(walker.words)


cdef Py_ssize_t _walk(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t start, const Buffer* least,
    Taken* taken
) except -1 nogil:
    cdef Py_ssize_t place = start
    cdef const uint8_t* low
    cdef size_t low_size
    cdef Buffer* key = &walker.search.key
    while place < segments.count:
        _low_of(segments, place, &low, &low_size)
        if place == start and compare(low, low_size, least.data, least.size) < 0:
            low = least.data
            low_size = least.size
        if not walker.stands or compare(key.data, key.size, low, low_size) < 0:
            walker.stands = False
            if not _find_block(sst, walker, low, low_size):
                return place
            # Its first segment may begin at `least`, which the segments do not say.
            if place != start and _is_dense(sst, walker, segments, place):
                if not _walk_block(sst, walker, segments, &place):
                    return place
                if not walker.stands:
                    continue
            elif not _seek(sst, walker, low, low_size):
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
    cdef Buffer* key = &walker.search.key
    while compare(key.data, key.size, segments.data + at[0], at[1] - at[0]) < 0:
        if is_enough(taken, key.data, key.size):
            return False
        _take(sst, walker, taken)
        if not _advance(sst, walker):
            return False
    return True


cdef bint _find_block(
    Sst sst, Walker* walker, const uint8_t* key, size_t size
) except -1 nogil:
    """Enter the key block in which the key would be; False: it is greater than all of the file."""
    cdef uint32_t start = 0 if walker.partition == NOWHERE else walker.partition
    cdef long found = index_search(&sst.top, start, key, size)
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
    return True


cdef bint _seek(Sst sst, Walker* walker, const uint8_t* key, size_t size) except -1 nogil:
    """Stand at the first entry whose key is not less than this, which is greater than the current
    one, in this block or behind it; False: the file has none."""
    cdef KeySearch* search = &walker.search
    cdef int state = search_key_block(search, key, size)
    if state < 0:
        sst.damaged(walker.key_offset, BLOCK_KEYS)
    walker.stands = True
    if state:
        return True
    if search.restart == NOWHERE:
        return _enter_group(sst, walker, 0) and _advance(sst, walker)
    if search.group == search.restart and compare(
        search.key.data, search.key.size, key, size
    ) >= 0:
        return True
    return _advance(sst, walker)  # the group ends before the key


cdef bint _is_dense(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t place
) except -1 nogil:
    """Whether another segment begins in the current block, whose keys are known by words."""
    cdef const uint8_t* low
    cdef size_t low_size
    if walker.words_state == NO_WORDS or place + 1 >= segments.count:
        return False
    if walker.words_state == HAS_WORDS:
        return True
    _low_of(segments, place + 1, &low, &low_size)
    return _is_in_block(sst, walker, low, low_size) and _make_words(walker)


cdef bint _is_in_block(
    Sst sst, Walker* walker, const uint8_t* key, size_t size
) except -1 nogil:
    """Whether a key behind the block's first one would be in the block."""
    cdef const uint8_t* last
    cdef const uint8_t* payload
    cdef size_t last_size
    if index_entry(&walker.index, walker.index_place, &last, &last_size, &payload):
        sst.damaged(walker.index_offset, BLOCK_INDEX)
    return compare(key, size, last, last_size) <= 0


cdef bint _make_words(Walker* walker) noexcept nogil:
    """Note each restart's key as a word: what follows the prefix that all of them share. False: one
    of them is longer than that."""
    cdef const KeyBlock* block = &walker.search.block
    cdef size_t prefix = walker.search.shared, size
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
    cdef size_t prefix = walker.search.shared
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
    cdef uint32_t last = walker.search.block.restart_count - 1
    cdef Words words
    if walker.search.restart == NOWHERE:
        walker.search.restart = 0
    _begin_words(walker, &words, walker.search.restart)
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
            walker.search.key.size = 0
            _enter_group(sst, walker, words.restart)
            for _ in range(words.number + 1):
                _advance(sst, walker)
            walker.stands = True
            return _go_on_to(
                sst, walker, segments.data + at[0], at[1] - at[0]
            )
        place[0] += 1
    return _restart_block(sst, walker)


cdef bint _go_on_to(Sst sst, Walker* walker, const uint8_t* key, size_t size) except -1 nogil:
    """Stand at the first entry from here on whose key is not less; False: there is none."""
    while compare(walker.search.key.data, walker.search.key.size, key, size) < 0:
        if not _advance(sst, walker):
            return False
    return True


cdef bint _restart_block(Sst sst, Walker* walker) except -1 nogil:
    """Have the next search in the block begin at its start."""
    if enter_key_block(walker.key_block.data, walker.key_block.size, &walker.search):
        sst.damaged(walker.key_offset, BLOCK_KEYS)
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
    if not _is_in_block(sst, walker, low, low_size):
        return _restart_block(sst, walker)
    walker.search.key.size = 0
    _enter_group(sst, walker, walker.search.block.restart_count - 1)
    walker.stands = True
    return _advance(sst, walker) and _go_on_to(sst, walker, low, low_size)


cdef bint _leave_block(
    Sst sst, Walker* walker, const Segments* segments, Py_ssize_t place
) except -1 nogil:
    """All keys of the block are less than a segment's: stand at the next block's first entry, if the
    index does not lead elsewhere. False: the file has no more entries."""
    cdef const uint8_t* low
    cdef size_t low_size
    _low_of(segments, place, &low, &low_size)
    _enter_group(sst, walker, walker.search.block.restart_count - 1)
    walker.search.place = walker.search.group_end
    if not _is_in_block(sst, walker, low, low_size):
        return _restart_block(sst, walker)
    walker.search.key.size = 0
    walker.stands = True
    return _advance(sst, walker) and _go_on_to(sst, walker, low, low_size)


cdef inline void _begin_words(
    const Walker* walker, Words* words, uint32_t restart
) noexcept nogil:
    """Stand at the first entry of a restart's group."""
    cdef const KeyBlock* block = &walker.search.block
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
    cdef uint32_t count = walker.search.block.restart_count
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
    cdef size_t prefix = walker.search.shared, kept, size
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
    walker.words_state = UNKNOWN_WORDS
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
