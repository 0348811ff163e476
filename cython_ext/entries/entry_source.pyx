"""The iterator contract: entries in key order, or in descending key order; the rows of an entry
always in arrival order."""

from libc.stdint cimport uint8_t


cdef class EntrySource:
    """Base class of memtable, SSTable and merging iterators; not usable by itself."""

    def __cinit__(self):
        self.giver = <void*> self

    cdef int next_key(self) except -1 nogil:
        with gil:
            raise TypeError("EntrySource is a base class")

    cdef int next_row(self, RowRef* row) except -1 nogil:
        with gil:
            raise TypeError("EntrySource is a base class")

    cdef int next_giver(self) except -1 nogil:
        return 0

    cdef void done_with_row(self) noexcept nogil:
        pass

    cdef bint put_row_back(self) noexcept nogil:
        return False

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        with gil:
            raise TypeError("EntrySource is a base class")

    def skip_behind(self, bytes key not None) -> None:
        """Continue with the first greater key. Only before the first entry was read."""
        cdef bytes start = key + b"\0"
        self.seek(<const uint8_t*> start, len(start))

    def entries(self, bytes start not None = b"") -> list[tuple[bytes, int, list[bytes]]]:
        """Return copies of all entries from `start` on: (key, flags, rows). For tests and dumps."""
        cdef RowRef row
        cdef list found = []
        cdef list rows
        self.seek(<const uint8_t*> start, len(start))
        while self.next_key():
            rows = []
            key = <bytes> self.key[:self.key_size]
            flags = self.flags
            while self.next_row(&row):
                rows.append(<bytes> row.data[:row.size])
            found.append((key, flags, rows))
        return found
