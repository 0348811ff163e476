"""An open SSTable: its blocks and sections, and an iterator over its entries.

Only the top index stays in memory; partitions of index and filter, key blocks and row blocks
come through the block cache. Every block is checked (length, kind, checksum, place) when it is
read from the file; damage raises CorruptionError with the file's name and the block's offset.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from cython_ext.errors import CorruptionError, FormatVersionError

from cython_ext.atomic cimport atomic_count, atomic_seen
from cython_ext.block cimport (
    BLOCK_INDEX, BLOCK_KEYS, BLOCK_PROPERTIES, BLOCK_ROWS, BLOCK_TOP, SPARE_BYTES,
    STACK_BYTES, TRAILER_BYTES, KeyEntry, check_block, index_entry, index_search, next_entry,
    parse_index_block, parse_key_block, parse_row_block, restart_before, restart_place,
    row_block_place, row_of, unseal_block, unseal_row_block,
)
from cython_ext.block_cache cimport BlockCache, CachedBlock, PassedBlock, make_room
from cython_ext.budget cimport MERGE, TABLES, Budget
from cython_ext.codec cimport xxh3
from cython_ext.coding cimport Buffer, compare, load_u32, load_u64, put_bytes, release, reserve
from cython_ext.entries cimport FLAG_CONTINUES, EntrySource, RowRef
from cython_ext.file cimport ReadFile
from cython_ext.sst_writer cimport FOOTER_BYTES, FORMAT_VERSION, HEADER_BYTES

cdef enum:
    AHEAD_BYTES = 32 << 10  # read at a time where everything is: 2.5 times cheaper than by block

cdef bytes MAGIC = b"LSMSTATE"
cdef tuple KINDS = ("", "row", "key", "index", "filter", "top index", "properties", "edit")


@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Sst:
    """One immutable file. Shared by stores and threads; closed when it is garbage."""

    def __init__(
        self, str path not None, BlockCache cache not None, int64_t expected_size=-1, renew=None
    ):
        cdef bytes footer
        cdef const uint8_t* data
        cdef CachedBlock* block
        cdef int i
        self.file = ReadFile(path)
        self.cache = cache
        self.budget = cache.budget
        self._renew = renew
        if expected_size >= 0 and self.file.size != expected_size:
            raise CorruptionError(
                f"the file has {self.file.size} bytes, the manifest says {expected_size}; "
                "restore it from a copy", path, self.file.size,
            )
        if self.file.size < HEADER_BYTES + FOOTER_BYTES:
            raise CorruptionError(
                f"a file of {self.file.size} bytes was never sealed; restore it from a copy",
                path, 0,
            )
        footer = self.file.read(self.file.size - FOOTER_BYTES, FOOTER_BYTES)
        data = <const uint8_t*> footer
        if footer[72:] != MAGIC or xxh3(data, 64) != load_u64(data + 64):
            raise CorruptionError(
                "the footer's checksum is wrong; restore the file from a copy",
                path, self.file.size - FOOTER_BYTES,
            )
        if load_u32(data + 36) != FORMAT_VERSION:
            raise FormatVersionError(
                f"{path} has format version {load_u32(data + 36)}, this release reads "
                f"{FORMAT_VERSION}; open it with the release that wrote it or a later one"
            )
        if load_u64(data + 56) != <uint64_t> self.file.size:
            raise CorruptionError(
                f"the footer says {load_u64(data + 56)} bytes, the file has {self.file.size}",
                path, self.file.size - FOOTER_BYTES,
            )
        for i in range(3):
            self._sections[i] = load_u64(data + 8 * i)
            self._section_sizes[i] = load_u32(data + 24 + 4 * i)
        self.uid = load_u64(data + 40)
        self.base_sequence = load_u64(data + 48)
        self.checksum = load_u64(data + 64)
        block = self.load(self._sections[0], self._section_sizes[0], BLOCK_TOP, USE_ONCE)
        try:
            put_bytes(&self.top_raw, block.data, block.size)
        finally:
            self.cache.unpin(block)
        self.budget.charge(TABLES, <int64_t> self.top_raw.capacity)
        if parse_index_block(self.top_raw.data, self.top_raw.size, TOP_PAYLOAD, &self.top):
            self.damaged(self._sections[0], BLOCK_TOP)

    def __dealloc__(self):
        if self.top_raw.capacity and self.budget is not None:
            self.budget.release(TABLES, <int64_t> self.top_raw.capacity)
        release(&self.top_raw)

    cdef int damaged(self, uint64_t offset, int kind) except -1 nogil:
        with gil:
            raise CorruptionError(
                f"the {KINDS[kind]} block is damaged; restore the file from a copy",
                self.file.path, offset,
            )

    cdef CachedBlock* load(
        self, uint64_t offset, uint32_t size, int kind, Use use
    ) except NULL nogil:
        cdef CachedBlock* block = self._cached(offset, use)
        return block if block else self._missed(offset, size, kind, use, NULL)

    cdef CachedBlock* load_rows(
        self, uint64_t offset, uint32_t size, PassedBlock* passed
    ) except NULL nogil:
        cdef CachedBlock* block = self._cached(offset, USE_PROBE)
        return block if block else self._missed(offset, size, BLOCK_ROWS, USE_PROBE, passed)

    cdef CachedBlock* _missed(
        self, uint64_t offset, uint32_t size, int kind, Use use, PassedBlock* passed
    ) except NULL nogil:
        if self._renew is None:
            return self._read(offset, size, kind, use, passed)
        with gil:
            return self._read_or_renew(offset, size, kind, use, passed)

    cdef CachedBlock* _read_or_renew(
        self, uint64_t offset, uint32_t size, int kind, Use use, PassedBlock* passed
    ) except NULL:
        """As _read. The file is a copy: if it is damaged it is brought once more."""
        cdef CachedBlock* block = NULL
        try:
            with nogil:
                block = self._read(offset, size, kind, use, passed)
            return block
        except CorruptionError:
            if self._original is None:
                # Another thread may be reading the damaged file: it stays open.
                self._first_file = self.file
                self._original = self._renew(self.file.size)
                self.file = ReadFile(self.file.path)
        try:
            with nogil:
                block = self._read(offset, size, kind, use, passed)
            return block
        except CorruptionError as error:
            raise CorruptionError(
                f"the {KINDS[kind]} block is damaged, not only in its copy {self.file.path}; "
                "restore the file from a copy of the checkpoint", self._original, offset,
            ) from error

    cdef CachedBlock* _read(
        self, uint64_t offset, uint32_t size, int kind, Use use, PassedBlock* passed
    ) except NULL nogil:
        cdef CachedBlock* block
        cdef uint8_t room[STACK_BYTES]
        cdef uint8_t* own = room
        cdef const uint8_t* stored = NULL
        if size < TRAILER_BYTES or offset + size > <uint64_t> self.file.size:
            self.damaged(offset, kind)
        # Large ones are read one by one: several of them at a time would be memory nobody counted.
        if passed != NULL and size <= STACK_BYTES and self._renew is None:
            stored = self.file.read_ahead(offset, size, &passed.ahead)
        if stored == NULL and size > STACK_BYTES:
            own = <uint8_t*> malloc(size)
            if own == NULL:
                with gil:
                    raise MemoryError(f"cannot allocate {size} bytes")
        try:
            if stored == NULL:
                self.file.read_at(offset, own, size)
                stored = own
            block = self._unsealed(stored, offset, size, kind, passed)
        finally:
            if own != room:
                free(own)
        if use != USE_ONCE and (passed == NULL or block != &passed.block):
            self.cache.publish(block, use == USE_SCAN)
        return block

    cdef CachedBlock* _cached(self, uint64_t offset, Use use) noexcept nogil:
        """A block of the cache, pinned, or NULL."""
        if self._verifying:
            return NULL
        return self.cache.get(self.uid, offset, use == USE_PROBE)

    cdef CachedBlock* _unsealed(
        self, const uint8_t* stored, uint64_t offset, uint32_t size, int kind, PassedBlock* passed
    ) except NULL nogil:
        """A pinned block, or that of `passed` if the cache does not want it."""
        cdef long raw_size = check_block(stored, size, offset, kind)
        cdef CachedBlock* block
        if raw_size < 0:
            self.damaged(offset, kind)
        atomic_count(&self.blocks_read, 1)
        atomic_count(&self.bytes_read, size)
        if passed != NULL and raw_size <= SPARE_BYTES and not self.cache.wants(
            self.uid, offset, raw_size
        ):
            if make_room(passed, raw_size):
                with gil:
                    raise MemoryError(f"cannot allocate {2 * raw_size} bytes")
            block = &passed.block
            if unseal_row_block(stored, size, block.data, raw_size, &block.transposed):
                self.damaged(offset, kind)
            return block
        block = self.cache.allocate(self.uid, offset, raw_size)
        if block == NULL:
            with gil:
                raise MemoryError(f"cannot allocate {raw_size} bytes")
        if unseal_block(stored, size, block.data, raw_size):
            self.cache.unpin(block)
            self.damaged(offset, kind)
        return block

    def section(self, str name not None) -> bytes:
        """The bytes of the section "properties" or "edit"."""
        cdef int number = {"properties": 1, "edit": 2}[name]
        cdef CachedBlock* block = self.load(
            self._sections[number], self._section_sizes[number],
            BLOCK_PROPERTIES + number - 1, USE_ONCE,
        )
        try:
            return <bytes> block.data[:block.size]
        finally:
            self.cache.unpin(block)

    def source(self, bint scanning=False) -> SstSource:
        """An iterator over all entries, which keeps nothing in the block cache; ``scanning``: it
        keeps what it reads where it is evicted first."""
        return SstSource(self, scanning)

    def counters(self) -> dict[str, int]:
        """What was done with this file since it was opened."""
        return {
            "filter_checks": atomic_seen(&self.filter_checks),
            "filter_negatives": atomic_seen(&self.filter_negatives),
            "blocks_read": atomic_seen(&self.blocks_read),
            "bytes_read": atomic_seen(&self.bytes_read),
        }

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.file.size

    @property
    def index_bytes(self) -> int:
        """Bytes of memory the open table holds: its top index."""
        return <int64_t> self.top_raw.capacity


@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class SstSource(EntrySource):
    """Entries of one file in key order; segments of a key are given as one entry."""

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
        release(&self.seen_key)

    cdef CachedBlock* _load(self, uint64_t offset, uint32_t size, int kind) except NULL nogil:
        """As Sst.load. A source that keeps nothing reads everything once and from front to back:
        what follows in the file is read along."""
        cdef CachedBlock* block
        cdef size_t wanted
        if self.use != USE_ONCE or size > AHEAD_BYTES // 2 or self.sst._renew is not None:
            return self.sst.load(offset, size, kind, self.use)
        block = self.sst._cached(offset, self.use)
        if block != NULL:
            return block
        if size < TRAILER_BYTES or offset + size > <uint64_t> self.sst.file.size:
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
            self.ahead.data + (offset - self.ahead_offset), offset, size, kind, NULL
        )

    cdef void _forget(self) noexcept nogil:
        self.sst.cache.unpin(self.index_block)
        self.sst.cache.unpin(self.key_block)
        self.sst.cache.unpin(self.row_block)
        self.index_block = NULL
        self.key_block = NULL
        self.row_block = NULL
        self.place = NULL
        self.rows_left = 0
        self.consumed = False
        self.continues = False
        self.pending = False

    cdef void _release_consumed(self) noexcept nogil:
        """Let a block go as soon as its last row is done with: of many merged sources each would
        else hold one, however large its row is."""
        if self.consumed:
            self.sst.cache.unpin(self.row_block)
            self.row_block = NULL
            self.block_index += 1
            self.row_index = 0
            self.consumed = False

    cdef int _next_key_block(self) except -1 nogil:
        """1 with the next key block loaded, 0 at the end of the file."""
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
        """The index block of self.partition."""
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
        """The key block that self.index_place says."""
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
        self.key_buffer.size = 0
        memset(&self.entry, 0, sizeof(KeyEntry))
        return 0

    cdef int _decode(self) except -1 nogil:
        """Decode the entry at self.place; restarts begin afresh."""
        if self.place[0] == 0:  # shared == 0: a restart, where block indexes are absolute
            self.entry.block_index = 0
        self.place = next_entry(&self.keys, self.place, &self.key_buffer, &self.entry)
        if self.place == NULL:
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self._begin_rows()
        return 0

    cdef void _begin_rows(self) noexcept nogil:
        """Stand before the first row of the decoded entry."""
        self.rows_left = self.entry.rows
        self.continues = (self.entry.flags & FLAG_CONTINUES) != 0
        self.block_index = self.entry.block_index
        self.row_index = self.entry.row_index

    cdef int next_key(self) except -1 nogil:
        self._release_consumed()
        if self.pending:
            self.pending = False
        else:
            while self.continues:
                self._next_segment()
            while self.place == NULL or self.place >= self.keys.entries_end:
                if self._next_key_block() == 0:
                    return 0
            self._decode()
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
        """Go on with the same key in the next key block; its rows are added to the entry's."""
        self.seen_key.size = 0
        put_bytes(&self.seen_key, self.key_buffer.data, self.key_buffer.size)
        if self._next_key_block() == 0:
            self.sst.damaged(<uint64_t> self.sst.file.size, BLOCK_KEYS)
        self._decode()
        if compare(
            self.seen_key.data, self.seen_key.size, self.key_buffer.data, self.key_buffer.size
        ):
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self.key = self.key_buffer.data
        self.rows += self.entry.rows
        self.row_bytes += self.entry.row_bytes
        return 0

    cdef int next_row(self, RowRef* row) except -1 nogil:
        self._release_consumed()
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
        """The row block that self.block_index says."""
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
            if self.place == NULL or self.place >= self.keys.entries_end:
                self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
            self._decode()
            if compare(self.key_buffer.data, self.key_buffer.size, key, size) >= 0:
                break
        self.pending = True
        # Until next_key gives it, the entry is not current: its rows are not to be skipped over.
        return 0
