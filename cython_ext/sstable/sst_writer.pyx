"""SSTable writer: sorted entries -> an immutable file of row blocks, key blocks, index, filters and
footer.

- Rows go to row blocks. A key's place among them goes to a key block, which is written after its
  row blocks: looking up a key reads no row.
- A number of keys, or bytes of index, make a partition with an index block and a filter. The top
  index, with one entry per partition, is all that an open table keeps in memory.
- Key blocks have the zones of their row blocks. Those of a stream with zones hold no other stream.
- Both indexes hold separators instead of keys, as short as possible: keys may have any size.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from lsmstate.cython_ext.errors import CorruptionError

from lsmstate.cython_ext.sstable.block cimport (
    BLOCK_EDIT, BLOCK_FILTER, BLOCK_INDEX, BLOCK_PROPERTIES, BLOCK_ROWS, BLOCK_TOP,
)
from lsmstate.cython_ext.sstable.block_output cimport BlockOutput
from lsmstate.cython_ext.sstable.bloom cimport build_filter
from lsmstate.cython_ext.memory.budget cimport MERGE, Budget
from lsmstate.cython_ext.base.compression cimport CODEC_LZ4, CODEC_NONE, xxh3
from lsmstate.cython_ext.base.coding cimport (
    STREAM_BYTES,
    Buffer, compare, copy_key, copy_suffix, mix_stream, put_bytes, put_u32, put_u64, release,
    reserve, shared_prefix, shrink, write_varint,
)
from lsmstate.cython_ext.entries.entry_source cimport FLAG_CONTINUES, FLAG_RESET, EntrySource, RowRef
from lsmstate.cython_ext.base.file cimport AppendFile
from lsmstate.cython_ext.sstable.index_block cimport (
    is_large_index, put_index_block, put_index_key, put_separator,
)
from lsmstate.cython_ext.rows.zone_columns cimport ZoneColumns, zone_word
from lsmstate.cython_ext.sstable.key_block cimport RESTART_ENTRIES, Zone

cdef enum:
    KEYS_PER_PARTITION = 8192
    ROW_BLOCKS_PER_KEY_BLOCK = 1024
    SHUFFLED_ROWS = 32  # at a time; a full block leaves no rest, which would go byte by byte
    MOST_ENTRY_BYTES = 61  # of an entry without its key: six varints, and the flags
    SUFFIX_ROOM = 8  # behind a key: copy_suffix reads up to there
    ROW_BLOCK_TAIL = 32  # behind the only row of a block

cdef bytes MAGIC = b"LSMSTATE"


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class SstWriter:
    """Writes one file. After finish() it is sealed; a file without a footer is never read."""

    def __cinit__(self):
        self.charged = 0
        self.finished = self.inside_key = False

    def __init__(
        self, AppendFile file not None, Budget budget not None, *, int codec, size_t block_bytes,
        int filter_bits, uint64_t uid, uint64_t base_sequence, zones=(),
    ):
        """Begin a file. ``zones`` are the ZoneColumns of streams that have some, by number."""
        self.output = BlockOutput(file, block_bytes)
        self.budget = budget
        self.codec = codec
        self.block_bytes = block_bytes
        # Probes read a row block for a few of its rows, but look for many keys in a key block.
        self.row_block_bytes = block_bytes // 2
        self.filter_bits = filter_bits
        self.uid = uid
        self.base_sequence = base_sequence
        self.zones_of = dict(zones)
        self.has_zones = bool(self.zones_of)
        self.zone_stream = -1
        self.min_sequence = <uint64_t> -1
        self.row_base = HEADER_BYTES
        # One number for each row that a block can have at most.
        reserve(&self.row_ends, block_bytes + 4)
        reserve(&self.row_sequences, block_bytes + 4)
        reserve(&self.row_ordinals, block_bytes + 4)
        file.append(MAGIC + FORMAT_VERSION.to_bytes(4, "little") + bytes(4))

    def __dealloc__(self):
        release(&self.row_data)
        release(&self.row_ends)
        release(&self.row_sequences)
        release(&self.row_ordinals)
        release(&self.row_zones)
        release(&self.entries)
        release(&self.restarts)
        release(&self.block_ends)
        release(&self.block_zones)
        release(&self.last_key)
        release(&self.entry_key)
        release(&self.index)
        release(&self.index_key)
        release(&self.index_offsets)
        release(&self.hashes)
        release(&self.top)
        release(&self.top_offsets)
        release(&self.first_key)
        if self.budget is not None:
            self.budget.release(MERGE, self.charged)

    cdef void _account(self) noexcept nogil:
        """Charge what the buffers hold now, and release what one huge row made them grow to: a
        merge that pauses between two slices would otherwise hold several such rows unused."""
        cdef int64_t held
        shrink(&self.row_data, self.output.kept_bytes)
        held = (
            self.output.trim() + self.row_data.capacity + self.row_ends.capacity
            + self.row_sequences.capacity + self.row_ordinals.capacity + self.entries.capacity
            + self.restarts.capacity + self.block_ends.capacity + self.row_zones.capacity
            + self.block_zones.capacity + self.index.capacity
            + self.index_offsets.capacity + self.hashes.capacity + self.top.capacity
            + self.top_offsets.capacity
        )
        if held > self.charged:
            self.budget.charge(MERGE, held - self.charged)
        else:
            self.budget.release(MERGE, self.charged - held)
        self.charged = held

    cdef int begin_key(self, const uint8_t* key, size_t size, uint8_t flags) except -1 nogil:
        assert self.keys == 0 or compare(
            self.entry_key.data, self.entry_key.size, key, size
        ) < 0, "keys must ascend"
        if self.has_zones and ((<int32_t> key[0] << 8) | key[1]) != self.zone_stream:
            self._begin_stream(key, size)
        if (
            self.entries.size + size + 64 > self.block_bytes and self.entry_count
            and not self._shares(key, size)
        ):
            self._close_key_block(key, size)
            if is_large_index(&self.index, &self.index_offsets):
                self._close_partition()
        self.entry_key.size = 0
        reserve(&self.entry_key, size + SUFFIX_ROOM)
        copy_key(self.entry_key.data, key, size)
        self.entry_key.size = size
        if self.keys == 0:
            put_bytes(&self.first_key, key, size)
        self.entry_flags = flags
        self.entry_rows = 0
        self.entry_bytes = 0
        self.entry_continued = False
        self.keys += 1
        self.tombstones += (flags & FLAG_RESET) != 0
        return 0

    cdef int _begin_stream(self, const uint8_t* key, size_t size) except -1 nogil:
        """Take the zone columns of the key's stream. Blocks end with a stream that has zones, and
        before one."""
        cdef bint is_same
        self.zone_stream = (<int32_t> key[0] << 8) | key[1]
        with gil:
            following = self.zones_of.get(self.zone_stream)
            is_same = following is self.zones
        if is_same:
            return 0
        self._close_key_block(key, size)
        with gil:
            self.zones = following
            self.row_zones.size = 0
            if self.zones is not None:
                reserve(&self.row_zones, self.zones.count * sizeof(Zone))
                self.row_zones.size = self.zones.count * sizeof(Zone)
        return 0

    cdef bint _shares(self, const uint8_t* key, size_t size) noexcept nogil:
        """Test whether a long key goes into a full block, because little of it is new. Most keys
        with a common prefix thus share one whole key, in the block and in the index."""
        cdef size_t shared
        if size <= self.block_bytes // 8 or self.since_restart == 0:
            return False
        shared = shared_prefix(self.last_key.data, self.last_key.size, key, size)
        return shared > 0 and size - shared <= self.block_bytes // 8

    cdef int add_row(self, const RowRef* row) except -1 nogil:
        cdef uint64_t sequence = 0
        if self.row_count and (
            self.row_data.size + row.size > self.row_block_bytes
            or self.row_count >= self.block_bytes // 4
            or (
                self.row_count % SHUFFLED_ROWS == 0 and not self.row_mixed
                and self.row_data.size + SHUFFLED_ROWS * self.row_width > self.row_block_bytes
            )
        ):
            self._close_row_block()
        if self.row_count == 0:
            self._close_key_block_if_full()
        if self.entry_rows == 0:
            self.entry_block = <uint32_t> (self.block_ends.size // 8)
            self.entry_row = self.row_count
        # Older writes count as the file's first: a key's rows stay in the order of arrival.
        if row.sequence > self.base_sequence:
            sequence = row.sequence - self.base_sequence
        if sequence > <uint64_t> 0xFFFFFFFF:
            with gil:
                raise CorruptionError(
                    f"a row of write {row.sequence} cannot be in a file of the writes from "
                    f"{self.base_sequence} on: an input file is damaged; run lsmstate verify to "
                    "find it"
                )
        if self.row_data.capacity - self.row_data.size < row.size:
            reserve(&self.row_data, row.size + ROW_BLOCK_TAIL)
        memcpy(self.row_data.data + self.row_data.size, row.data, row.size)
        self.row_data.size += row.size
        (<uint32_t*> self.row_ends.data)[self.row_count] = <uint32_t> self.row_data.size
        (<uint32_t*> self.row_sequences.data)[self.row_count] = <uint32_t> sequence
        (<uint32_t*> self.row_ordinals.data)[self.row_count] = row.ordinal
        if self.row_zones.size:
            if self.row_count == 0:
                self._begin_zones()
            widen(self.zones, row.data, row.size, <Zone*> self.row_zones.data)
        if self.row_count == 0:
            self.row_width = row.size
            self.row_mixed = row.size == 0
        elif row.size != self.row_width:
            self.row_mixed = True
        self.row_count += 1
        self.entry_rows += 1
        self.entry_bytes += row.size
        self.rows += 1
        self.raw_bytes += row.size
        sequence += self.base_sequence
        if sequence < self.min_sequence:
            self.min_sequence = sequence
        if sequence > self.max_sequence:
            self.max_sequence = sequence
        return 0

    cdef void _begin_zones(self) noexcept nogil:
        cdef size_t c
        cdef Zone* zones = <Zone*> self.row_zones.data
        for c in range(self.row_zones.size // sizeof(Zone)):
            zones[c].least = <uint64_t> -1
            zones[c].greatest = 0

    cdef int _close_key_block_if_full(self) except -1 nogil:
        """Close the block if its table of row blocks is full; the key continues in the next block.
        A long key does so later, as the index has it once for each block."""
        if self.block_ends.size < 8 * max(<size_t> ROW_BLOCKS_PER_KEY_BLOCK, self.entry_key.size):
            return 0
        if self.entry_rows:
            self._put_entry(self.entry_flags | FLAG_CONTINUES)
            self.entry_flags &= ~(<uint8_t> FLAG_RESET)
            self.entry_continued = True
            self.entry_rows = 0
            self.entry_bytes = 0
        self._close_key_block(NULL, 0)
        return 0

    cdef int end_key(self) except -1 nogil:
        cdef uint64_t hash
        if self.entry_rows == 0 and not self.entry_continued:
            self.entry_block = <uint32_t> (self.block_ends.size // 8)
            self.entry_row = self.row_count
        self._put_entry(self.entry_flags)
        hash = mix_stream(
            xxh3(self.entry_key.data + 2, self.entry_key.size - 2),
            (<uint32_t> self.entry_key.data[0] << 8) | self.entry_key.data[1],
        )
        put_u64(&self.hashes, hash)
        if self.hashes.size >= KEYS_PER_PARTITION * 8:
            self._close_partition()
        return 0

    cdef int _put_entry(self, uint8_t flags) except -1 nogil:
        cdef size_t shared = 0, suffix
        cdef uint8_t* target
        if self.since_restart and self.entry_count:
            shared = shared_prefix(
                self.last_key.data, self.last_key.size, self.entry_key.data, self.entry_key.size
            )
        if shared == 0:  # on disk: an entry that shares nothing is a restart, and the reverse
            put_u32(&self.restarts, <uint32_t> self.entries.size)
            self.last_block = 0
            self.since_restart = 0
        self.since_restart = (self.since_restart + 1) % RESTART_ENTRIES
        suffix = self.entry_key.size - shared
        reserve(&self.entries, suffix + MOST_ENTRY_BYTES)
        target = self.entries.data + self.entries.size
        target = write_varint(target, shared)
        target = write_varint(target, suffix)
        copy_suffix(target, self.entry_key.data + shared, suffix)
        target += suffix
        target[0] = flags
        target = write_varint(target + 1, self.entry_rows)
        target = write_varint(target, self.entry_bytes)
        target = write_varint(target, self.entry_block - self.last_block)
        target = write_varint(target, self.entry_row)
        self.entries.size = target - self.entries.data
        self.last_block = self.entry_block
        self.last_key.size = 0
        reserve(&self.last_key, self.entry_key.size)
        copy_key(self.last_key.data, self.entry_key.data, self.entry_key.size)
        self.last_key.size = self.entry_key.size
        self.entry_count += 1
        return 0

    cdef int _close_row_block(self) except -1 nogil:
        cdef uint64_t offset
        cdef uint32_t size, data_size = <uint32_t> self.row_data.size
        cdef size_t array_bytes = 4 * <size_t> self.row_count
        if self.row_count == 0:
            return 0
        if self.row_data.size > <size_t> 0x7D000000:
            with gil:
                raise ValueError(f"a row of {self.row_data.size} bytes")
        # The buffers are swapped instead of copied: the output's are empty between two blocks.
        self.output.raw, self.row_data = self.row_data, self.output.raw
        if self.row_mixed:
            put_bytes(&self.output.raw, self.row_ends.data, array_bytes)
        put_bytes(&self.output.raw, self.row_sequences.data, array_bytes)
        put_bytes(&self.output.raw, self.row_ordinals.data, array_bytes)
        put_u32(&self.output.raw, self.row_count)
        put_u32(&self.output.raw, data_size)
        put_u32(&self.output.raw, 0 if self.row_mixed else <uint32_t> self.row_width)
        self.output.write(BLOCK_ROWS, self.codec, &offset, &size)
        put_u64(&self.block_ends, self.output.place() - self.row_base)
        if self.row_zones.size:
            put_u32(&self.block_zones, self.row_count)
            put_bytes(&self.block_zones, self.row_zones.data, self.row_zones.size)
        self.row_data.size = 0
        self.row_count = 0
        self._account()
        return 0

    cdef int _close_key_block(
        self, const uint8_t* following, size_t following_size
    ) except -1 nogil:
        """Write rows before keys: entries may refer only to row blocks that are in the file.
        ``following``: the next block's first key; NULL: unknown, or there is none."""
        cdef uint64_t offset
        cdef uint32_t size, zones = <uint32_t> (self.row_zones.size // sizeof(Zone)), z
        self._close_row_block()
        if self.entry_count:
            put_bytes(&self.output.raw, self.entries.data, self.entries.size)
            for z in range(zones):
                put_u32(&self.output.raw, self.zones.columns[z].number)
            put_bytes(&self.output.raw, self.block_zones.data, self.block_zones.size)
            put_bytes(&self.output.raw, self.block_ends.data, self.block_ends.size)
            put_bytes(&self.output.raw, self.restarts.data, self.restarts.size)
            put_u64(&self.output.raw, self.row_base)
            put_u32(&self.output.raw, <uint32_t> (self.block_ends.size // 8))
            put_u32(&self.output.raw, <uint32_t> (self.restarts.size // 4))
            put_u32(&self.output.raw, self.entry_count)
            put_u32(&self.output.raw, zones)
            self.output.write_keys(self.codec, &offset, &size)
            put_separator(&self.index_key, &self.last_key, following, following_size)
            put_index_key(&self.index, &self.index_offsets, &self.index_key)
            put_u64(&self.index, offset)
            put_u32(&self.index, size)
        self.entries.size = 0
        self.restarts.size = 0
        self.block_ends.size = 0
        self.block_zones.size = 0
        self.entry_count = 0
        self.since_restart = 0
        self.last_block = 0
        self.row_base = self.output.place()
        return 0

    cdef int _close_partition(self) except -1 nogil:
        """Write index and filter of the keys since the last partition."""
        cdef uint64_t index_offset, filter_offset = 0
        cdef uint32_t index_size, filter_size = 0
        self._close_key_block(NULL, 0)
        if self.index_offsets.size == 0:
            return 0
        put_index_block(&self.output.raw, &self.index, &self.index_offsets)
        self.output.write(BLOCK_INDEX, self.codec, &index_offset, &index_size)
        if self.filter_bits:
            build_filter(
                &self.output.raw, <const uint64_t*> self.hashes.data, self.hashes.size // 8,
                self.filter_bits,
            )
            self.output.write(BLOCK_FILTER, CODEC_NONE, &filter_offset, &filter_size)
        put_index_key(&self.top, &self.top_offsets, &self.index_key)
        put_u64(&self.top, index_offset)
        put_u32(&self.top, index_size)
        put_u64(&self.top, filter_offset)
        put_u32(&self.top, filter_size)
        self.index.size = 0
        self.index_offsets.size = 0
        self.hashes.size = 0
        self.row_base = self.output.place()
        self._account()
        return 0

    def consume(
        self, EntrySource source not None, int64_t max_bytes, int64_t file_bytes, bint bottom,
        bint standing=False,
    ) -> int:
        """Write entries; return why it stopped.

        - 0: the source ended.
        - 1: about `max_bytes` are done.
        - 2: the file has reached `file_bytes`.
        - 3: the file has an eighth of them, and a stream ended. The source is at the next stream's
          first entry, which the next call learns by `standing`.

        Inside a key it stops only for `max_bytes`, and the next call continues with it. At the
        bottom nothing is older, so tombstones are dropped.
        """
        cdef int64_t done = 0
        cdef uint8_t flags
        cdef int result = 0
        with nogil:
            while True:
                if not self.inside_key:
                    if done >= max_bytes:
                        result = 1
                        break
                    if <int64_t> self.output.place() >= file_bytes:
                        result = 2
                        break
                    if standing:
                        standing = False
                    elif source.next_key() == 0:
                        break
                    elif (
                        <int64_t> self.output.place() >= file_bytes // 8 and self.keys
                        and memcmp(source.key, self.entry_key.data, STREAM_BYTES) != 0
                    ):
                        result = 3
                        break
                    flags = 0 if bottom else source.flags & FLAG_RESET
                    if source.rows == 0 and flags == 0:
                        continue
                    self.begin_key(source.key, source.key_size, flags)
                    self.inside_key = True
                    done += <int64_t> source.key_size + 32
                if self._consume_rows(source, max_bytes, &done):
                    result = 1
                    break
                self.end_key()
                self.inside_key = False
        return result

    cdef int _consume_rows(
        self, EntrySource source, int64_t max_bytes, int64_t* done
    ) except -1 nogil:
        """Write the rows of the key; 1: it stopped, and some may be left."""
        cdef RowRef row
        cdef int64_t seen = done[0]
        cdef size_t largest = self.row_block_bytes
        while True:
            while (<EntrySource> source.giver).next_row(&row):
                self.add_row(&row)
                seen += <int64_t> row.size
                if row.size > largest:
                    # It fills its block. A merge holds two copies of it at a time then, and none
                    # between two slices.
                    (<EntrySource> source.giver).done_with_row()
                    self._close_row_block()
                if seen >= max_bytes:
                    return 1
            if not (source.has_givers and source.next_giver()):
                done[0] = seen
                return 0

    def facts(self) -> dict[str, object]:
        """Return what was written so far: counts, key range, sequence range; for the manifest."""
        return {
            "keys": self.keys,
            "rows": self.rows,
            "tombstones": self.tombstones,
            "raw_bytes": self.raw_bytes,
            "min_key": <bytes> self.first_key.data[:self.first_key.size],
            "max_key": <bytes> self.entry_key.data[:self.entry_key.size],
            "min_sequence": self.min_sequence if self.rows else 0,
            "max_sequence": self.max_sequence,
            "uid": self.uid,
        }

    def finish(self, bytes properties not None, bytes edit not None, bint sync) -> int:
        """Write the rest, the two sections and the footer; return the checksum of the footer."""
        cdef uint64_t top_offset, properties_offset, edit_offset, checksum
        cdef uint32_t top_size, properties_size, edit_size
        cdef Buffer* footer = &self.output.raw
        if self.finished:
            raise ValueError(f"{self.output.file.path} is sealed already")
        with nogil:
            self._close_partition()
            put_index_block(&self.output.raw, &self.top, &self.top_offsets)
            self.output.write(BLOCK_TOP, self.codec, &top_offset, &top_size)
        put_bytes(&self.output.raw, <const uint8_t*> properties, len(properties))
        self.output.write(BLOCK_PROPERTIES, CODEC_LZ4, &properties_offset, &properties_size)
        put_bytes(&self.output.raw, <const uint8_t*> edit, len(edit))
        self.output.write(BLOCK_EDIT, CODEC_LZ4, &edit_offset, &edit_size)
        put_u64(footer, top_offset)
        put_u64(footer, properties_offset)
        put_u64(footer, edit_offset)
        put_u32(footer, top_size)
        put_u32(footer, properties_size)
        put_u32(footer, edit_size)
        put_u32(footer, FORMAT_VERSION)
        put_u64(footer, self.uid)
        put_u64(footer, self.base_sequence)
        put_u64(footer, self.output.place() + FOOTER_BYTES)
        checksum = xxh3(footer.data, footer.size)
        put_u64(footer, checksum)
        put_bytes(footer, <const uint8_t*> MAGIC, 8)
        self.output.write_end()
        if sync:
            self.output.file.sync()
        self.output.file.close()
        self.finished = True
        return checksum

    @property
    def size(self) -> int:
        """Bytes of the file so far, including those still to be written."""
        return self.output.place()

    @property
    def top_bytes(self) -> int:
        """Bytes of the top index so far, which an open table holds."""
        return <int64_t> self.top.size

    @property
    def path(self) -> str:
        return self.output.file.path


cdef inline void widen(
    ZoneColumns columns, const uint8_t* row, size_t size, Zone* zones
) noexcept nogil:
    """Take a row into the zones of its block."""
    cdef Py_ssize_t c
    cdef uint64_t word = 0
    for c in range(columns.count):
        if zone_word(&columns.columns[c], row, size, &word):
            zones[c].least = min(zones[c].least, word)
            zones[c].greatest = max(zones[c].greatest, word)
