"""Row fetch: reads the rows that a Lookup found, in pieces.

Rows are copied, key by key and from the oldest tier to the newest, into a staging buffer of bounded
size, and decoded into an Arrow batch portion by portion. Sorted keys visit the blocks of each run
in order: each block is loaded about once per batch, and one per run is held at a time.
"""

cimport cython
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from lsmstate.cython_ext.errors import CorruptionError, MemoryLimitError

from lsmstate.cython_ext.sstable.block cimport (
    BLOCK_KEYS, BLOCK_ROWS, RowBlock, parse_row_block, row_span, set_upright, take_transposed,
)
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock, PassedBlock, free_passed, passed_bytes
from lsmstate.cython_ext.memory.budget cimport PROBE
from lsmstate.cython_ext.base.coding cimport Buffer, put_bytes, release
from lsmstate.cython_ext.base.file cimport is_there
from lsmstate.cython_ext.sstable.key_block cimport KeyBlock, parse_key_block, row_block_place
from lsmstate.cython_ext.iterators.key_lookup cimport Lookup, RunHits
from lsmstate.cython_ext.memtable.memtable cimport Chunk, RowHead
from lsmstate.cython_ext.memory.read_budget cimport (
    Piece, begin_piece, end_piece, kept_bytes, pay_for_batch, take_memory,
)
from lsmstate.cython_ext.rows.row_codec cimport BatchBuilder
from lsmstate.cython_ext.rows.row_planes cimport Planes, are_alike
from lsmstate.cython_ext.sstable.sst_walker cimport Hit
from lsmstate.cython_ext.sstable.sst_reader cimport USE_PROBE, Sst
from lsmstate.cython_ext.rows.staging cimport (
    Staging, begin_staging, bytes_of, fitting, free_staging, held_by, is_full, note_positions,
    note_row, rows_of, stage_rows,
)

