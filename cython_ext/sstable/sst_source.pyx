"""Iterator over the entries of one SSTable, in key order.

Merges read everything once from front to back, past the block cache, in large reads. Scans go
through the cache, where their blocks are evicted first.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from lsmstate.cython_ext.sstable.block cimport (
    BLOCK_INDEX, BLOCK_KEYS, BLOCK_ROWS, BLOCK_TOP, TRAILER_BYTES, parse_row_block, row_of,
)
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.memory.budget cimport MERGE
from lsmstate.cython_ext.base.coding cimport (
    Buffer, compare, lies_within, load_u32, load_u64, release, reserve,
)
from lsmstate.cython_ext.entries.entry_source cimport FLAG_CONTINUES, RowRef
from lsmstate.cython_ext.sstable.index_block cimport index_entry, index_search, parse_index_block
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyEntry, may_hold, next_entry, parse_key_block, restart_before, restart_place, row_block_place,
)
from lsmstate.cython_ext.sstable.sst_reader cimport INDEX_PAYLOAD, USE_ONCE, USE_SCAN, Sst

cdef enum:
    AHEAD_BYTES = 32 << 10  # per read of a merge: 2.5 times cheaper than single blocks


@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class SstSource(EntrySource):
    """Entries of one file in key order; segments of a key are returned as one entry. If
    ``scanning``, blocks stay in the cache and are evicted first; otherwise nothing is kept."""

    def __init__(self, Sst sst not None, bint scanning=False):
        self.sst = sst
        self.use = USE_SCAN if scanning else USE_ONCE
        self.partition = <uint32_t> -1
        self.index_place = 0

    def __dealloc__(self):
        if self.sst is not None:
            self._forget()
            self.sst.budget.release(MERGE, <int64_t> self.ahead.capacity)
        release(&self.ahead)
        release(&self.key_buffer)
        release(&self.segment_key)

    @property
    def key_block_offset(self):
        """Offset of the current key block."""
        return self.key_block.offset if self.key_block else 0

    cdef CachedBlock* _load(self, uint64_t offset, uint32_t size, int kind) except NULL nogil:
        """Load as Sst.load does. A source that keeps nothing reads everything once from front to
        back: what follows in the file is read ahead."""
        cdef CachedBlock* block
        cdef size_t wanted
        if self.use != USE_ONCE or size > AHEAD_BYTES // 2 or self.sst._renew is not None:
            return self.sst.load(offset, size, kind, self.use)
        block = self.sst._cached(offset, self.use)
        if block != NULL:
            return block
        if size < TRAILER_BYTES or not lies_within(offset, size, self.sst.file.size):
            self.sst.damaged(offset, kind)
        if offset < self.ahead_offset or offset + size > self.ahead_offset + self.ahead.size:
            if self.ahead.capacity == 0:
                reserve(&self.ahead, AHEAD_BYTES)
                self.sst.budget.charge(MERGE, <int64_t> self.ahead.capacity)
            wanted = min(<uint64_t> AHEAD_BYTES, <uint64_t> self.sst.file.size - offset)
            self.ahead.size = 0
            self.sst.file.read_at(offset, self.ahead.data, wanted)
            self.ahead.size = wanted
            self.ahead_offset = offset
        return self.sst._unsealed(
            self.ahead.data + (offset - self.ahead_offset), offset, size, kind, self.use, NULL
        )

    cdef void _forget(self) noexcept nogil:
        self.sst.cache.unpin(self.index_block)
        self.sst.cache.unpin(self.key_block)
        self.sst.cache.unpin(self.row_block)
        self.index_block = NULL
        self.key_block = NULL
        self.row_block = NULL
        self.place = NULL
        self.key_buffer.size = 0
        self.rows_left = 0
        self.consumed = False
        self.continues = False
        self.pending = False

    cdef void done_with_row(self) noexcept nogil:
        """Release a block as soon as its last row is done: otherwise each of many merged sources
        would hold one, however large its row is."""
        if self.consumed:
            self.sst.cache.unpin(self.row_block)
            self.row_block = NULL
            self.block_index += 1
            self.row_index = 0
            self.consumed = False

    cdef bint put_row_back(self) noexcept nogil:
        self.sst.cache.unpin(self.row_block)
        self.row_block = NULL
        self.row_index -= 1
        self.rows_left += 1
        self.consumed = False
        return True

    cdef int _next_key_block(self) except -1 nogil:
        """Return 1 with the next key block loaded, 0 at the end of the file."""
        if self.index_block != NULL:
            self.index_place += 1
        while self.index_block == NULL or self.index_place >= self.index.count:
            self.sst.cache.unpin(self.index_block)
            self.index_block = NULL
            self.partition += 1
            if self.partition >= self.sst.top.count:
                self.partition = self.sst.top.count  # stay at the end
                return 0
            self._load_index()
            self.index_place = 0
        self._load_key_block()
        return 1

    cdef int _load_index(self) except -1 nogil:
        """Load the index block of self.partition."""
        cdef const uint8_t* key
        cdef const uint8_t* payload
        cdef size_t key_size
        cdef uint64_t offset
        if index_entry(&self.sst.top, self.partition, &key, &key_size, &payload):
            self.sst.damaged(self.sst._sections[0], BLOCK_TOP)
        self.sst.cache.unpin(self.index_block)
        self.index_block = NULL
        offset = load_u64(payload)
        self.index_block = self._load(offset, load_u32(payload + 8), BLOCK_INDEX)
        if parse_index_block(
            self.index_block.data, self.index_block.size, INDEX_PAYLOAD, &self.index
        ):
            self.sst.damaged(offset, BLOCK_INDEX)
        return 0

    cdef int _load_key_block(self) except -1 nogil:
        """Load the key block at self.index_place."""
        cdef const uint8_t* key
        cdef const uint8_t* payload
        cdef size_t key_size
        cdef uint64_t offset
        if index_entry(&self.index, self.index_place, &key, &key_size, &payload):
            self.sst.damaged(self.index_block.offset, BLOCK_INDEX)
        self.sst.cache.unpin(self.key_block)
        self.sst.cache.unpin(self.row_block)
        self.key_block = NULL
        self.row_block = NULL
        offset = load_u64(payload)
        self.key_block = self._load(offset, load_u32(payload + 8), BLOCK_KEYS)
        if parse_key_block(self.key_block.data, self.key_block.size, &self.keys):
            self.sst.damaged(offset, BLOCK_KEYS)
        self.place = self.keys.entries
        memset(&self.entry, 0, sizeof(KeyEntry))
        return 0

    cdef int _decode(self, Buffer* key) except -1 nogil:
        """Decode the entry at self.place; restarts begin without a prefix. *key holds the previous
        key, or nothing, and then the entry's."""
        if self.place[0] == 0:  # shared == 0: a restart, where block indexes are absolute
            self.entry.block_index = 0
        elif self.place == self.keys.entries:  # what *key holds is of the block before
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self.place = next_entry(&self.keys, self.place, key, &self.entry)
        if self.place == NULL or not may_hold(&self.keys, &self.entry):
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self._begin_rows()
        return 0

    cdef void _begin_rows(self) noexcept nogil:
        """Seek to the first row of the decoded entry."""
        self.rows_left = self.entry.rows
        self.continues = (self.entry.flags & FLAG_CONTINUES) != 0
        self.block_index = self.entry.block_index
        self.row_index = self.entry.row_index

    cdef int next_key(self) except -1 nogil:
        self.done_with_row()
        if self.pending:
            self.pending = False
        else:
            while self.continues:
                self._next_segment()
            while self.place == NULL or self.place >= self.keys.entries_end:
                if self._next_key_block() == 0:
                    return 0
            self._decode(&self.key_buffer)
        self._give()
        return 1

    cdef void _give(self) noexcept nogil:
        """Make the decoded entry the current one."""
        self.key = self.key_buffer.data
        self.key_size = self.key_buffer.size
        self.flags = self.entry.flags & ~(<uint8_t> FLAG_CONTINUES)
        self.rows = self.entry.rows
        self.row_bytes = self.entry.row_bytes

    cdef int _next_segment(self) except -1 nogil:
        """Continue the same key in the next key block; its rows are added to the entry's."""
        if self._next_key_block() == 0:
            self.sst.damaged(<uint64_t> self.sst.file.size, BLOCK_KEYS)
        self.segment_key.size = 0
        self._decode(&self.segment_key)
        if compare(
            self.segment_key.data, self.segment_key.size, self.key_buffer.data, self.key_buffer.size
        ):
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self.rows += self.entry.rows
        self.row_bytes += self.entry.row_bytes
        return 0

    cdef int next_row(self, RowRef* row) except -1 nogil:
        self.done_with_row()
        while self.rows_left == 0:
            if not self.continues:
                return 0
            self._next_segment()
        if self.row_block == NULL or self.row_block_index != self.block_index:
            self._load_row_block()
        while self.row_index >= self.row_view.rows:
            self.block_index += 1
            self.row_index = 0
            self._load_row_block()
        if row_of(&self.row_view, self.row_index, &row.data, &row.size):
            self.sst.damaged(self.row_block_offset, BLOCK_ROWS)
        row.sequence = self.sst.base_sequence + load_u32(
            self.row_view.sequences + 4 * <size_t> self.row_index
        )
        row.ordinal = load_u32(self.row_view.ordinals + 4 * <size_t> self.row_index)
        self.row_index += 1
        self.rows_left -= 1
        self.consumed = self.row_index >= self.row_view.rows
        return 1

    cdef int _load_row_block(self) except -1 nogil:
        """Load the row block of self.block_index."""
        cdef uint64_t offset = 0
        cdef uint32_t size = 0
        if row_block_place(&self.keys, self.block_index, &offset, &size):
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self.sst.cache.unpin(self.row_block)
        self.row_block = NULL
        self.row_block = self._load(offset, size, BLOCK_ROWS)
        self.row_block_offset = offset
        self.row_block_index = self.block_index
        if parse_row_block(self.row_block.data, self.row_block.size, &self.row_view):
            self.sst.damaged(offset, BLOCK_ROWS)
        if self.row_view.rows == 1:
            self.sst.budget.note_row(<int64_t> self.row_block.size)
        return 0

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        cdef long found
        cdef uint32_t restart
        cdef const uint8_t* other
        cdef const uint8_t* payload
        cdef size_t other_size
        self._forget()
        found = index_search(&self.sst.top, 0, key, size)
        if found < 0:
            self.sst.damaged(self.sst._sections[0], BLOCK_TOP)
        self.partition = <uint32_t> found - 1  # unsigned: -1 and the step forward make 0
        if self._next_key_block() == 0:
            return 0
        found = index_search(&self.index, 0, key, size)
        if found < 0 or found >= self.index.count:
            self.sst.damaged(self.index_block.offset, BLOCK_INDEX)
        if found:
            self.index_place = <uint32_t> found - 1
            self._next_key_block()
        if restart_before(&self.keys, key, size, &restart):
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self.place = restart_place(&self.keys, restart)
        while True:
            if self.place == NULL:
                self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
            # All keys of the block may be less: what the index has for it may be greater than
            # they are, but for the file's last block.
            if self.place >= self.keys.entries_end and self._next_key_block() == 0:
                self.sst.damaged(<uint64_t> self.sst.file.size, BLOCK_KEYS)
            self._decode(&self.key_buffer)
            if compare(self.key_buffer.data, self.key_buffer.size, key, size) >= 0:
                break
        self.pending = True
        # Until next_key gives it, the entry is not current: its rows are not to be skipped over.
        return 0
