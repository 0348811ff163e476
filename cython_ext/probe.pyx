"""What one probe of a store finds: hits of every run and of the memtable, then their rows.

Looking up gathers, per run, where the rows of each key lie, and counts them: no row is read.
Fetching copies rows, key by key and from the oldest run to the newest, into one staging buffer of
bounded size, and decodes it into an Arrow batch. Sorted keys visit the blocks of each run in
order, so each is loaded about once per batch, and only one per run is held at a time.
"""

cimport cython
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memset

from cython_ext.block cimport (
    BLOCK_KEYS, BLOCK_ROWS, KeyBlock, RowBlock, parse_key_block, parse_row_block, row_block_place,
    row_of,
)
from cython_ext.block_cache cimport BlockCache, CachedBlock
from cython_ext.budget cimport PROBE, Budget
from cython_ext.coding cimport Buffer, put_bytes, put_u64, release
from cython_ext.entries cimport FLAG_RESET
from cython_ext.key_codec cimport KeyBatch
from cython_ext.memtable cimport (
    MAX_HEIGHT, Chunk, Memtable, Node, RowHead, StreamList, find_node, list_of, start_path,
)
from cython_ext.row_codec cimport RowCodec
from cython_ext.sst_probe cimport Hit, HitList, ProbeCounters, probe_sst
from cython_ext.sst_reader cimport Sst

cdef struct RunHits:
    HitList hits
    void** files          # of each hit, in step with hits.items: the Sst it was found in
    size_t file_room
    int32_t* first        # per key position: its first hit, or -1


