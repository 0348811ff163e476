"""The rows a Lookup found, read in pieces.

Rows are copied, key by key and from the oldest tier to the newest, into one staging buffer of
bounded size, and decoded into an Arrow batch, portion by portion. Sorted keys visit the blocks of
each run in order, so each is loaded about once per batch, and only one per run is held at a time.
"""

cimport cython
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from cython_ext.errors import CorruptionError, MemoryLimitError

from cython_ext.block cimport (
    BLOCK_KEYS, BLOCK_ROWS, RowBlock, parse_row_block, row_span, set_upright, take_transposed,
)
from cython_ext.block_cache cimport CachedBlock, PassedBlock, free_passed, passed_bytes
from cython_ext.budget cimport PROBE
from cython_ext.coding cimport Buffer, put_bytes, put_u64, release, reserve
from cython_ext.file cimport is_there
from cython_ext.key_block cimport KeyBlock, parse_key_block, row_block_place
from cython_ext.lookup cimport Lookup, RunHits
from cython_ext.memtable cimport Chunk, RowHead
from cython_ext.read_memory cimport (
    Piece, begin_piece, end_piece, kept_bytes, pay_for_batch, take_memory,
)
from cython_ext.row_codec cimport BatchBuilder
from cython_ext.sst_probe cimport Hit
from cython_ext.sst_reader cimport USE_PROBE, Sst

cdef enum:
    PORTION_BYTES = 64 << 10  # of rows, that are decoded while they are in the nearer caches
    AHEAD_KEYS = 4           # about the time that the memory takes
    NEXT_KEYS = 32           # looked at for blocks that are worth reading together
    MOST_TOGETHER = 8        # blocks, or as much
    MOST_TRANSPOSED = 16     # rows of a key; for more it pays to set the whole block upright


cdef struct RunCursor:
    CachedBlock* block        # the row block being read, pinned if it is the cache's
    PassedBlock passed        # what is read past the cache
    uint64_t offset
    void* file
    RowBlock view
    CachedBlock* key_block    # of a hit that spans row blocks, pinned
    KeyBlock keys


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Cursor:
    """Rows of the keys at some ascending positions of a Lookup, piece by piece."""

    cdef Lookup lookup
    cdef object positions_array
    cdef const int64_t[::1] positions
    cdef Py_ssize_t place         # in positions
    cdef bint inside              # the key at `place` has been begun
    cdef Py_ssize_t tier          # being read
    cdef int32_t hit              # in a run
    cdef uint64_t left            # rows of the hit still to come; 0: not begun
    cdef uint32_t block_index
    cdef uint32_t row_index
    cdef uint64_t block_offset
    cdef uint32_t block_size
    cdef Chunk* chunk             # in a memtable
    cdef uint32_t chunk_place
    cdef RunCursor* cursors
    cdef Buffer staging
    cdef Buffer offsets
    cdef Buffer found
    cdef int64_t decoded          # bytes of the piece that have left the staging buffer
    cdef int64_t charged
    cdef Piece piece              # that is being made
    cdef bint is_refused          # memory, in the middle

    def __init__(self, Lookup lookup not None, positions):
        self.lookup = lookup
        self.positions_array = np.array(positions, dtype=np.int64)  # a copy: the caller's may change
        self.positions = self.positions_array
        self.cursors = <RunCursor*> calloc(lookup.run_count + 1, sizeof(RunCursor))
        if self.cursors == NULL:
            raise MemoryError("no memory to read rows")
        cdef Py_ssize_t i
        for i in range(self.positions.shape[0]):
            if not 0 <= self.positions[i] < lookup.n:
                raise IndexError(f"key position {self.positions[i]} of {lookup.n}")
            if i and self.positions[i] <= self.positions[i - 1]:
                raise ValueError("positions must ascend")

    def __dealloc__(self):
        if self.lookup is not None:
            self._free()
        free(self.cursors)

    cdef void _free(self) noexcept:
        cdef Py_ssize_t i
        if self.cursors != NULL:
            for i in range(self.lookup.run_count):
                self._unpin(&self.cursors[i])
                free_passed(&self.cursors[i].passed)
        release(&self.staging)
        release(&self.offsets)
        release(&self.found)
        self.lookup.budget.release(PROBE, self.charged)
        self.charged = 0

    cdef void _unpin(self, RunCursor* cursor) noexcept:
        if cursor.file != NULL:
            _leave_block(cursor)
            (<Sst> cursor.file).cache.unpin(cursor.key_block)
        cursor.key_block = NULL

    def next_piece(self, int64_t max_bytes):
        """(positions, RecordBatch) with about max_bytes of rows, or None at the end."""
        cdef BatchBuilder batch = BatchBuilder(self.lookup.codec, self.lookup.budget)
        self._check_paid()
        begin_piece(self.lookup.budget, max_bytes, &self.piece)
        try:
            with nogil:
                self._read_piece(batch, self.piece.max_bytes)
            return self._positions_and(batch) if self.found.size else None
        except CorruptionError as error:
            if not batch.is_adding:
                raise  # of a block
            raise batch.located(error) from None
        except MemoryLimitError:
            self._free()
            self.is_refused = True
            raise
        finally:
            end_piece(self.lookup.budget, &self.piece)

    cdef int _read_piece(self, BatchBuilder batch, int64_t max_bytes) except -1 nogil:
        """Without the interpreter, which another thread may have: each time one asks for it, that
        takes it 5 ms to give it up."""
        cdef Py_ssize_t begun = self.place
        self.staging.size = 0
        self.offsets.size = 0
        self.found.size = 0
        self.decoded = 0
        put_u64(&self.offsets, 0)
        while self.place < self.positions.shape[0]:
            if not self.inside:
                self._prefetch()
            if self._read_key(max_bytes):
                break  # the piece is full
            self.place += 1
            self.inside = False
            if self.staging.size >= PORTION_BYTES and self.offsets.size > 8 * 8:
                self._decode_portion(batch, max_bytes, self.place - begun)
        self._pay()
        batch.add(
            self.staging.data, <const uint64_t*> self.offsets.data,
            <Py_ssize_t> (self.offsets.size // 8) - 1, 0,
        )
        if self.staging.capacity > kept_bytes(self.lookup.budget):  # for one huge row
            release(&self.staging)
            self._pay()
        pay_for_batch(self.lookup.budget, &self.piece, batch.nbytes())
        return 0

    cdef object _positions_and(self, BatchBuilder batch):
        cdef Py_ssize_t n = <Py_ssize_t> (self.found.size // 8), i
        positions = np.empty(n, dtype=np.int64)
        cdef int64_t[::1] target = positions
        for i in range(n):
            target[i] = (<int64_t*> self.found.data)[i]
        return positions, batch.finished()

    cdef int _decode_portion(
        self, BatchBuilder batch, int64_t max_bytes, Py_ssize_t keys
    ) except -1 nogil:
        """Decode the rows that are staged, but for those behind the last eighth one. So many keys
        have been read for the piece: their rows say how many it will have, about."""
        cdef uint64_t* offsets = <uint64_t*> self.offsets.data
        cdef size_t staged = self.offsets.size // 8 - 1
        cdef size_t rows = staged & ~(<size_t> 7), i
        cdef int64_t found = <int64_t> (self.found.size // 8)
        cdef int64_t size = self.decoded + <int64_t> (self.staging.size + self.found.size)
        cdef double more = min(
            <double> max_bytes / size,
            <double> (self.positions.shape[0] - self.place + keys) / keys,
        )
        cdef uint64_t end = offsets[rows]
        batch.add(self.staging.data, offsets, rows, <Py_ssize_t> (found * more))
        self.decoded += <int64_t> end
        memmove(self.staging.data, self.staging.data + end, self.staging.size - end)
        self.staging.size -= end
        for i in range(staged - rows + 1):
            offsets[i] = offsets[rows + i] - end
        self.offsets.size = 8 * (staged - rows + 1)
        pay_for_batch(self.lookup.budget, &self.piece, batch.nbytes())
        return 0

    cdef int _pay(self) except -1 nogil:
        """Charge what the piece made the buffers grow by. Refused, it is lost with them."""
        cdef int64_t grown
        cdef Py_ssize_t i
        grown = <int64_t> (
            self.staging.capacity + self.offsets.capacity + self.found.capacity
        ) - self.charged
        for i in range(self.lookup.run_count):
            grown += <int64_t> passed_bytes(&self.cursors[i].passed)
        take_memory(self.lookup.budget, grown)
        self.charged += grown
        return 0

    cdef int _check_paid(self) except -1:
        if self.is_refused:
            raise MemoryLimitError("this read was refused memory before; probe again")
        return 0

    cdef void _prefetch(self) noexcept nogil:
        """Have fetched what the next keys need, each thing some keys before it is needed."""
        cdef Py_ssize_t place = self.place + AHEAD_KEYS, end = self.positions.shape[0]
        if place < end:
            self.lookup.prefetch(<uint32_t> self.positions[place], True)
        place += AHEAD_KEYS
        if place < end:
            self.lookup.prefetch(<uint32_t> self.positions[place], False)
        place += AHEAD_KEYS
        if place < end:
            self.lookup.prefetch_hits(<uint32_t> self.positions[place])

    cdef int _note(self, size_t end) except -1 nogil:
        """A row of the present key ends there in the staging buffer."""
        put_u64(&self.offsets, end)
        put_u64(&self.found, <uint64_t> self.positions[self.place])
        return 0

    cdef int _note_rows(self, uint32_t count, size_t width) except -1 nogil:
        """The same of so many rows of one width, which are not in the staging buffer yet."""
        cdef uint64_t* offsets
        cdef int64_t* found
        cdef size_t end = self.staging.size, i
        reserve(&self.offsets, 8 * <size_t> count)
        reserve(&self.found, 8 * <size_t> count)
        offsets = <uint64_t*> (self.offsets.data + self.offsets.size)
        found = <int64_t*> (self.found.data + self.found.size)
        for i in range(count):
            end += width
            offsets[i] = end
            found[i] = self.positions[self.place]
        self.offsets.size += 8 * <size_t> count
        self.found.size += 8 * <size_t> count
        return 0

    cdef uint32_t _fitting(self, uint32_t wanted, size_t width, int64_t max_bytes) noexcept nogil:
        """How many rows of one width can be taken until the piece is full."""
        cdef int64_t row = <int64_t> width, room = max_bytes - self.decoded - row - <int64_t> (
            self.staging.size + self.found.size
        )
        if room < 0:
            return 0 if self.found.size else 1
        return <uint32_t> min(<int64_t> wanted, room // (row + 8) + 1)

    cdef bint _full(self, int64_t max_bytes, size_t extra) noexcept nogil:
        """A piece holds at least one row; the offsets count, or empty rows would never fill it."""
        return self.found.size > 0 and <int64_t> (
            self.staging.size + self.found.size + extra
        ) > max_bytes - self.decoded

    cdef int _read_key(self, int64_t max_bytes) except -1 nogil:
        """1 if the piece is full before the key has ended, 0 if the key is done."""
        cdef uint32_t position = <uint32_t> self.positions[self.place]
        if not self.inside:
            self.inside = True
            self._enter(self.lookup.start[position], position)
        while self.tier < self.lookup.run_count:
            if self._read_run(position, max_bytes):
                return 1
            self._enter(self.tier + 1, position)
        while self.tier < self.lookup.run_count + self.lookup.memtable_count:
            if self._read_chunks(max_bytes):
                return 1
            self._enter(self.tier + 1, position)
        return 0

    cdef void _enter(self, Py_ssize_t tier, uint32_t position) noexcept nogil:
        """Stand before the first row of the key in a tier."""
        cdef Py_ssize_t memtable = tier - self.lookup.run_count
        self.tier = tier
        self.hit = -1
        self.left = 0
        self.chunk = NULL
        self.chunk_place = 0
        if memtable >= self.lookup.memtable_count or not self.lookup.holds(tier, position):
            return
        if memtable >= 0:
            self.chunk = self.lookup.entries[memtable][position].first
        else:
            self.hit = self.lookup.runs[tier].first[position]

    cdef int _read_run(self, uint32_t position, int64_t max_bytes) except -1 nogil:
        cdef RunHits* run = &self.lookup.runs[self.tier]
        if self.hit < 0:
            return 0
        while (
            <size_t> self.hit < run.hits.count and run.hits.items[self.hit].position == position
        ):
            if self._read_hit(run, max_bytes):
                return 1
            self.hit += 1
        return 0

    cdef int _read_chunks(self, int64_t max_bytes) except -1 nogil:
        cdef RowHead* head
        while self.chunk != NULL:
            while self.chunk_place < self.chunk.used:
                head = <RowHead*> (<uint8_t*> self.chunk + sizeof(Chunk) + self.chunk_place)
                if self._full(max_bytes, head.size):
                    return 1
                put_bytes(&self.staging, <uint8_t*> head + sizeof(RowHead), head.size)
                self._note(self.staging.size)
                self.chunk_place += <uint32_t> (
                    (sizeof(RowHead) + head.size + 7) & ~(<size_t> 7)
                )
            self.chunk = self.chunk.next
            self.chunk_place = 0
        return 0

    cdef int _read_hit(self, RunHits* run, int64_t max_bytes) except -1 nogil:
        cdef Hit* hit = &run.hits.items[self.hit]
        cdef RunCursor* cursor = &self.cursors[self.tier]
        cdef void* file = run.files[self.hit]
        cdef uint32_t taken
        if self.left == 0:
            if hit.rows == 0:
                return 0
            self.left = hit.rows
            self.block_index = hit.block_index
            self.row_index = hit.row_index
            self.block_offset = hit.row_block
            self.block_size = hit.row_block_size
        while self.left:
            if self._full(max_bytes, 0):
                return 1  # before a block is held for the next piece
            if cursor.block == NULL or cursor.offset != self.block_offset or cursor.file != file:
                self._pin_rows(run, cursor, <Sst> file)
            if self.row_index >= cursor.view.rows:
                self.block_index += 1
                self.row_index = 0
                _next_place(
                    cursor, file, hit, self.block_index, &self.block_offset, &self.block_size
                )
                continue
            if cursor.block == &cursor.passed.block and cursor.block.transposed:
                taken = self._take_transposed(cursor, max_bytes)
            else:
                taken = self._take_rows(<Sst> file, &cursor.view, max_bytes)
            if taken == 0:
                if cursor.block.size > kept_bytes(self.lookup.budget):
                    _leave_block(cursor)  # a large row is rather read twice than held
                return 1
            self.row_index += taken
            self.left -= taken
            if self.row_index >= cursor.view.rows:
                # Done with: huge rows of many runs are not all to be held at a time.
                _leave_block(cursor)
                if self.left:
                    self.block_index += 1
                    self.row_index = 0
                    _next_place(
                        cursor, file, hit, self.block_index, &self.block_offset, &self.block_size
                    )
        return 0

    cdef int _pin_rows(self, RunHits* run, RunCursor* cursor, Sst file) except -1 nogil:
        """Have the cursor at the row block, which is read if it is not cached."""
        if cursor.file != NULL:
            _leave_block(cursor)
            if cursor.file != <void*> file:
                (<Sst> cursor.file).cache.unpin(cursor.key_block)
                cursor.key_block = NULL
        cursor.file = <void*> file
        cursor.block = file._cached(self.block_offset, USE_PROBE)
        if cursor.block == NULL:
            if not is_there(
                &cursor.passed.ahead, <void*> file.file, self.block_offset, self.block_size
            ):
                cursor.passed.ahead.wanted_end = self._wanted_end(run)
            cursor.block = file._missed(
                self.block_offset, self.block_size, BLOCK_ROWS, USE_PROBE, &cursor.passed
            )
        cursor.offset = self.block_offset
        if parse_row_block(cursor.block.data, cursor.block.size, &cursor.view):
            _leave_block(cursor)
            file.damaged(self.block_offset, BLOCK_ROWS)
        if cursor.view.rows == 1:
            file.budget.note_row(<int64_t> cursor.block.size)
        return 0

    cdef uint64_t _wanted_end(self, RunHits* run) noexcept nogil:
        """Where in the file the blocks end that this key and the next ones want, as far as reading
        them together is cheaper than one by one: what lies between takes less than a system call,
        and none of them is cached."""
        cdef uint64_t end = self.block_offset + self.block_size
        cdef uint64_t most = self.block_offset + MOST_TOGETHER * <uint64_t> self.block_size
        cdef Py_ssize_t place = self.place + 1
        cdef int32_t first
        cdef Hit* hit
        while place < self.positions.shape[0] and place <= self.place + NEXT_KEYS:
            first = run.first[self.positions[place]]
            place += 1
            if first < 0 or run.hits.items[first].row_block < end:
                continue
            hit = &run.hits.items[first]
            if (
                run.files[first] != run.files[self.hit]
                or hit.row_block > end + self.block_size
                or hit.row_block + hit.row_block_size > most
                or (<Sst> run.files[first]).cache.holds(
                    (<Sst> run.files[first]).uid, hit.row_block
                )
            ):
                break
            end = hit.row_block + hit.row_block_size
        return end

    cdef int64_t _take_transposed(self, RunCursor* cursor, int64_t max_bytes) except -1 nogil:
        """As _take_rows, of a block that is."""
        cdef RowBlock* view = &cursor.view
        cdef uint32_t taken = 0, wanted = min(<uint64_t> view.rows - self.row_index, self.left)
        if wanted > MOST_TRANSPOSED:
            set_upright(view, cursor.block.data + cursor.block.size)
            view.data = cursor.block.data + cursor.block.size
            cursor.block.transposed = 0
            return self._take_rows(<Sst> cursor.file, view, max_bytes)
        taken = self._fitting(wanted, view.width, max_bytes)
        reserve(&self.staging, <size_t> taken * view.width)
        self._note_rows(taken, view.width)
        take_transposed(view, self.row_index, taken, self.staging.data + self.staging.size)
        self.staging.size += <size_t> taken * view.width
        return taken

    cdef int64_t _take_rows(
        self, Sst file, const RowBlock* view, int64_t max_bytes
    ) except -1 nogil:
        """Copy those of the hit's rows that lie in this block, as many as the piece has room for;
        how many."""
        cdef uint32_t taken = 0, wanted = min(<uint64_t> view.rows - self.row_index, self.left)
        cdef size_t first = 0, start = 0, end = 0, copied
        if row_span(view, self.row_index, wanted, &first, &end):
            file.damaged(self.block_offset, BLOCK_ROWS)
        if view.ends == NULL:
            taken = self._fitting(wanted, view.width, max_bytes)
            reserve(&self.staging, <size_t> taken * view.width)
            self._note_rows(taken, view.width)
            put_bytes(&self.staging, view.data + first, <size_t> taken * view.width)
            return taken
        copied = first
        while taken < wanted:
            if row_span(view, self.row_index + taken, 1, &start, &end) or start != copied:
                file.damaged(self.block_offset, BLOCK_ROWS)
            if self._full(max_bytes, end - first):
                break
            copied = end
            self._note(self.staging.size + copied - first)
            taken += 1
        put_bytes(&self.staging, view.data + first, copied - first)
        return taken


cdef void _leave_block(RunCursor* cursor) noexcept nogil:
    if cursor.block != NULL and cursor.block != &cursor.passed.block:
        (<Sst> cursor.file).cache.unpin(cursor.block)
    cursor.block = NULL


cdef int _next_place(
    RunCursor* cursor, void* file, const Hit* hit, uint32_t index, uint64_t* offset, uint32_t* size
) except -1 nogil:
    """The row block after: the table of the hit's key block says where it lies."""
    if cursor.key_block == NULL or cursor.key_block.offset != hit.key_block:
        (<Sst> file).cache.unpin(cursor.key_block)
        cursor.key_block = NULL
        cursor.key_block = (<Sst> file).load(
            hit.key_block, hit.key_block_size, BLOCK_KEYS, USE_PROBE
        )
        if parse_key_block(cursor.key_block.data, cursor.key_block.size, &cursor.keys):
            (<Sst> file).cache.unpin(cursor.key_block)
            cursor.key_block = NULL
            (<Sst> file).damaged(hit.key_block, BLOCK_KEYS)
    if row_block_place(&cursor.keys, index, offset, size):
        (<Sst> file).damaged(hit.key_block, BLOCK_KEYS)
    return 0
