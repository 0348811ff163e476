"""k sources in one: keys in order, the rows of a key from the oldest source to the newest.

Sources are ordered by age and merging joins neighbours only, so the order of age is the order of
(sequence, ordinal); an entry that resets its key hides the rows of all older sources, and so does
a range that a source deleted. At most a dozen sources are merged, so the least key is found by
looking at each.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cython_ext.coding cimport compare, load_u64
from cython_ext.entries cimport FLAG_RESET, EntrySource, RowRef
from cython_ext.key_ranges cimport KeyRanges

cdef extern from *:
    uint64_t __builtin_bswap64(uint64_t) nogil

cdef enum:
    AT_END = 0
    STANDS = 1
    TO_ADVANCE = 2
    GIVES = 3     # stands at the current key, and its rows count


cdef inline void _take_words(Head* head) noexcept nogil:
    """The first sixteen bytes of the key as two numbers; zeros where there are less."""
    head.first = 0
    head.second = 0
    if head.size < 8:
        memcpy(&head.first, head.key, head.size)
    else:
        head.first = load_u64(head.key)
        if head.size >= 16:
            head.second = load_u64(head.key + 8)
        elif head.size > 8:
            # The last eight bytes without those that `first` has.
            head.second = load_u64(head.key + head.size - 8) >> (8 * (16 - head.size))
    head.first = __builtin_bswap64(head.first)
    head.second = __builtin_bswap64(head.second)


cdef inline int _order(const Head* a, const Head* b) noexcept nogil:
    """Of two keys; most differ in their first sixteen bytes, and most are no longer than that."""
    if a.first != b.first:
        return -1 if a.first < b.first else 1
    if a.second != b.second:
        return -1 if a.second < b.second else 1
    if a.size <= 16 and b.size <= 16:
        return (a.size > b.size) - (a.size < b.size)
    return compare(a.key, a.size, b.key, b.size)


cdef class MergingSource(EntrySource):
    """Sources oldest first; they belong to this iterator from now on. With ``reverse`` they give
    their keys in descending order, and so does it."""

    def __init__(self, sources: list, bint reverse=False):
        cdef EntrySource source
        self.sources = list(sources)
        self.count = len(self.sources)
        self.children = <void**> calloc(self.count + 1, sizeof(void*))
        self.state = <uint8_t*> calloc(self.count + 1, 1)
        self.heads = <Head*> calloc(self.count + 1, sizeof(Head))
        if self.children == NULL or self.state == NULL or self.heads == NULL:
            raise MemoryError(f"no memory to merge {self.count} sources")
        for i, source in enumerate(self.sources):
            self.children[i] = <void*> source
            self.state[i] = TO_ADVANCE
        self.current = self.count
        self.sign = -1 if reverse else 1
        self._take_ranges()

    cdef int _take_ranges(self) except -1:
        """What the sources deleted, all in all, and who deleted what."""
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
        free(self.state)
        free(self.heads)

    cdef int _advance(self) except -1 nogil:
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.state[i] == TO_ADVANCE or self.state[i] == GIVES:
                self._advance_child(i)
        return 0

    cdef int _advance_child(self, Py_ssize_t i) except -1 nogil:
        cdef Head* head = &self.heads[i]
        self.state[i] = AT_END
        if (<EntrySource> self.children[i]).next_key() == 0:
            return 0
        head.key = (<EntrySource> self.children[i]).key
        head.size = (<EntrySource> self.children[i]).key_size
        _take_words(head)
        self.state[i] = STANDS
        return 0

    cdef int next_key(self) except -1 nogil:
        cdef Py_ssize_t i, least = -1
        cdef bint hidden = False
        self._advance()
        for i in range(self.count):
            if self.state[i] == STANDS and (
                least < 0 or self.sign * _order(&self.heads[i], &self.heads[least]) < 0
            ):
                least = i
        if least < 0:
            self.current = self.count
            return 0
        self.key = self.heads[least].key
        self.key_size = self.heads[least].size
        self.flags = 0
        self.rows = 0
        self.row_bytes = 0
        self.current = self.count
        # From the newest to the oldest, until one says that nothing older counts.
        for i in range(self.count - 1, least - 1, -1):
            if self.state[i] == STANDS and (
                i == least or _order(&self.heads[i], &self.heads[least]) == 0
            ):
                if hidden:
                    self.state[i] = TO_ADVANCE
                    continue
                self.state[i] = GIVES
                self.flags |= (<EntrySource> self.children[i]).flags & FLAG_RESET
                self.rows += (<EntrySource> self.children[i]).rows
                self.row_bytes += (<EntrySource> self.children[i]).row_bytes
                self.current = i
                hidden = (self.flags & FLAG_RESET) != 0
            if self.ranges != NULL and self.ranges[i] != NULL and not hidden:
                hidden = (<KeyRanges> self.ranges[i]).covers(self.key, self.key_size)
        return 1

    cdef int next_row(self, RowRef* row) except -1 nogil:
        while self.current < self.count:
            if self.state[self.current] == GIVES and (
                <EntrySource> self.children[self.current]
            ).next_row(row):
                return 1
            self.current += 1
        return 0

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        cdef Py_ssize_t i
        for i in range(self.count):
            (<EntrySource> self.children[i]).seek(key, size)
            self.state[i] = TO_ADVANCE
        self.current = self.count
        return 0


cdef class ChainSource(EntrySource):
    """The files of one run, one after the other; each is opened when its turn comes."""

    def __init__(self, openers: list, KeyRanges deleted=None):
        self.deleted = deleted
        self.waiting = list(reversed(openers))
        self.source = None

    cdef int _open_next(self) except -1:
        if not self.waiting:
            self.source = None
            return 0
        self.source = self.waiting.pop()()
        return 1

    cdef int next_key(self) except -1 nogil:
        cdef bint opened
        while True:
            if <void*> self.source != <void*> None and self.source.next_key():
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

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        """Only from the front: files before the key are opened and left behind."""
        with gil:
            if self.source is not None:
                raise ValueError("a chain of files is sought in once, before it is read")
            while self._open_next():
                self.source.seek(key, size)
                if self.source.next_key():
                    self.source.seek(key, size)
                    break
        return 0
