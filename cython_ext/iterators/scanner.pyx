"""Scanner: the rows of a key range from any source of entries, in pieces of bounded size."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

from lsmstate.cython_ext.errors import MemoryLimitError

from lsmstate.cython_ext.memory.budget cimport PROBE, Budget
from lsmstate.cython_ext.base.coding cimport STREAM_BYTES, Buffer, compare, put_bytes, put_u64, release
from lsmstate.cython_ext.entries.entry_source cimport EntrySource, RowRef
from lsmstate.cython_ext.keys.key_decode cimport KeyDecoder
from lsmstate.cython_ext.memory.read_budget cimport Piece, begin_piece, end_piece, kept_bytes, take_memory
from lsmstate.cython_ext.rows.row_codec cimport RowCodec


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Scanner:
    """Rows of the stored keys from `low` on and below `high` (None: no bound), in the source's
    order. ``reverse`` says that it is descending. With a decoder, keys are available too."""

    cdef EntrySource source
    cdef RowCodec codec
    cdef KeyDecoder decoder       # or None
    cdef Budget budget
    cdef bytes bound              # where the range ends, or None
    cdef bint reverse
    cdef bint inside              # an entry has been begun
    cdef bint waiting             # `row` is of the next piece
    cdef RowRef row
    cdef bint ended
    cdef Py_ssize_t rows          # of the piece given last
    cdef Buffer staging
    cdef Buffer offsets
    cdef Buffer keys              # of each row, as rows of the key's columns
    cdef Buffer key_offsets
    cdef Buffer key               # of the entry, as one of those
    cdef int64_t charged
    cdef Piece piece              # that is being made
    cdef bint is_refused          # memory, in the middle

    def __init__(
        self, EntrySource source not None, bytes low not None, bytes high, RowCodec codec not None,
        Budget budget not None, bint reverse=False, KeyDecoder decoder=None,
    ):
        cdef bytes start = high if reverse else low
        self.source = source
        self.codec = codec
        self.decoder = decoder
        self.budget = budget
        self.bound = low if reverse else high
        self.reverse = reverse
        if start is not None:
            self.source.seek(<const uint8_t*> <const char*> start, len(start))

    def __dealloc__(self):
        if self.budget is not None:
            self._free()

    cdef void _free(self) noexcept:
        release(&self.staging)
        release(&self.offsets)
        release(&self.keys)
        release(&self.key_offsets)
        release(&self.key)
        self.budget.release(PROBE, self.charged)
        self.charged = 0

    def next_piece(self, int64_t max_bytes):
        """Return a RecordBatch with about max_bytes of encoded rows, or None at the end."""
        cdef const uint8_t* bound = NULL
        cdef size_t bound_size = 0
        if self.is_refused:
            raise MemoryLimitError("an earlier piece of this read found no memory; iterate again")
        if self.bound is not None:
            bound = <const uint8_t*> <const char*> self.bound
            bound_size = len(self.bound)
        begin_piece(self.budget, max_bytes, &self.piece)
        try:
            with nogil:
                self._fill(self.piece.max_bytes, bound, bound_size)
            self._pay()
            if self.rows == 0:
                return None
            found = self.codec.decode_c(
                self.staging.data, <const uint64_t*> self.offsets.data, self.rows,
                self.budget,
            )
            if self.staging.capacity > kept_bytes(self.budget):  # for one huge row
                release(&self.staging)
                self._pay()
        except MemoryLimitError:
            self._free()
            self.source = None
            self.is_refused = True
            raise
        finally:
            end_piece(self.budget, &self.piece)
        return found

    cdef int _pay(self) except -1:
        """Charge the growth of the buffers. If that fails, the piece is lost with them."""
        cdef int64_t grown = <int64_t> (
            self.staging.capacity + self.offsets.capacity
            + self.keys.capacity + self.key_offsets.capacity + self.key.capacity
        ) - self.charged
        take_memory(self.budget, grown)
        self.charged += grown
        return 0

    def keys_of_piece(self):
        """Return the key of each row of the last piece. Needs a decoder."""
        return self.decoder.codec.decode_c(
            self.keys.data, <const uint64_t*> self.key_offsets.data, self.rows, self.budget
        )

    cdef int _fill(
        self, int64_t max_bytes, const uint8_t* bound, size_t bound_size
    ) except -1 nogil:
        self._begin_piece()
        while not self.ended and not self._is_full(max_bytes, 0):
            if not self.inside:
                if self.source.next_key() == 0 or self._is_outside(bound, bound_size):
                    self.ended = True
                    break
                self.inside = True
                self._decode_key()
            if not self.waiting and not self.source.next_row(&self.row):
                self.inside = False
                continue
            self.waiting = self._is_full(max_bytes, self.row.size)
            if self.waiting:
                # A large row is read twice instead of held for the next piece.
                if self.row.size > kept_bytes(self.budget):
                    self.waiting = not (<EntrySource> self.source.giver).put_row_back()
                break
            put_bytes(&self.staging, self.row.data, self.row.size)
            put_u64(&self.offsets, self.staging.size)
            self._put_key()
            self.rows += 1
            if self.row.size > kept_bytes(self.budget):  # it must not be held from piece to piece
                (<EntrySource> self.source.giver).done_with_row()
        return 0

    cdef int _begin_piece(self) except -1 nogil:
        self.rows = 0
        self.staging.size = 0
        self.offsets.size = 0
        self.keys.size = 0
        self.key_offsets.size = 0
        put_u64(&self.offsets, 0)
        put_u64(&self.key_offsets, 0)
        return 0

    cdef int _decode_key(self) except -1 nogil:
        cdef size_t size = self.source.key_size
        self.key.size = 0
        if <void*> self.decoder != <void*> None:
            # A key that is too short is then empty, which the decoder refuses.
            size = size - STREAM_BYTES if size > STREAM_BYTES else 0
            self.decoder.put_row(self.source.key + STREAM_BYTES, size, &self.key)
        return 0

    cdef int _put_key(self) except -1 nogil:
        put_bytes(&self.keys, self.key.data, self.key.size)
        put_u64(&self.key_offsets, self.keys.size)
        return 0

    cdef bint _is_outside(self, const uint8_t* bound, size_t bound_size) noexcept nogil:
        cdef int order
        if bound == NULL:
            return False
        order = compare(self.source.key, self.source.key_size, bound, bound_size)
        return order < 0 if self.reverse else order >= 0

    cdef bint _is_full(self, int64_t max_bytes, size_t row_bytes) noexcept nogil:
        """Test whether one more row does not fit into the piece, which holds at least one: an empty
        piece would look like the end. Offsets count, or empty rows would never fill it."""
        return self.rows > 0 and <int64_t> (
            self.staging.size + self.offsets.size + self.keys.size + row_bytes
        ) > max_bytes