cdef enum:
    PORTION_BYTES = 64 << 10  # of rows, that are decoded while they are in the nearer caches
    AHEAD_KEYS = 4           # about the time that the memory takes
    NEXT_KEYS = 32           # looked at for blocks that are worth reading together
    MOST_TOGETHER = 8        # blocks, or as much
    MOST_STAGED = 8          # rows of a key in a block: more are decoded from the block
    MOST_TRANSPOSED = 16     # where that cannot be: for more it pays to set the block upright
    FEW_COLUMNS = 16         # of more, each costs too much for less than MOST_TRANSPOSED rows


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
    """Rows of the keys at ascending positions of a Lookup, piece by piece."""

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
    cdef BatchBuilder batch       # of the piece
    cdef Py_ssize_t begun         # the place where the piece began
    cdef Staging staging
    cdef uint32_t most_staged
    cdef readonly int64_t rows_of_planes  #: read from them, so far
    cdef int64_t portion_end      # so many bytes of rows are decoded together, and paid for
    cdef int64_t charged
    cdef Piece piece              # that is being made
    cdef bint is_refused          # memory, in the middle

    def __init__(self, Lookup lookup not None, positions):
        self.lookup = lookup
        self.most_staged = MOST_STAGED
        if lookup.codec.layout.root.n_children > FEW_COLUMNS:
            self.most_staged = MOST_TRANSPOSED
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
        free_staging(&self.staging)
        self.lookup.budget.release(PROBE, self.charged)
        self.charged = 0

    cdef void _unpin(self, RunCursor* cursor) noexcept:
        if cursor.file != NULL:
            _leave_block(cursor)
            (<Sst> cursor.file).cache.unpin(cursor.key_block)
        cursor.key_block = NULL

    def next_piece(self, int64_t max_bytes):
        """Return (positions, RecordBatch) with about max_bytes of rows, or None at the end."""
        if self.is_refused:
            raise MemoryLimitError("an earlier piece of this read found no memory; probe again")
        begin_piece(self.lookup.budget, max_bytes, &self.piece)
        try:
            self.batch = BatchBuilder(self.lookup.codec, self.lookup.budget)
            with nogil:
                self._read_piece()
            return self._positions_and(self.batch.finished()) if rows_of(&self.staging) else None
        except CorruptionError as error:
            if self.batch is None or not self.batch.is_adding:
                raise  # of a block
            raise self.batch.located(error) from None
        except MemoryLimitError:
            self._free()
            self.is_refused = True
            raise
        finally:
            self.batch = None
            end_piece(self.lookup.budget, &self.piece)

    cdef int _read_piece(self) except -1 nogil:
        # Without the GIL, which another thread may hold: it takes 5 ms to release it.
        self.begun = self.place
        self.portion_end = PORTION_BYTES
        begin_staging(&self.staging, self.piece.max_bytes)
        while self.place < self.positions.shape[0]:
            if not self.inside:
                self._prefetch()
            if self._read_key():
                break  # the piece is full
            self.place += 1
            self.inside = False
            self._decode_if_due()
        self._pay()
        self._decode_staged(0)
        if self.staging.rows.capacity > kept_bytes(self.lookup.budget):
            release(&self.staging.rows)
            self._pay()
        pay_for_batch(self.lookup.budget, &self.piece, self.batch.nbytes())
        return 0

    cdef object _positions_and(self, object batch):
        cdef Py_ssize_t n = <Py_ssize_t> rows_of(&self.staging)
        positions = np.empty(n, dtype=np.int64)
        cdef int64_t[::1] target = positions
        memcpy(&target[0], self.staging.positions.data, n * sizeof(int64_t))
        return positions, batch

    cdef int _decode_if_due(self) except -1 nogil:
        """Decode a portion, unless the piece is full: the buffer of a huge row, which fills a
        piece, is released before the batch is charged."""
        if self.staging.decoded + <int64_t> self.staging.rows.size < self.portion_end or (
            is_full(&self.staging, 0)
        ):
            return 0
        self._decode_staged(self._expected())
        self.portion_end = self.staging.decoded + PORTION_BYTES
        pay_for_batch(self.lookup.budget, &self.piece, self.batch.nbytes())
        return 0

    cdef int _decode_staged(self, int64_t expected) except -1 nogil:
        cdef Staging* staging = &self.staging
        self.batch.add(
            staging.rows.data, <const uint64_t*> staging.ends.data,
            <Py_ssize_t> (staging.ends.size // 8) - 1, expected,
        )
        staging.decoded += <int64_t> staging.rows.size
        staging.rows.size = 0
        staging.ends.size = 8
        return 0

    cdef int64_t _expected(self) noexcept nogil:
        """Estimate the rows of the piece: rows like those of the keys read so far, and the rest of
        the current one. The estimate is slightly high, since too low a value causes a copy: by a
        64th of what fills a piece, or a 16th of what the keys say."""
        cdef double found = <double> rows_of(&self.staging)
        cdef double filled = <double> bytes_of(&self.staging) / self.staging.max_bytes
        cdef double read = <double> max(<Py_ssize_t> 1, self.place - self.begun) / (
            self.positions.shape[0] - self.begun
        )
        return <int64_t> min(
            found / filled * 65 / 64 + 1, (found / read + <double> self.left) * 17 / 16
        )

    cdef int _pay(self) except -1 nogil:
        """Charge the growth of the buffers. If that fails, the piece is lost with them."""
        cdef int64_t grown = held_by(&self.staging) - self.charged
        cdef Py_ssize_t i
        for i in range(self.lookup.run_count):
            grown += <int64_t> passed_bytes(&self.cursors[i].passed)
        take_memory(self.lookup.budget, grown)
        self.charged += grown
        return 0

    cdef void _prefetch(self) noexcept nogil:
        """Prefetch what the next keys need, each item several keys ahead."""
        cdef Py_ssize_t place = self.place + AHEAD_KEYS, end = self.positions.shape[0]
        if place < end:
            self.lookup.prefetch(<uint32_t> self.positions[place], True)
        place += AHEAD_KEYS
        if place < end:
            self.lookup.prefetch(<uint32_t> self.positions[place], False)
        place += AHEAD_KEYS
        if place < end:
            self.lookup.prefetch_hits(<uint32_t> self.positions[place])

    cdef int _read_key(self) except -1 nogil:
        """Return 1 if the piece is full before the key has ended, 0 if the key is done."""
        cdef uint32_t position = <uint32_t> self.positions[self.place]
        if not self.inside:
            self.inside = True
            self._enter(self.lookup.start[position], position)
        while self.tier < self.lookup.run_count:
            if self._read_run(position):
                return 1
            self._enter(self.tier + 1, position)
        while self.tier < self.lookup.run_count + self.lookup.memtable_count:
            if self._read_chunks():
                return 1
            self._enter(self.tier + 1, position)
        return 0

    cdef void _enter(self, Py_ssize_t tier, uint32_t position) noexcept nogil:
        """Seek to the first row of the key in a tier."""
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

    cdef int _read_run(self, uint32_t position) except -1 nogil:
        cdef RunHits* run = &self.lookup.runs[self.tier]
        if self.hit < 0:
            return 0
        while (
            <size_t> self.hit < run.hits.count and run.hits.items[self.hit].position == position
        ):
            if self._read_hit(run):
                return 1
            self.hit += 1
        return 0

    cdef int _read_chunks(self) except -1 nogil:
        cdef RowHead* head
        while self.chunk != NULL:
            while self.chunk_place < self.chunk.used:
                head = <RowHead*> (<uint8_t*> self.chunk + sizeof(Chunk) + self.chunk_place)
                if is_full(&self.staging, head.size):
                    return 1
                put_bytes(&self.staging.rows, <uint8_t*> head + sizeof(RowHead), head.size)
                note_row(&self.staging, self.staging.rows.size, self.positions[self.place])
                self.chunk_place += <uint32_t> (
                    (sizeof(RowHead) + head.size + 7) & ~(<size_t> 7)
                )
            self.chunk = self.chunk.next
            self.chunk_place = 0
            self._decode_if_due()
        return 0

    cdef int _read_hit(self, RunHits* run) except -1 nogil:
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
            if is_full(&self.staging, 0):
                return 1  # no block is held for the next piece
            if cursor.block == NULL or cursor.offset != self.block_offset or cursor.file != file:
                self._pin_rows(run, cursor, <Sst> file)
            if self.row_index >= cursor.view.rows:
                self._go_to_next_block(cursor, file, hit)
                continue
            if cursor.block == &cursor.passed.block and cursor.block.transposed:
                taken = self._take_transposed(cursor)
            else:
                taken = self._take_rows(<Sst> file, &cursor.view)
            if taken == 0:
                if cursor.block.size > kept_bytes(self.lookup.budget):
                    _leave_block(cursor)  # a large row is read twice instead of held
                return 1
            self.row_index += taken
            self.left -= taken
            if self.row_index >= cursor.view.rows:
                # Done: huge rows of many runs must not all be held at once.
                _leave_block(cursor)
                if self.left:
                    self._go_to_next_block(cursor, file, hit)
        return 0

    cdef int _go_to_next_block(self, RunCursor* cursor, void* file, Hit* hit) except -1 nogil:
        self._decode_if_due()
        self.block_index += 1
        self.row_index = 0
        _next_place(cursor, file, hit, self.block_index, &self.block_offset, &self.block_size)
        return 0

    cdef int _pin_rows(self, RunHits* run, RunCursor* cursor, Sst file) except -1 nogil:
        """Load the row block of the cursor, which is read if it is not cached."""
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
                cursor.passed.ahead.wanted_end = self._wanted_end(run, cursor)
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

    cdef uint64_t _wanted_end(self, RunHits* run, RunCursor* cursor) noexcept nogil:
        """Return the end, in the file, of the blocks for this key and the next ones that are
        cheaper to read together: the gaps cost less than a system call, and no block is cached."""
        cdef uint64_t most = self.block_offset + MOST_TOGETHER * <uint64_t> self.block_size
        cdef uint64_t end = self._wanted_of_hit(&run.hits.items[self.hit], cursor, most)
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

    cdef uint64_t _wanted_of_hit(
        self, const Hit* hit, RunCursor* cursor, uint64_t most
    ) noexcept nogil:
        """Return the same for this key alone, whose blocks are adjacent: from the second block on,
        when its place is known. They are assumed to hold as many rows as the first."""
        cdef uint64_t end = self.block_offset + self.block_size, rows = cursor.view.rows, offset = 0
        cdef uint32_t index = self.block_index, size = 0
        if index == hit.block_index or (
            cursor.key_block == NULL or cursor.key_block.offset != hit.key_block
        ):
            return end
        while rows < self.left:
            rows += cursor.view.rows
            index += 1
            if (
                row_block_place(&cursor.keys, index, &offset, &size)
                or offset != end
                or offset + size > most
                or (<Sst> cursor.file).cache.holds((<Sst> cursor.file).uid, offset)
            ):
                break
            end = offset + size
        return end

    cdef int64_t _take_transposed(self, RunCursor* cursor) except -1 nogil:
        """Take rows of a transposed block; otherwise as _take_rows."""
        cdef RowBlock* view = &cursor.view
        cdef uint32_t wanted = min(<uint64_t> view.rows - self.row_index, self.left)
        cdef uint32_t taken = fitting(&self.staging, wanted, view.width)
        if taken > self.most_staged and self._decode_transposed(view, taken):
            return taken
        if wanted > MOST_TRANSPOSED:
            set_upright(view, cursor.block.data + cursor.block.size)
            view.data = cursor.block.data + cursor.block.size
            cursor.block.transposed = 0
            return self._take_rows(<Sst> cursor.file, view)
        take_transposed(
            view, self.row_index, taken,
            stage_rows(&self.staging, taken, view.width, self.positions[self.place]),
        )
        return taken

    cdef bint _decode_transposed(self, const RowBlock* view, uint32_t count) except -1 nogil:
        """Decode the rows directly into the batch, without the staging buffer. Return False if they
        have different shapes, or the size of the batch is still unknown."""
        cdef Planes planes = Planes(
            data=view.data + self.row_index, stride=view.rows, width=view.width, n=count
        )
        if self.staging.decoded == 0 or not are_alike(&self.lookup.codec.layout, &planes):
            return False
        if self.staging.rows.size:
            self._decode_staged(0)
        note_positions(&self.staging, count, self.positions[self.place])
        self.batch.add_planes(&planes, 0)
        self.staging.decoded += <int64_t> count * view.width
        self.rows_of_planes += count
        return True

    cdef int64_t _take_rows(self, Sst file, const RowBlock* view) except -1 nogil:
        """Copy the hit's rows in this block, as many as the piece has room for; return how many."""
        cdef uint32_t taken = 0, wanted = min(<uint64_t> view.rows - self.row_index, self.left)
        cdef size_t first = 0, start = 0, end = 0, copied
        cdef Buffer* rows = &self.staging.rows
        if row_span(view, self.row_index, wanted, &first, &end):
            file.damaged(self.block_offset, BLOCK_ROWS)
        if view.ends == NULL:
            taken = fitting(&self.staging, wanted, view.width)
            memcpy(
                stage_rows(&self.staging, taken, view.width, self.positions[self.place]),
                view.data + first, <size_t> taken * view.width,
            )
            return taken
        copied = first
        while taken < wanted:
            if row_span(view, self.row_index + taken, 1, &start, &end) or start != copied:
                file.damaged(self.block_offset, BLOCK_ROWS)
            if is_full(&self.staging, end - first):
                break
            copied = end
            note_row(&self.staging, rows.size + copied - first, self.positions[self.place])
            taken += 1
        put_bytes(rows, view.data + first, copied - first)
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
