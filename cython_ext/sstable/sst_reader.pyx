"""An open SSTable: its blocks and sections.

Only the top index stays in memory; partitions of index and filter, key blocks and row blocks
come through the block cache. Every block is checked (length, kind, checksum, place) when it is
read from the file; damage raises CorruptionError with the file's name and the block's offset.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from lsmstate.cython_ext.errors import CorruptionError, FormatVersionError

from lsmstate.cython_ext.base.atomic cimport atomic_count, atomic_seen
from lsmstate.cython_ext.sstable.block cimport (
    BLOCK_PROPERTIES, BLOCK_ROWS, BLOCK_TOP, SPARE_BYTES, STACK_BYTES, TRAILER_BYTES, check_block,
    unseal_block, unseal_row_block,
)
from lsmstate.cython_ext.sstable.block_cache cimport BlockCache, CachedBlock, PassedBlock, make_room
from lsmstate.cython_ext.memory.budget cimport MERGE, PROBE, TABLES, Budget
from lsmstate.cython_ext.base.compression cimport xxh3
from lsmstate.cython_ext.base.coding cimport lies_within, load_u32, load_u64, put_bytes, release
from lsmstate.cython_ext.base.file cimport ReadFile
from lsmstate.cython_ext.sstable.index_block cimport parse_index_block
from lsmstate.cython_ext.sstable.sst_writer cimport FOOTER_BYTES, FORMAT_VERSION, HEADER_BYTES

cdef bytes MAGIC = b"LSMSTATE"
cdef tuple KINDS = ("", "row", "key", "index", "filter", "top index", "properties", "edit")


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Sst:
    """One immutable file. Stores and threads share it; garbage collection closes it."""

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
        if not 1 <= load_u32(data + 36) <= FORMAT_VERSION:
            raise FormatVersionError(
                f"{path} has format version {load_u32(data + 36)}, this release reads up "
                f"to {FORMAT_VERSION}; open it with the release that wrote it or a later one"
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
        self.version = load_u32(data + 36)
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
        """Read as _read does. The file is a copy: if it is damaged, it is brought again."""
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
        cdef int component = MERGE if use == USE_ONCE else PROBE
        if size < TRAILER_BYTES or not lies_within(offset, size, self.file.size):
            self.damaged(offset, kind)
        # Large blocks are read one by one: several at a time would be uncounted memory.
        if passed != NULL and size <= STACK_BYTES and self._renew is None:
            stored = self.file.read_ahead(offset, size, &passed.ahead)
        if stored == NULL and size > STACK_BYTES:
            own = <uint8_t*> malloc(size)
            if own == NULL:
                with gil:
                    raise MemoryError(f"cannot allocate {size} bytes")
            self.budget.charge(component, size)
        try:
            if stored == NULL:
                self.file.read_at(offset, own, size)
                stored = own
            block = self._unsealed(stored, offset, size, kind, use, passed)
        finally:
            if own != room:
                free(own)
                self.budget.release(component, size)
        if use != USE_ONCE and (passed == NULL or block != &passed.block):
            self.cache.publish(block, use == USE_SCAN)
        return block

    cdef CachedBlock* _cached(self, uint64_t offset, Use use) noexcept nogil:
        """Return a cached block, pinned, or NULL."""
        if self._verifying:
            return NULL
        return self.cache.get(self.uid, offset, use == USE_PROBE)

    cdef CachedBlock* _unsealed(
        self, const uint8_t* stored, uint64_t offset, uint32_t size, int kind, Use use,
        PassedBlock* passed,
    ) except NULL nogil:
        """Return a pinned block, or that of `passed` if the cache does not want it."""
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
        block = self.cache.allocate(self.uid, offset, raw_size, use != USE_ONCE)
        if block == NULL:
            with gil:
                raise MemoryError(f"cannot allocate {raw_size} bytes")
        if unseal_block(stored, size, block.data, raw_size):
            self.cache.unpin(block)
            self.damaged(offset, kind)
        return block

    def section(self, str name not None) -> bytes:
        """Return the bytes of the section "properties" or "edit"."""
        cdef int number = {"properties": 1, "edit": 2}[name]
        cdef CachedBlock* block = self.load(
            self._sections[number], self._section_sizes[number],
            BLOCK_PROPERTIES + number - 1, USE_ONCE,
        )
        try:
            return <bytes> block.data[:block.size]
        finally:
            self.cache.unpin(block)

    def counters(self) -> dict[str, int]:
        """Return what was done with this file since it was opened."""
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
        """Bytes of memory that the open table holds: its top index."""
        return <int64_t> self.top_raw.capacity