@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Lookup:
    """Hits of a batch of keys in one stream. `keys` holds the stream's number already."""

    cdef KeyBatch keys
    cdef Budget budget
    cdef RowCodec codec
    cdef list tables              # keeps the files of the hits open
    cdef Py_ssize_t n
    cdef uint32_t* selected       # key positions in key order
    cdef Py_ssize_t selected_count
    cdef RunHits* runs            # oldest first
    cdef Py_ssize_t run_count
    cdef Py_ssize_t run_room
    cdef Node** nodes             # per key position
    cdef int32_t* start           # per key position: the oldest run that still counts
    cdef ProbeCounters probe_counters
    cdef int64_t charged

    def __init__(
        self, KeyBatch keys not None, uint32_t stream, positions, RowCodec codec not None,
        Budget budget not None, Py_ssize_t run_room,
    ):
        cdef const int64_t[::1] wanted
        cdef uint8_t* mask = NULL
        cdef Py_ssize_t i
        self.keys = keys
        self.codec = codec
        self.budget = budget
        self.tables = []
        self.n = keys.n
        keys.set_stream(stream)
        self.run_room = run_room
        self.runs = <RunHits*> calloc(run_room + 1, sizeof(RunHits))
        self.selected = <uint32_t*> malloc((keys.n_valid + 1) * sizeof(uint32_t))
        self.nodes = <Node**> calloc(self.n + 1, sizeof(Node*))
        self.start = <int32_t*> calloc(self.n + 1, sizeof(int32_t))
        if not self.runs or not self.selected or not self.nodes or not self.start:
            raise MemoryError(f"no memory to look up {self.n} keys")
        self._charge((self.n + 1) * 16)
        if positions is None:
            for i in range(keys.n_valid):
                self.selected[i] = keys.order[i]
            self.selected_count = keys.n_valid
            return
        wanted = np.ascontiguousarray(positions, dtype=np.int64)
        mask = <uint8_t*> calloc(self.n + 1, 1)
        if mask == NULL:
            raise MemoryError(f"no memory to look up {self.n} keys")
        try:
            for i in range(wanted.shape[0]):
                if not 0 <= wanted[i] < self.n:
                    raise IndexError(f"key position {wanted[i]} of {self.n}")
                mask[wanted[i]] = 1
            for i in range(keys.n_valid):
                if mask[keys.order[i]]:
                    self.selected[self.selected_count] = keys.order[i]
                    self.selected_count += 1
        finally:
            free(mask)

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.runs != NULL:
            for i in range(self.run_count):
                free(self.runs[i].hits.items)
                free(self.runs[i].files)
                free(self.runs[i].first)
        free(self.runs)
        free(self.selected)
        free(self.nodes)
        free(self.start)
        if self.budget is not None:
            self.budget.release(PROBE, self.charged)

    cdef void _charge(self, int64_t size) noexcept nogil:
        self.budget.charge(PROBE, size)
        self.charged += size

    def key_range(self) -> tuple[bytes, bytes] | None:
        """The least and the greatest key asked for, as stored; None if there is none."""
        cdef uint32_t low, high
        if self.selected_count == 0:
            return None
        low = self.selected[0]
        high = self.selected[self.selected_count - 1]
        return (
            <bytes> self.keys.data[self.keys.offsets[low]:self.keys.offsets[low + 1]],
            <bytes> self.keys.data[self.keys.offsets[high]:self.keys.offsets[high + 1]],
        )

    def search_run(self, list files not None) -> int:
        """Look the keys up in the files of one run, in key order; runs come oldest first.
        Returns the number of hits."""
        cdef RunHits* run = &self.runs[self.run_count]
        cdef Sst sst
        cdef Py_ssize_t reached = 0
        cdef size_t before, i
        cdef void* room
        if self.run_count >= self.run_room:
            raise ValueError(f"more than {self.run_room} runs")
        self.run_count += 1
        for sst in files:
            before = run.hits.count
            with nogil:
                reached = probe_sst(
                    sst, self.keys, self.selected, self.selected_count, reached, &run.hits,
                    &self.probe_counters,
                )
            if run.hits.count > before:
                self.tables.append(sst)
                if run.hits.capacity > run.file_room:
                    room = realloc(run.files, run.hits.capacity * sizeof(void*))
                    if room == NULL:
                        raise MemoryError(f"no memory for {run.hits.capacity} hits")
                    self._charge(
                        <int64_t> (run.hits.capacity - run.file_room)
                        * <int64_t> (sizeof(Hit) + sizeof(void*))
                    )
                    run.files = <void**> room
                    run.file_room = run.hits.capacity
                for i in range(before, run.hits.count):
                    run.files[i] = <void*> sst
        if run.hits.count:
            run.first = <int32_t*> malloc((self.n + 1) * sizeof(int32_t))
            if run.first == NULL:
                raise MemoryError(f"no memory to look up {self.n} keys")
            self._charge((self.n + 1) * <int64_t> sizeof(int32_t))
            memset(run.first, 0xFF, (self.n + 1) * sizeof(int32_t))
            for i in range(run.hits.count, 0, -1):
                run.first[run.hits.items[i - 1].position] = <int32_t> (i - 1)
        return run.hits.count

    def search_memtable(self, Memtable memtable not None) -> None:
        """Look the keys up in the memtable, newer than every run."""
        cdef Node* path[MAX_HEIGHT]
        cdef Node* node
        cdef Py_ssize_t i
        cdef size_t position, size
        cdef const uint8_t* key
        cdef StreamList* stream_list
        if self.selected_count == 0:
            return
        key = self.keys.data + self.keys.offsets[self.selected[0]]
        stream_list = list_of(memtable, (<uint32_t> key[0] << 8) | key[1])
        if stream_list == NULL:
            return
        with nogil:
            start_path(stream_list, path)
            for i in range(self.selected_count):
                position = self.selected[i]
                key = self.keys.data + self.keys.offsets[position]
                size = self.keys.offsets[position + 1] - self.keys.offsets[position]
                node = find_node(stream_list, path, key, size)
                if node != NULL and node.key_size == size and memcmp(node.key, key, size) == 0:
                    self.nodes[position] = node

    def count(self) -> tuple:
        """(rows, bytes) per key position, what was deleted left out; two int64 arrays."""
        counts = np.zeros(self.n, dtype=np.int64)
        sizes = np.zeros(self.n, dtype=np.int64)
        cdef int64_t[::1] count_view = counts
        cdef int64_t[::1] size_view = sizes
        cdef Py_ssize_t i, r
        cdef uint32_t position
        cdef int32_t h
        cdef RunHits* run
        cdef bint hidden
        with nogil:
            for i in range(self.selected_count):
                position = self.selected[i]
                if count_view[position]:
                    continue  # the same position is never selected twice; equal keys are others
                hidden = False
                self.start[position] = <int32_t> self.run_count
                if self.nodes[position] != NULL:
                    count_view[position] = self.nodes[position].rows
                    size_view[position] = <int64_t> self.nodes[position].row_bytes
                    hidden = (self.nodes[position].flags & FLAG_RESET) != 0
                for r in range(self.run_count - 1, -1, -1):
                    if hidden:
                        break
                    run = &self.runs[r]
                    if run.first == NULL or run.first[position] < 0:
                        continue
                    h = run.first[position]
                    while <size_t> h < run.hits.count and run.hits.items[h].position == position:
                        count_view[position] += <int64_t> run.hits.items[h].rows
                        size_view[position] += <int64_t> run.hits.items[h].row_bytes
                        hidden = hidden or (run.hits.items[h].flags & FLAG_RESET) != 0
                        h += 1
                    self.start[position] = <int32_t> r
        return counts, sizes

    def counters(self) -> tuple:
        """Pairs of a key and a run visited, filters asked, filters that said no, and filters that
        let an absent key through."""
        cdef ProbeCounters* found = &self.probe_counters
        return (
            found.visited, found.filter_checks, found.filter_negatives, found.false_positives,
        )

    def cursor(self, positions) -> Cursor:
        """Read the rows of the keys at these ascending positions."""
        return Cursor(self, positions)


cdef struct RunCursor:
    CachedBlock* block        # the row block being read, pinned
    uint64_t offset
    void* file
    RowBlock view
    CachedBlock* key_block    # of a hit that spans row blocks, pinned
    KeyBlock keys


@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Cursor:
    """Rows of some keys of a Lookup, piece by piece."""

    cdef Lookup lookup
    cdef object positions_array
    cdef const int64_t[::1] positions
    cdef Py_ssize_t place         # in positions
    cdef bint inside              # the key at `place` has been begun
    cdef Py_ssize_t run           # being read: a run's number, or run_count for the memtable
    cdef int32_t hit
    cdef uint64_t left            # rows of the hit still to come; 0: not begun
    cdef uint32_t block_index
    cdef uint32_t row_index
    cdef uint64_t block_offset
    cdef uint32_t block_size
    cdef Chunk* chunk
    cdef uint32_t chunk_place
    cdef RunCursor* cursors
    cdef Buffer staging
    cdef Buffer offsets
    cdef Buffer found
    cdef int64_t charged

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
        cdef Py_ssize_t i
        if self.cursors != NULL:
            for i in range(self.lookup.run_count):
                self._unpin(&self.cursors[i])
        free(self.cursors)
        release(&self.staging)
        release(&self.offsets)
        release(&self.found)
        if self.lookup is not None:
            self.lookup.budget.release(PROBE, self.charged)

    cdef void _unpin(self, RunCursor* cursor) noexcept:
        if cursor.file != NULL:
            (<Sst> cursor.file).cache.unpin(cursor.block)
            (<Sst> cursor.file).cache.unpin(cursor.key_block)
        cursor.block = NULL
        cursor.key_block = NULL

    def next_piece(self, int64_t max_bytes):
        """(positions, RecordBatch) with about max_bytes of rows, or None at the end."""
        cdef int64_t grown
        cdef Py_ssize_t n
        self.staging.size = 0
        self.offsets.size = 0
        self.found.size = 0
        with nogil:
            put_u64(&self.offsets, 0)
            while self.place < self.positions.shape[0]:
                if self._read_key(max_bytes):
                    break  # the piece is full
                self.place += 1
                self.inside = False
        grown = <int64_t> (
            self.staging.capacity + self.offsets.capacity + self.found.capacity
        ) - self.charged
        self.lookup.budget.charge(PROBE, grown)
        self.charged += grown
        n = <Py_ssize_t> (self.found.size // 8)
        if n == 0:
            return None
        batch = self.lookup.codec.decode_c(
            self.staging.data, <const uint64_t*> self.offsets.data, n
        )
        positions = np.empty(n, dtype=np.int64)
        cdef int64_t[::1] target = positions
        cdef Py_ssize_t i
        for i in range(n):
            target[i] = (<int64_t*> self.found.data)[i]
        return positions, batch

    cdef int _put(self, const uint8_t* data, size_t size) except -1 nogil:
        put_bytes(&self.staging, data, size)
        put_u64(&self.offsets, self.staging.size)
        put_u64(&self.found, <uint64_t> self.positions[self.place])
        return 0

    cdef bint _full(self, int64_t max_bytes, size_t extra) noexcept nogil:
        """A piece holds at least one row; the offsets count, or empty rows would never fill it."""
        return self.found.size > 0 and <int64_t> (
            self.staging.size + self.found.size + extra
        ) > max_bytes

    cdef int _read_key(self, int64_t max_bytes) except -1 nogil:
        """1 if the piece is full before the key has ended, 0 if the key is done."""
        cdef int64_t position = self.positions[self.place]
        cdef RunHits* run
        if not self.inside:
            self.inside = True
            self.run = self.lookup.start[position]
            self.hit = -1
            self.left = 0
            self.chunk = NULL
            self.chunk_place = 0
            if self.lookup.nodes[position] != NULL:
                self.chunk = self.lookup.nodes[position].first
        while self.run < self.lookup.run_count:
            run = &self.lookup.runs[self.run]
            if run.first != NULL and run.first[position] >= 0:
                if self.hit < 0:
                    self.hit = run.first[position]
                while (
                    <size_t> self.hit < run.hits.count
                    and run.hits.items[self.hit].position == <uint32_t> position
                ):
                    if self._read_hit(run, max_bytes):
                        return 1
                    self.hit += 1
            self.run += 1
            self.hit = -1
        return self._read_chunks(max_bytes)

    cdef int _read_chunks(self, int64_t max_bytes) except -1 nogil:
        cdef RowHead* head
        while self.chunk != NULL:
            while self.chunk_place < self.chunk.used:
                head = <RowHead*> (<uint8_t*> self.chunk + sizeof(Chunk) + self.chunk_place)
                if self._full(max_bytes, head.size):
                    return 1
                self._put(<uint8_t*> head + sizeof(RowHead), head.size)
                self.chunk_place += <uint32_t> (
                    (sizeof(RowHead) + head.size + 7) & ~(<size_t> 7)
                )
            self.chunk = self.chunk.next
            self.chunk_place = 0
        return 0

    cdef int _read_hit(self, RunHits* run, int64_t max_bytes) except -1 nogil:
        cdef Hit* hit = &run.hits.items[self.hit]
        cdef RunCursor* cursor = &self.cursors[self.run]
        cdef void* file = run.files[self.hit]
        cdef const uint8_t* data = NULL
        cdef size_t size = 0
        if self.left == 0:
            if hit.rows == 0:
                return 0
            self.left = hit.rows
            self.block_index = hit.block_index
            self.row_index = hit.row_index
            self.block_offset = hit.row_block
            self.block_size = hit.row_block_size
        while self.left:
            if cursor.block == NULL or cursor.offset != self.block_offset or cursor.file != file:
                _pin_rows(cursor, file, self.block_offset, self.block_size)
            if self.row_index >= cursor.view.rows:
                self.block_index += 1
                self.row_index = 0
                _next_place(
                    cursor, file, hit, self.block_index, &self.block_offset, &self.block_size
                )
                continue
            if row_of(&cursor.view, self.row_index, &data, &size):
                (<Sst> file).damaged(self.block_offset, BLOCK_ROWS)
            if self._full(max_bytes, size):
                return 1
            self._put(data, size)
            self.row_index += 1
            self.left -= 1
            if self.row_index >= cursor.view.rows:
                # Done with: huge rows of many runs are not all to be held at a time.
                (<Sst> file).cache.unpin(cursor.block)
                cursor.block = NULL
                if self.left:
                    self.block_index += 1
                    self.row_index = 0
                    _next_place(
                        cursor, file, hit, self.block_index, &self.block_offset, &self.block_size
                    )
        return 0


cdef int _pin_rows(
    RunCursor* cursor, void* file, uint64_t offset, uint32_t size
) except -1 nogil:
    if cursor.file != NULL:
        (<Sst> cursor.file).cache.unpin(cursor.block)
        cursor.block = NULL
        if cursor.file != file:
            (<Sst> cursor.file).cache.unpin(cursor.key_block)
            cursor.key_block = NULL
    cursor.file = file
    cursor.block = (<Sst> file).load(offset, size, BLOCK_ROWS, True)
    cursor.offset = offset
    if parse_row_block(cursor.block.data, cursor.block.size, &cursor.view):
        (<Sst> file).cache.unpin(cursor.block)
        cursor.block = NULL
        (<Sst> file).damaged(offset, BLOCK_ROWS)
    return 0


cdef int _next_place(
    RunCursor* cursor, void* file, const Hit* hit, uint32_t index, uint64_t* offset, uint32_t* size
) except -1 nogil:
    """The row block after: the table of the hit's key block says where it lies."""
    if cursor.key_block == NULL or cursor.key_block.offset != hit.key_block:
        (<Sst> file).cache.unpin(cursor.key_block)
        cursor.key_block = NULL
        cursor.key_block = (<Sst> file).load(
            hit.key_block, hit.key_block_size, BLOCK_KEYS, True
        )
        if parse_key_block(cursor.key_block.data, cursor.key_block.size, &cursor.keys):
            (<Sst> file).cache.unpin(cursor.key_block)
            cursor.key_block = NULL
            (<Sst> file).damaged(hit.key_block, BLOCK_KEYS)
    if row_block_place(&cursor.keys, index, offset, size):
        (<Sst> file).damaged(hit.key_block, BLOCK_KEYS)
    return 0
