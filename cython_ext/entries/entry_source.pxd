from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges

cdef enum:
    FLAG_RESET = 1      # the rows stored before this entry are deleted
    FLAG_CONTINUES = 2  # on disk only: the next key block begins with more rows of this key

cdef struct RowRef:
    const uint8_t* data
    size_t size
    uint64_t sequence
    uint32_t ordinal


cdef class EntrySource:
    # The current entry. Its key lives until next_key or seek, also while its rows are read and if
    # that fails.
    cdef const uint8_t* key
    cdef size_t key_size
    cdef uint8_t flags
    cdef uint64_t rows
    cdef uint64_t row_bytes
    cdef readonly KeyRanges deleted    # keys that this source deletes from all older ones, or None
    # 1: there is an entry, 0: the end. Skips the remaining rows of the previous entry. After an
    # error in any method, only seek is allowed.
    cdef int next_key(self) except -1 nogil
    # 1: a row, which lives until the next call of any method; 0: the entry has no more rows.
    cdef int next_row(self, RowRef* row) except -1 nogil
    # A reader of all rows of an entry may read them directly from the source that has them, in the
    # same order and without intermediate calls. It reads those of `giver` (borrowed) by its
    # next_row; then, if `has_givers`, those of each `giver` that next_giver sets while it returns
    # 1.
    cdef void* giver
    cdef bint has_givers
    cdef int next_giver(self) except -1 nogil
    # Of a giver: the last row is no longer needed, and may be released before the next one.
    cdef void done_with_row(self) noexcept nogil
    # The same for a row that the next call is to return again; False: the row must be kept instead.
    cdef bint put_row_back(self) noexcept nogil
    # Seek to the first key that is not less, which next_key then returns. A descending source seeks
    # to the first key that is less: in both directions, a bound belongs to the keys above it.
    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil
