"""Entries without the rows that were retracted, for merges below which nothing is older.

Streams from the number `streams` on are hidden: they hold the retractions of the streams before
them, which come first. So a second source of the same entries goes ahead in the hidden streams,
key by key beside the real ones; what no row was found for is kept until the first source has come
to that hidden key. Only so much is kept: the rest stays as it is, which is as true on reading.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t

from cython_ext.coding cimport compare
from cython_ext.entries cimport EntrySource, RowRef

cdef enum:
    STREAM_BYTES = 2
    MOST_KEPT_BYTES = 1 << 20


cdef inline uint32_t _stream_of(const uint8_t* key) noexcept nogil:
    return (<uint32_t> key[0] << 8) | key[1]


@cython.final
cdef class RetractingSource(EntrySource):
    """`hidden` gives the same entries as `source`; both belong to this iterator from now on."""

    cdef EntrySource source
    cdef EntrySource hidden
    cdef uint32_t streams
    cdef bint has_hidden          # `hidden` stands at an entry
    cdef bint is_hidden           # the current entry is one of a hidden stream
    cdef bint filtering           # rows of the current entry may have been retracted
    cdef bint has_first           # `first` is a row still to be given
    cdef RowRef first
    cdef bytes current            # its key, which outlives the reading of rows
    cdef bytes current_hidden     # and the hidden one of the same name
    cdef dict left                # row -> places of its retractions, oldest first
    cdef dict kept                # hidden key -> (row, sequence, ordinal) without a row
    cdef int64_t kept_bytes
    cdef list given               # those of the current hidden key, or None
    cdef Py_ssize_t place

    def __init__(self, EntrySource source not None, EntrySource hidden not None, streams):
        cdef bytes front = int(streams).to_bytes(STREAM_BYTES, "big")
        self.source = source
        self.hidden = hidden
        self.streams = streams
        self.deleted = source.deleted
        self.kept = {}
        self.hidden.seek(<const uint8_t*> <const char*> front, STREAM_BYTES)
        self.has_hidden = self.hidden.next_key()

    cdef int next_key(self) except -1 nogil:
        cdef bint found
        while True:
            self.filtering = False
            self.has_first = False
            if self.source.next_key() == 0:
                return 0
            self.key = self.source.key
            self.key_size = self.source.key_size
            self.flags = self.source.flags
            self.rows = self.source.rows
            self.row_bytes = self.source.row_bytes
            self.is_hidden = _stream_of(self.key) >= self.streams
            if self.is_hidden:
                with gil:
                    found = self._take_kept()
                if not found:
                    continue
            elif self.has_hidden and self.rows and self._find_hidden():
                with gil:
                    self._read_hidden()
                self.has_first = self._next_live(&self.first)
                if not self.has_first:
                    self.rows = 0
            return 1

    cdef int _find_hidden(self) except -1 nogil:
        """Whether the key has retractions that there is room for."""
        cdef uint32_t wanted = _stream_of(self.key) + self.streams
        cdef uint32_t stream
        cdef int order
        while self.has_hidden:
            stream = _stream_of(self.hidden.key)
            order = compare(
                self.hidden.key + STREAM_BYTES, self.hidden.key_size - STREAM_BYTES,
                self.key + STREAM_BYTES, self.key_size - STREAM_BYTES,
            ) if stream == wanted else (1 if stream > wanted else -1)
            if order == 0:
                return self.hidden.rows > 0 and (
                    self.kept_bytes + <int64_t> self.hidden.row_bytes <= MOST_KEPT_BYTES
                )
            if order > 0:
                return 0
            self.has_hidden = self.hidden.next_key()
        return 0

    cdef int _read_hidden(self) except -1:
        """Take over the retractions of the current key, and go ahead to the next hidden one."""
        cdef RowRef row
        self.current = <bytes> self.key[:self.key_size]
        self.key = <const uint8_t*> <const char*> self.current
        self.current_hidden = <bytes> self.hidden.key[:self.hidden.key_size]
        self.left = {}
        while self.hidden.next_row(&row):
            self.left.setdefault(<bytes> row.data[:row.size], []).append(
                (row.sequence, row.ordinal)
            )
        self.kept_bytes += <int64_t> self.hidden.row_bytes
        self.filtering = True
        self.has_hidden = self.hidden.next_key()
        return 0

    cdef int _next_live(self, RowRef* row) except -1 nogil:
        cdef bint taken
        while self.source.next_row(row):
            with gil:
                taken = self._take(row)
            if not taken:
                return 1
        with gil:
            self._keep_rest()
        return 0

    cdef bint _take(self, const RowRef* row) except -1:
        """Whether a retraction took the row."""
        cdef list places = self.left.get(<bytes> row.data[:row.size])
        if not places:
            return False
        places.pop(0)
        return True

    cdef int _keep_rest(self) except -1:
        """Behind the last row of a key: what found no row."""
        self.kept[self.current_hidden] = sorted(
            [
                (sequence, ordinal, data)
                for data, places in self.left.items()
                for sequence, ordinal in places
            ]
        )
        return 0

    cdef bint _take_kept(self) except -1:
        """Whether there is anything of the current hidden key to be given."""
        self.given = self.kept.pop(<bytes> self.key[:self.key_size], None)
        self.place = 0
        if self.given is None:
            return True
        self.rows = len(self.given)
        self.row_bytes = sum([len(data) for _, _, data in self.given])
        return self.rows > 0

    cdef int next_row(self, RowRef* row) except -1 nogil:
        if self.is_hidden:
            with gil:
                if self.given is not None:
                    return self._give(row)
            return self.source.next_row(row)
        if not self.filtering:
            return self.source.next_row(row)
        if self.has_first:
            row[0] = self.first
            self.has_first = False
            return 1
        return self._next_live(row) if self.rows else 0

    cdef int _give(self, RowRef* row) except -1:
        cdef bytes data
        if self.place >= len(self.given):
            return 0
        row.sequence, row.ordinal, data = self.given[self.place]
        row.data = <const uint8_t*> <const char*> data
        row.size = len(data)
        self.place += 1
        return 1

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        with gil:
            raise ValueError("retractions are taken from the beginning on")
