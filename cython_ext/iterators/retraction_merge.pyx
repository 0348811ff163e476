"""Entries without the rows that were retracted, for merges below which nothing is older.

Streams from the number `streams` on are hidden: they hold the retractions of the streams before
them, which come first. What goes is found twice, key by key: at a key, the rows that were retracted;
at the hidden key of the same name, the retractions that found a row. The same entries are read
beside for that, so nothing is kept from one key to the other. Both answers follow from the entries
alone, so whoever goes on behind some key comes to the same ones.

Memory: one table of counts, whatever a key holds. Retractions of a key that do not fit are counted
in parts, in so many passes over the key, each for a window of the rows that are given.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from lsmstate.cython_ext.memory.budget cimport MERGE, Budget
from lsmstate.cython_ext.base.coding cimport STREAM_BYTES, compare
from lsmstate.cython_ext.entries.entry_source cimport EntrySource, RowRef
from lsmstate.cython_ext.rows.retraction_counts cimport RowCounts

cdef enum:
    # Keys that are passed by one by one; then it is cheaper to open the files anew at the right one.
    MOST_STEPS = 256
    # Of what a table may take, a window of marks may take one.
    TABLES_PER_WINDOW = 4


cdef inline uint32_t _stream_of(const uint8_t* key) noexcept nogil:
    return (<uint32_t> key[0] << 8) | key[1]


@cython.final
cdef class KeyWalk:
    """The entries beside, looked for in ascending order. `opened` gives a source of them for those
    from a key on."""

    cdef object opened
    cdef EntrySource source       # None: not begun
    cdef bint standing            # at an entry

    def __init__(self, opened):
        self.opened = opened

    cdef int find(self, uint32_t stream, const uint8_t* key, size_t size) except -1 nogil:
        """Whether there are rows at the key of that name in a stream; then they are next."""
        cdef int order
        cdef int steps = 0
        if <void*> self.source == <void*> None:
            with gil:
                self._open(int(stream).to_bytes(STREAM_BYTES, "big") + key[STREAM_BYTES:size])
        while self.standing:
            order = self._order(stream, key, size)
            if order >= 0:
                return order == 0 and self.source.rows > 0
            steps += 1
            if steps == MOST_STEPS:  # once: whether they lead there is up to the files
                with gil:
                    self._open(int(stream).to_bytes(STREAM_BYTES, "big") + key[STREAM_BYTES:size])
            else:
                self.standing = self.source.next_key()
        return 0

    cdef int _order(self, uint32_t stream, const uint8_t* key, size_t size) noexcept nogil:
        cdef uint32_t own
        if self.source.key_size < STREAM_BYTES:  # of a damaged file
            return -1
        own = _stream_of(self.source.key)
        if own != stream:
            return 1 if own > stream else -1
        return compare(
            self.source.key + STREAM_BYTES, self.source.key_size - STREAM_BYTES,
            key + STREAM_BYTES, size - STREAM_BYTES,
        )

    cdef int again(self) except -1 nogil:
        """Stand before the first row of the same key once more."""
        with gil:
            self._open(<bytes> self.source.key[:self.source.key_size])
        return 0

    cdef int _open(self, bytes start) except -1:
        self.source = self.opened(start)
        self.source.seek(<const uint8_t*> <const char*> start, len(start))
        self.standing = self.source.next_key()
        return 0


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class RetractingSource(EntrySource):
    """`source` belongs to this iterator from now on; `opened` gives others of the same entries, for
    those from a key on. A table takes `most_bytes` at most, a window a part of that."""

    cdef EntrySource source
    cdef KeyWalk real
    cdef KeyWalk hidden
    cdef RowCounts left           # retractions of the current key that found no row so far
    cdef Budget budget
    cdef uint32_t streams
    cdef bint is_hidden           # the current entry is one of a hidden stream
    cdef bint filtering           # some of the current entry's rows may go
    cdef bint has_first           # `first` is a row still to be given
    cdef RowRef first
    cdef uint64_t parts           # 1: `left` has all; else `marks` say what is taken
    cdef uint8_t* marks
    cdef size_t window            # rows that have a mark
    cdef uint64_t marked_from
    cdef uint64_t marked_to
    cdef uint64_t index           # of the next row of the entry
    cdef uint64_t left_out        # rows and retractions that were not given

    def __init__(
        self, EntrySource source not None, opened, streams, Budget budget not None,
        size_t most_bytes,
    ):
        self.source = source
        self.deleted = source.deleted
        self.real = KeyWalk(opened)
        self.hidden = KeyWalk(opened)
        self.streams = streams
        self.budget = budget
        self.left = RowCounts(budget, "merge", most_bytes)
        self.window = max(<size_t> 1, most_bytes // TABLES_PER_WINDOW)

    def __dealloc__(self):
        if self.marks != NULL:
            self.budget.release(MERGE, <int64_t> self.window)
        free(self.marks)

    def has_pairs(self) -> bool:
        """Whether there are rows that were retracted. Reads up to the first one, so it is used for
        nothing else."""
        cdef RowRef row
        cdef bytes front = int(self.streams).to_bytes(STREAM_BYTES, "big")
        self.source.seek(<const uint8_t*> <const char*> front, STREAM_BYTES)
        with nogil:
            while self.left_out == 0 and self.next_key():
                while self.left_out == 0 and self.next_row(&row):
                    pass
        return self.left_out > 0

    cdef int next_key(self) except -1 nogil:
        cdef bint found
        cdef bint was_hidden = self.is_hidden
        self.filtering = False
        self.has_first = False
        if self.source.next_key() == 0:
            return 0
        self.key = self.source.key
        self.key_size = self.source.key_size
        self.flags = self.source.flags
        self.rows = self.source.rows
        self.row_bytes = self.source.row_bytes
        if self.rows == 0 or self.key_size < STREAM_BYTES:
            return 1
        self.is_hidden = _stream_of(self.key) >= self.streams
        if self.is_hidden and not was_hidden:
            with gil:  # both begin from the front
                self.real.source = None
                self.hidden.source = None
        if self.is_hidden:
            found = self.real.find(_stream_of(self.key) - self.streams, self.key, self.key_size)
        else:
            found = self.hidden.find(_stream_of(self.key) + self.streams, self.key, self.key_size)
        if found:
            self._match()
            self.has_first = self._next_given(&self.first)
            if not self.has_first:
                self.rows = 0
        return 1

    cdef int _match(self) except -1 nogil:
        """Find out what goes of the current key, whose other entry was found."""
        self.filtering = True
        self.parts = 1
        if self.is_hidden:
            self.hidden.find(_stream_of(self.key), self.key, self.key_size)
        if self._fill(0):
            if self.is_hidden:
                self._take_all()
            return 0
        if not self.is_hidden:
            self.real.find(_stream_of(self.key), self.key, self.key_size)
        self.index = 0
        self.marked_to = 0
        if self.marks == NULL:
            self.marks = <uint8_t*> malloc(self.window)
            if self.marks == NULL:
                with gil:
                    raise MemoryError(f"no memory to mark {self.window} rows")
            self.budget.charge(MERGE, <int64_t> self.window)
        return 0

    cdef int _fill(self, uint64_t part) except -1 nogil:
        """Count the retractions of one part, from the first one on. 0: they do not fit, and `parts`
        are more from now on."""
        cdef uint64_t rows = self.hidden.source.rows
        cdef uint64_t seen = 0
        cdef RowRef row
        self.left.start(rows // self.parts + 1, part, self.parts)
        while self.hidden.source.next_row(&row):
            if not self.left.add(0, row.data, row.size):
                # As many as it takes if what comes is like what was seen, and a tenth more.
                self.parts = max(
                    self.parts + 1, self.parts * (rows + rows // 10) // (seen + 1)
                )
                return 0
            seen += 1
        return 1

    cdef int _take_all(self) except -1 nogil:
        """Leave in the table what finds no row."""
        cdef RowRef row
        while self.left.used and self.real.source.next_row(&row):
            self.left.take(0, row.data, row.size)
        return 0

    cdef int _mark(self) except -1 nogil:
        """Mark which of the next rows are in the table, in as many passes as there are parts."""
        cdef uint64_t part = 0
        self.marked_from = self.marked_to
        self.marked_to += self.window
        memset(self.marks, 0, self.window)
        while part < self.parts:
            self.hidden.again()
            if not self._fill(part):
                part = 0
                memset(self.marks, 0, self.window)
                continue
            self.real.again()
            if self.is_hidden:
                self._take_all()
                self.hidden.again()
                self._mark_rows(self.hidden)
            else:
                self._mark_rows(self.real)
            part += 1
        return 0

    cdef int _mark_rows(self, KeyWalk walk) except -1 nogil:
        cdef uint64_t index = 0
        cdef RowRef row
        while index < self.marked_to and walk.source.next_row(&row):
            if self.left.take(0, row.data, row.size) and index >= self.marked_from:
                self.marks[index - self.marked_from] = 1
            index += 1
        return 0

    cdef int _next_given(self, RowRef* row) except -1 nogil:
        cdef bint taken
        while self.source.next_row(row):
            if self.parts == 1:
                taken = self.left.take(0, row.data, row.size)
            else:
                if self.index == self.marked_to:
                    self._mark()
                taken = self.marks[self.index - self.marked_from]
                self.index += 1
            # Rows that a retraction took go; of the retractions, all but those still left.
            if taken == self.is_hidden:
                return 1
            self.left_out += 1
        return 0

    cdef int next_row(self, RowRef* row) except -1 nogil:
        if not self.filtering:
            return self.source.next_row(row)
        if self.has_first:
            row[0] = self.first
            self.has_first = False
            return 1
        return self._next_given(row) if self.rows else 0

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        """Before the first entry was read."""
        return self.source.seek(key, size)
