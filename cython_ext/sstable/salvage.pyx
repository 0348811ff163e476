"""The readable part of a damaged SSTable: its blocks, found by their own checksums, and their
content.

A block's checksum covers its offset in the file, so a block that passes is the one that was written
there. Nothing else in the file is trusted: neither footer nor index. It is used for repair only,
where simple code matters more than speed; an entry is a Python object here.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from lsmstate.cython_ext.sstable.block cimport (
    BLOCK_EDIT, BLOCK_ROWS, TRAILER_BYTES, RowBlock, check_block, parse_row_block,
    row_of, unseal_block,
)
from lsmstate.cython_ext.base.compression cimport CODEC_PLANES
from lsmstate.cython_ext.base.coding cimport Buffer, load_u32, release
from lsmstate.cython_ext.entries.entry_source cimport EntrySource, RowRef
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyBlock, KeyEntry, may_hold, next_entry, parse_key_block, row_block_place,
)
from lsmstate.cython_ext.sstable.sst_writer cimport HEADER_BYTES

from lsmstate.cython_ext.errors import CorruptionError


cdef bint _is_trailer(const uint8_t* trailer) noexcept nogil:
    """Test whether these bytes could begin a block's trailer: kind, codec, shuffled, zero."""
    return (
        BLOCK_ROWS <= trailer[0] <= BLOCK_EDIT and trailer[1] <= CODEC_PLANES and trailer[2] <= 1
        and trailer[3] == 0
    )


cdef bint _may_span(const uint8_t* data, size_t start, size_t end) noexcept nogil:
    """Test whether a block could lie from `start` to `end`: cheap, before any checksum."""
    cdef const uint8_t* trailer = data + end - TRAILER_BYTES
    cdef size_t payload = end - start - TRAILER_BYTES
    if not _is_trailer(trailer):
        return False
    if trailer[1] == 0:
        return load_u32(trailer + 4) == payload
    return load_u32(trailer + 4) >= payload


cdef size_t _end_of_block(const uint8_t* data, size_t size, size_t start) noexcept nogil:
    """Return the end of the undamaged block that begins at `start`; 0 if there is none."""
    cdef size_t end
    for end in range(start + TRAILER_BYTES, size + 1):
        if _may_span(data, start, end) and check_block(
            data + start, end - start, start, data[end - TRAILER_BYTES]
        ) >= 0:
            return end
    return 0


cdef size_t _next_start(const uint8_t* data, size_t size, size_t start) noexcept nogil:
    """Where a whole block begins behind the damaged one at `start`; `size` if none does.

    A block begins where another ends. First the ends that fit the damaged block's own length are
    tried, for its trailer is likely to be whole; then all that look like an end."""
    cdef size_t end
    for end in range(start + TRAILER_BYTES, size):
        if _may_span(data, start, end) and _end_of_block(data, size, end):
            return end
    for end in range(start + TRAILER_BYTES, size):
        if _is_trailer(data + end - TRAILER_BYTES) and _end_of_block(data, size, end):
            return end
    return size


def find_blocks(const uint8_t[::1] data not None) -> list:
    """Return (offset, size, kind) of every undamaged block of a file, in order."""
    cdef size_t start = HEADER_BYTES, end = 0, size = data.shape[0]
    cdef const uint8_t* bytes_ = &data[0] if size else NULL
    found = []
    while start + TRAILER_BYTES <= size:
        with nogil:
            end = _end_of_block(bytes_, size, start)
        if end:
            found.append((start, end - start, data[end - TRAILER_BYTES]))
            start = end
        else:
            with nogil:
                start = _next_start(bytes_, size, start)
    return found


