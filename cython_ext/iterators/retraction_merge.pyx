"""Entries without retracted rows, for merges into the bottom, where no run is older.

- Streams from the number `streams` on are hidden: they hold the retractions of the streams before
  them, which come first.
- Each removal is determined twice, key by key: at a key, the retracted rows; at the hidden key of
  the same name, the retractions that found a row. A second reader of the same entries supplies the
  other side, so nothing is kept from one key to another.
- Both answers follow from the entries alone. A merge that continues after some key therefore
  reaches the same answers.
- Memory: one table of counts, whatever a key holds. Retractions that do not fit are counted in
  parts: several passes over the key, each for a window of its rows.
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
    # Keys that are skipped one by one; beyond that, opening the files again at the key is cheaper.
    MOST_STEPS = 256
    # Part of a table's memory for a window of marks.
    TABLES_PER_WINDOW = 4


cdef inline uint32_t _stream_of(const uint8_t* key) noexcept nogil:
    return (<uint32_t> key[0] << 8) | key[1]


@cython.final
cdef class KeyWalk:
    """A second reader of the entries, in ascending order. `opened` returns a source of those from a
    key on."""

    cdef object opened
    cdef EntrySource source       # None: not begun
    cdef bint standing            # at an entry

    def __init__(self, opened):
        self.opened = opened

    cdef int find(self, uint32_t stream, const uint8_t* key, size_t size) except -1 nogil:
        """Test whether the key has rows in a stream; these are then next."""
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
            if steps == MOST_STEPS:  # only once: the files may not lead there
                with gil:
                    self._open(int(stream).to_bytes(STREAM_BYTES, "big") + key[STREAM_BYTES:size])
            else:
                self.standing = self.source.next_key()
        return 0

    cdef int _order(self, uint32_t stream, const uint8_t* key, size_t size) noexcept nogil:
        cdef uint32_t own
        if self.source.key_size < STREAM_BYTES:  # the file is damaged
            return -1
        own = _stream_of(self.source.key)
        if own != stream:
            return 1 if own > stream else -1
        return compare(
            self.source.key + STREAM_BYTES, self.source.key_size - STREAM_BYTES,
            key + STREAM_BYTES, size - STREAM_BYTES,
        )

    cdef int again(self) except -1 nogil:
        """Seek to the first row of the same key again."""
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
    """The filtered entries of `source`, which this iterator owns. `opened` returns other sources of
    the same entries, from a key on. A table takes at most `most_bytes`, a window a part of that."""

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
        """Test whether there are retracted rows. It reads up to the first one, so the source has no
        other use afterwards."""
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
        """Determine what is removed of the current key, whose other side was found."""
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
        """Count the retractions of one part, from the first one on. Return 0 if they do not fit;
        there are then more `parts`."""
        cdef uint64_t rows = self.hidden.source.rows
        cdef uint64_t seen = 0
        cdef RowRef row
        self.left.start(rows // self.parts + 1, part, self.parts)
        while self.hidden.source.next_row(&row):
            if not self.left.add(0, row.data, row.size):
                # The number of parts, if the rest is like what was seen, and a tenth more.
                self.parts = max(
                    self.parts + 1, self.parts * (rows + rows // 10) // (seen + 1)
                )
                return 0
            seen += 1
        return 1

    cdef int _take_all(self) except -1 nogil:
        """Leave only the retractions without a row in the table."""
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
            # Retracted rows are removed; of the retractions, all but those still left.
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
        """Seek, before the first entry was read."""
        return self.source.seek(key, size)
