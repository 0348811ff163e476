"""All rows of one stream out of any source of entries, in pieces of bounded size."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from cython_ext.budget cimport PROBE, Budget
from cython_ext.coding cimport Buffer, put_bytes, put_u64, release
from cython_ext.entries cimport EntrySource, RowRef
from cython_ext.row_codec cimport RowCodec


@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Scanner:
    """All rows of one stream out of a source, in pieces."""

    cdef EntrySource source
    cdef uint32_t stream
    cdef RowCodec codec
    cdef Budget budget
    cdef bint inside
    cdef bint ended
    cdef Buffer staging
    cdef Buffer offsets
    cdef int64_t charged

    def __init__(
        self, EntrySource source not None, uint32_t stream, RowCodec codec not None,
        Budget budget not None,
    ):
        cdef uint8_t start[2]
        self.source = source
        self.stream = stream
        self.codec = codec
        self.budget = budget
        start[0] = <uint8_t> (stream >> 8)
        start[1] = <uint8_t> stream
        with nogil:
            self.source.seek(start, 2)

    def __dealloc__(self):
        release(&self.staging)
        release(&self.offsets)
        if self.budget is not None:
            self.budget.release(PROBE, self.charged)

    def next_piece(self, int64_t max_bytes):
        """A RecordBatch with about max_bytes of encoded rows, or None at the end."""
        cdef RowRef row
        cdef Py_ssize_t n = 0
        cdef int64_t grown
        self.staging.size = 0
        self.offsets.size = 0
        with nogil:
            put_u64(&self.offsets, 0)
            # A piece holds at least one row, however little is asked for.
            while not self.ended and (
                n == 0 or <int64_t> (self.staging.size + self.offsets.size) < max_bytes
            ):
                if not self.inside:
                    if self.source.next_key() == 0 or (
                        (<uint32_t> self.source.key[0] << 8) | self.source.key[1]
                    ) != self.stream:
                        self.ended = True
                        break
                    self.inside = True
                if self.source.next_row(&row):
                    put_bytes(&self.staging, row.data, row.size)
                    put_u64(&self.offsets, self.staging.size)
                    n += 1
                else:
                    self.inside = False
        grown = <int64_t> (self.staging.capacity + self.offsets.capacity) - self.charged
        self.budget.charge(PROBE, grown)
        self.charged += grown
        if n == 0:
            return None
        return self.codec.decode_c(
            self.staging.data, <const uint64_t*> self.offsets.data, n
        )