def block_bytes(const uint8_t[::1] data not None, size_t offset, size_t size) -> bytes:
    """Decode a block that find_blocks has found. CorruptionError if it does not decode."""
    cdef const uint8_t* stored
    cdef uint8_t* raw
    cdef size_t raw_size
    if size < TRAILER_BYTES or offset + size > <size_t> data.shape[0]:
        raise ValueError(f"no block of {size} bytes at {offset}")
    stored = &data[offset]
    raw_size = load_u32(stored + size - 12)
    raw = <uint8_t*> malloc(raw_size + 1)
    if raw == NULL:
        raise MemoryError(f"cannot allocate {raw_size} bytes")
    try:
        if unseal_block(stored, size, raw, raw_size):
            raise CorruptionError("a block with a right checksum does not decode", "", offset)
        return <bytes> raw[:raw_size]
    finally:
        free(raw)


def key_entries(bytes block not None) -> tuple:
    """Return the entries of a key block (key, flags, rows, row block, row in it), and the offset of
    each row block."""
    cdef KeyBlock keys
    cdef KeyEntry entry
    cdef Buffer key
    cdef const uint8_t* place
    cdef uint64_t offset = 0
    cdef uint32_t size = 0, i
    memset(&key, 0, sizeof(Buffer))
    memset(&entry, 0, sizeof(KeyEntry))
    entries = []
    places = []
    try:
        if parse_key_block(block, len(block), &keys) or keys.entries == keys.entries_end:
            raise CorruptionError("a key block does not make sense")
        place = keys.entries
        while place < keys.entries_end:
            if place[0] == 0:  # a restart, where row blocks are counted anew
                entry.block_index = 0
            place = next_entry(&keys, place, &key, &entry)
            if place == NULL or not may_hold(&keys, &entry):
                raise CorruptionError("an entry of a key block does not make sense")
            entries.append((
                <bytes> key.data[:key.size], entry.flags, entry.rows, entry.block_index,
                entry.row_index,
            ))
        for i in range(keys.row_blocks):
            if row_block_place(&keys, i, &offset, &size):
                raise CorruptionError("a key block's table of row blocks does not make sense")
            places.append(offset)
        return entries, places
    finally:
        release(&key)


def block_rows(bytes block not None) -> list:
    """Return (sequence, ordinal, row) of each row of a row block; sequences count from the file's
    base."""
    cdef RowBlock rows
    cdef const uint8_t* data = NULL
    cdef size_t size = 0
    cdef uint32_t i
    if parse_row_block(block, len(block), &rows):
        raise CorruptionError("a row block does not make sense")
    found = []
    for i in range(rows.rows):
        if row_of(&rows, i, &data, &size):
            raise CorruptionError("a row block's offsets do not make sense")
        found.append((
            load_u32(rows.sequences + 4 * <size_t> i), load_u32(rows.ordinals + 4 * <size_t> i),
            <bytes> data[:size],
        ))
    return found


@cython.final
cdef class ListedEntries(EntrySource):
    """Entries from Python, one by one: (key, flags, [(sequence, ordinal, row), ...])."""

    cdef object entries
    cdef bytes current_key
    cdef list current_rows
    cdef Py_ssize_t given

    def __init__(self, entries):
        self.entries = iter(entries)
        self.current_rows = []

    cdef int next_key(self) except -1 nogil:
        with gil:
            return self._next_key()

    cdef int _next_key(self) except -1:
        cdef bytes before = self.current_key
        try:
            self.current_key, self.flags, self.current_rows = next(self.entries)
        except StopIteration:
            return 0
        if before is not None and self.current_key <= before:
            raise CorruptionError(f"the key {self.current_key.hex()} comes behind {before.hex()}")
        self.key = self.current_key
        self.key_size = len(self.current_key)
        self.rows = len(self.current_rows)
        self.row_bytes = sum([len(row[2]) for row in self.current_rows])
        self.given = 0
        return 1

    cdef int next_row(self, RowRef* row) except -1 nogil:
        with gil:
            return self._next_row(row)

    cdef int _next_row(self, RowRef* row) except -1:
        cdef bytes data
        if self.given >= len(self.current_rows):
            return 0
        row.sequence, row.ordinal, data = self.current_rows[self.given]
        row.data = data
        row.size = len(data)
        self.given += 1
        return 1
