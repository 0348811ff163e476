"""Merge of k sources: keys in order, the rows of a key from the oldest source to the newest.

- Sources are ordered by age, and only neighbouring runs are merged. Order by age is thus the order
  of (sequence, ordinal).
- An entry that resets its key hides the rows of all older sources, and so does a range that a
  source deleted.
- The least key is found by a tournament tree of losers (Knuth, The Art of Computer Programming,
  volume 3, 5.4.1): a step replays the matches of one leaf.
- Matches of keys up to sixteen bytes, without their common prefix, have no branch, because the
  winner is unpredictable.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from lsmstate.cython_ext.base.coding cimport compare, load_u64, shared_prefix
from lsmstate.cython_ext.entries.entry_source cimport FLAG_RESET, EntrySource, RowRef
from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges

cdef extern from *:
    """
    /* Order of heads, by the rest of their keys: what is behind the common bytes. By its first
       sixteen bytes as one number, zeros where there are less; then by `rank`: its length up to
       sixteen, or one more for all longer ones, and the child's number, so that of equal keys the
       oldest wins. Longer rests that begin alike are compared to their ends. Where keys descend,
       words and lengths are turned round, so that longer keys come first. */
    enum { LSM_LONG = 17, LSM_AT_END = 18, LSM_LEAST_COMMON = 8 };

    static inline uint64_t lsm_word(const uint8_t* at) {
        uint64_t word;
        memcpy(&word, at, 8);
        return __builtin_bswap64(word);
    }

    static inline void lsm_stand(lsm_head* head, const uint8_t* key, size_t size, size_t common,
                                 uint32_t child, int descends) {
        uint64_t first = 0, second = 0;
        size_t length;
        head->key = key;
        head->size = size;
        key += common;
        size -= common;
        head->rest = size;
        length = size > 16 ? LSM_LONG : size;
        if (size < 8 && common >= LSM_LEAST_COMMON) {  /* the key's last eight, without common ones */
            first = size ? lsm_word(key + size - 8) << (8 * (8 - size)) : 0;
        } else if (size < 8) {
            memcpy(&first, key, size);
            first = __builtin_bswap64(first);
        } else {
            first = lsm_word(key);
            if (size >= 16)
                second = lsm_word(key + 8);
            else if (size > 8)  /* the last eight bytes without those that `first` has */
                second = lsm_word(key + size - 8) << (8 * (16 - size));
        }
        head->words = (lsm_words)first << 64 | second;
        if (descends) {
            head->words = ~head->words;
            length = LSM_LONG - length;
        }
        head->rank = (uint64_t)length << 32 | child;
    }

    static inline void lsm_end(lsm_head* head, uint32_t child) {
        head->words = ~(lsm_words)0;
        head->rank = (uint64_t)LSM_AT_END << 32 | child;
        head->key = NULL;
        head->size = head->rest = 0;
    }

    static inline int lsm_at_end(const lsm_head* head) { return head->rank >> 32 == LSM_AT_END; }

    static inline int lsm_alike(const lsm_head* a, const lsm_head* b) {
        return a->words == b->words && a->rank >> 32 == b->rank >> 32;
    }

    static inline const uint8_t* lsm_rest(const lsm_head* head) {
        return head->key + head->size - head->rest;
    }

    static inline int lsm_long(const lsm_head* head) { return head->rest >= LSM_LONG; }

    static inline int lsm_before(const lsm_head* a, const lsm_head* b) {
        return (a->words < b->words) | ((a->words == b->words) & (a->rank < b->rank));
    }
    """
    enum:
        LSM_LONG
        LSM_LEAST_COMMON
    void lsm_stand(
        Head* head, const uint8_t* key, size_t size, size_t common, uint32_t child, bint descends
    ) noexcept nogil
    void lsm_end(Head* head, uint32_t child) noexcept nogil
    bint lsm_at_end(const Head* head) noexcept nogil
    bint lsm_alike(const Head* a, const Head* b) noexcept nogil
    const uint8_t* lsm_rest(const Head* head) noexcept nogil
    bint lsm_long(const Head* head) noexcept nogil
    bint lsm_before(const Head* a, const Head* b) noexcept nogil

cdef enum:
    # How often it is looked for, or as many times as there are heads: they have less in common while
    # they pass from one stream or thousand to the next, and more behind that.
    STEPS_TO_COMMON = 256
    # Less is not worth a look at every key; and eight bytes before the rest may be read.
    LEAST_COMMON = LSM_LEAST_COMMON


cdef inline bint _precedes(const Head* a, const Head* b, int sign) noexcept nogil:
    cdef int order
    if lsm_long(a) and lsm_alike(a, b):
        order = sign * compare(lsm_rest(a), a.rest, lsm_rest(b), b.rest)
        return order < 0 if order else a.rank < b.rank
    return lsm_before(a, b)


cdef inline bint _equal(const Head* a, const Head* b) noexcept nogil:
    return lsm_alike(a, b) and (
        not lsm_long(a) or a.rest == b.rest and memcmp(lsm_rest(a), lsm_rest(b), a.rest) == 0
    )


cdef inline bint _begins_with(
    const uint8_t* key, size_t size, const uint8_t* prefix, size_t prefix_size
) noexcept nogil:
    """The prefix has eight bytes at least; the last word read may overlap the one before."""
    cdef size_t place = 0
    if size < prefix_size:
        return False
    while place + 8 < prefix_size:
        if load_u64(key + place) != load_u64(prefix + place):
            return False
        place += 8
    return load_u64(key + prefix_size - 8) == load_u64(prefix + prefix_size - 8)


@cython.final
cdef class MergingSource(EntrySource):
    """Sources, oldest first, which this iterator owns from now on. With ``reverse`` they, and it,
    descend."""

    def __init__(self, sources: list, bint reverse=False):
        cdef EntrySource source
        self.sources = list(sources)
        self.count = len(self.sources)
        self.children = <void**> calloc(self.count + 1, sizeof(void*))
        self.heads = <Head*> calloc(self.count + 1, sizeof(Head))
        self.tree = <uint32_t*> calloc(self.count + 1, sizeof(uint32_t))
        self.standing = <uint32_t*> calloc(self.count + 1, sizeof(uint32_t))
        if (
            self.children == NULL or self.heads == NULL or self.tree == NULL
            or self.standing == NULL
        ):
            raise MemoryError(f"no memory to merge {self.count} sources")
        for i, source in enumerate(self.sources):
            self.children[i] = <void*> source
        self.sign = -1 if reverse else 1
        self._take_ranges()

    cdef int _take_ranges(self) except -1:
        """Collect what the sources deleted in all, and which source deleted what."""
        cdef EntrySource source
        cdef KeyRanges joined = KeyRanges()
        for source in self.sources:
            if source.deleted is not None:
                joined = joined.joined(source.deleted)
        self.deleted = joined
        if joined.count == 0:
            return 0
        self.ranges = <void**> calloc(self.count, sizeof(void*))
        if self.ranges == NULL:
            raise MemoryError(f"no memory to merge {self.count} sources")
        for i, source in enumerate(self.sources):
            if source.deleted is not None:
                self.ranges[i] = <void*> source.deleted
        return 0

    def __dealloc__(self):
        free(self.ranges)
        free(self.children)
        free(self.heads)
        free(self.tree)
        free(self.standing)

    cdef int _advance_child(self, uint32_t i) except -1 nogil:
        cdef Head* head = &self.heads[i]
        cdef const uint8_t* key
        cdef size_t size
        # Before the child advances: its error would leave the head with an invalid key.
        lsm_end(head, i)
        if (<EntrySource> self.children[i]).next_key():
            key = (<EntrySource> self.children[i]).key
            size = (<EntrySource> self.children[i]).key_size
            if self.common_size and not _begins_with(key, size, self.common, self.common_size):
                self._set_common(shared_prefix(self.common, self.common_size, key, size))
            lsm_stand(head, key, size, self.common_size, i, self.sign < 0)
        return 0

    cdef void _set_common(self, size_t size) noexcept nogil:
        """Set the prefix of `size` bytes that all heads share: only bytes after it are compared, or
        all if it is short. Reads the keys of all heads, also of those whose rows were read. Matches
        that were played stay valid, since the order of the heads does not change."""
        cdef uint32_t i
        cdef Head* head
        self.common_size = size if size >= LEAST_COMMON else 0
        for i in range(<uint32_t> self.count):
            head = &self.heads[i]
            if not lsm_at_end(head):
                lsm_stand(head, head.key, head.size, self.common_size, i, self.sign < 0)

    cdef void _find_common(self) noexcept nogil:
        """Find the common prefix of the heads' keys again, if one of them is long: others are
        compared without a branch anyway."""
        cdef const Head* first = NULL
        cdef const Head* head
        cdef size_t longest = 0, shared = 0
        cdef uint32_t i
        for i in range(<uint32_t> self.count):
            head = &self.heads[i]
            if lsm_at_end(head):
                continue
            if first == NULL:
                first = head
                shared = min(head.size, <size_t> MOST_COMMON)
            shared = shared_prefix(first.key, shared, head.key, head.size)
            longest = max(longest, head.size)
        if longest < LSM_LONG:
            shared = 0
        elif shared:
            memcpy(self.common, first.key, shared)
        self._set_common(shared)
        self.steps_to_common = max(<uint32_t> STEPS_TO_COMMON, <uint32_t> self.count)

    cdef int _grow_tree(self) except -1 nogil:
        """Play all matches, after every child was advanced."""
        cdef size_t leaves = <size_t> self.count, node
        cdef uint32_t i, left, right
        cdef uint32_t* winners
        # The heads' keys are invalid: none may be read until every child was advanced.
        for i in range(<uint32_t> leaves):
            lsm_end(&self.heads[i], i)
        self.common_size = 0
        for i in range(<uint32_t> leaves):
            self._advance_child(i)
        self._find_common()
        winners = <uint32_t*> malloc((2 * leaves + 1) * sizeof(uint32_t))
        if winners == NULL:
            with gil:
                raise MemoryError(f"no memory to merge {self.count} sources")
        for i in range(<uint32_t> leaves):
            winners[leaves + i] = i
        for node in range(leaves - 1, 0, -1):
            left = winners[2 * node]
            right = winners[2 * node + 1]
            if _precedes(&self.heads[right], &self.heads[left], self.sign):
                left, right = right, left
            winners[node] = left
            self.tree[node] = right
        self.tree[0] = winners[1]
        free(winners)
        self.has_tree = True
        return 0

    cdef int _advance(self) except -1 nogil:
        """Advance every child at the current key, and find the least key."""
        cdef size_t leaves = <size_t> self.count, node
        cdef uint32_t i, loser
        cdef bint wins
        cdef Py_ssize_t turn
        if not self.has_tree:
            return self._grow_tree()
        # The oldest of them has won. Once its matches are replayed, the next one wins: its head is
        # still at the current key, and all others are after it.
        for turn in range(self.stand):
            i = self.tree[0]
            self._advance_child(i)
            node = (leaves + i) >> 1
            while node:
                loser = self.tree[node]
                wins = _precedes(&self.heads[loser], &self.heads[i], self.sign)
                self.tree[node] = i if wins else loser
                i = loser if wins else i
                node >>= 1
            self.tree[0] = i
        self.steps_to_common -= 1
        if self.steps_to_common == 0:
            self._find_common()
        return 0

    cdef int _refuse(self) except -1 nogil:
        with gil:
            raise ValueError("a merge in which an error was met goes on after a seek only")

    cdef void _find_equals(self, uint32_t i, size_t top) noexcept nogil:
        """Add to `standing` the children with the current key that lost to child `i` below node
        `top`, and those that lost to these: no other child can have beaten them."""
        cdef size_t node = (<size_t> self.count + i) >> 1
        cdef Py_ssize_t place
        cdef uint32_t loser
        while node > top:
            loser = self.tree[node]
            if _equal(&self.heads[loser], &self.heads[self.tree[0]]):
                place = self.stand
                self.stand += 1
                while self.standing[place - 1] > loser:
                    self.standing[place] = self.standing[place - 1]
                    place -= 1
                self.standing[place] = loser
                self._find_equals(loser, node)
            node >>= 1

    cdef int next_key(self) except -1 nogil:
        cdef uint32_t least
        if self.count == 0:
            return 0
        if self.halfway:
            self._refuse()
        self.halfway = True
        self._advance()
        self.halfway = False
        self.stand = 0
        least = self.tree[0]
        if lsm_at_end(&self.heads[least]):
            return 0
        self.standing[0] = least
        self.stand = 1
        self._find_equals(least, 0)
        self.key = self.heads[least].key
        self.key_size = self.heads[least].size
        self._take_entries()
        return 1

    cdef void _take_entries(self) noexcept nogil:
        """Collect entries from the newest child to the oldest, until one hides all older ones."""
        cdef Py_ssize_t bound = self.count
        self.flags = 0
        self.rows = 0
        self.row_bytes = 0
        self.place = self.stand
        while self.place > 0 and not self.flags:
            if self.ranges != NULL:
                if self._is_covered(self.standing[self.place - 1] + 1, bound):
                    break
                bound = self.standing[self.place - 1] + 1
            self.place -= 1
            self.flags = (<EntrySource> self._child()).flags & FLAG_RESET
            self.rows += (<EntrySource> self._child()).rows
            self.row_bytes += (<EntrySource> self._child()).row_bytes
        self._take_giver()
        self.has_givers = self.place < self.stand - 1 or (
            self.place < self.stand and (<EntrySource> self._child()).has_givers
        )

    cdef bint _is_covered(self, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
        """Test whether one of these children deleted the current key as part of a range."""
        cdef Py_ssize_t i
        for i in range(start, end):
            if self.ranges[i] != NULL and (<KeyRanges> self.ranges[i]).covers(
                self.key, self.key_size
            ):
                return True
        return False

    cdef inline void* _child(self) noexcept nogil:
        """Return the child whose rows are being read."""
        return self.children[self.standing[self.place]]

    cdef int next_row(self, RowRef* row) except -1 nogil:
        while self.place < self.stand:
            if (<EntrySource> self.giver).next_row(row):
                return 1
            self.next_giver()
        return 0

    cdef int next_giver(self) except -1 nogil:
        if self.place < self.stand and not (
            (<EntrySource> self._child()).has_givers and (<EntrySource> self._child()).next_giver()
        ):
            self.place += 1
        self._take_giver()
        return self.place < self.stand

    cdef void _take_giver(self) noexcept nogil:
        self.giver = <void*> self
        if self.place < self.stand:
            self.giver = (<EntrySource> self._child()).giver

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        cdef Py_ssize_t i
        self.halfway = True
        for i in range(self.count):
            (<EntrySource> self.children[i]).seek(key, size)
        self.halfway = False
        self.has_tree = False
        self.stand = 0
        self.place = 0
        return 0


@cython.final
cdef class ChainSource(EntrySource):
    """The files of one run, one after another; each is opened when its turn comes."""

    def __init__(self, openers: list, KeyRanges deleted=None):
        self.deleted = deleted
        self.waiting = list(reversed(openers))
        self.source = None

    cdef int _open_next(self) except -1:
        if not self.waiting:
            self.source = None
            return 0
        # A file that cannot be opened is not skipped the next time.
        self.source = self.waiting[len(self.waiting) - 1]()
        self.waiting.pop()
        return 1

    cdef int next_key(self) except -1 nogil:
        cdef bint opened
        while True:
            if <void*> self.source != <void*> None and self.source.next_key():
                self.giver = self.source.giver
                self.has_givers = self.source.has_givers
                self.key = self.source.key
                self.key_size = self.source.key_size
                self.flags = self.source.flags
                self.rows = self.source.rows
                self.row_bytes = self.source.row_bytes
                return 1
            with gil:
                opened = self._open_next()
            if not opened:
                return 0

    cdef int next_row(self, RowRef* row) except -1 nogil:
        return self.source.next_row(row)

    cdef int next_giver(self) except -1 nogil:
        cdef bint found = self.source.next_giver()
        self.giver = self.source.giver
        return found

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        """Seek once, before anything is read: files before the key are opened and skipped."""
        with gil:
            if self.source is not None:
                raise ValueError("a chain of files is sought in once, before it is read")
            while self._open_next():
                self.source.seek(key, size)
                if self.source.next_key():
                    self.source.seek(key, size)
                    break
        return 0
