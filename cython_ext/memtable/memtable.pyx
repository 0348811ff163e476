"""Memtable: an ordered multimap in memory, with a B+-tree per stream, an entry per key, and chunks
of rows.

The keys of a batch are sorted, so the tree is visited once per batch, with a finger and several
keys at a time (btree.pyx). Rows are appended to the entry's last chunk; chunks double up to 32 KiB.
Entries and rows never move, so pointers to them are valid until clear().
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from lsmstate.cython_ext.memory.arena cimport Arena
from lsmstate.cython_ext.memtable.btree cimport (
    GROUP, MOST_LEVELS, Chunk, Entry, Page, Place, Search, Tree, check_tree, entry_at, find_group,
    find_place, first_place, go_on, key_of, pages_to_put, put_entry, start_tree,
)
from lsmstate.cython_ext.memory.budget cimport MEMTABLE, Budget, Holding
from lsmstate.cython_ext.entries.entry_source cimport FLAG_RESET, EntrySource, RowRef
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges
from lsmstate.cython_ext.rows.row_codec cimport RowBatch

cdef extern from *:
    void __builtin_prefetch(const void*) nogil

cdef enum:
    AHEAD = 6  # rows whose memory is asked for before they are copied

cdef uint32_t CHUNK_BYTES = 32 * 1024
cdef int64_t SLAB_BYTES = 2 * 1024 * 1024  # a huge page


cdef Tree* tree_of(Memtable memtable, uint32_t stream) noexcept nogil:
    if stream >= memtable.tree_count or memtable.trees[stream].root == NULL:
        return NULL
    return &memtable.trees[stream]


def release_all(list tables not None) -> None:
    """Remove each from the list and release it. No interrupt can come between."""
    while tables:
        (<Memtable?> tables.pop()).release()


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Retained:
    """Memtables in use; released with the object at the latest."""

    cdef readonly list tables

    def __cinit__(self, tables):
        self.tables = []
        for table in tables:
            (<Memtable?> table).retain()
            self.tables.append(table)

    def __dealloc__(self):
        if self.tables is not None:
            release_all(self.tables)

    def release(self) -> None:
        """Release them. A second call does nothing."""
        release_all(self.tables)


cdef int _check_granted(Arena arena, Holding holding) except -1:
    if holding.budget is not arena.budget or holding.component != MEMTABLE:
        raise ValueError("what is granted is charged to memtables, in the memtable's own budget")
    return 0


@cython.final
cdef class Memtable:
    """Takes sorted batches until `limit_bytes` of slabs are in use."""

    def __cinit__(self, Budget budget not None, int64_t limit_bytes):
        self.arena = Arena(budget, MEMTABLE, SLAB_BYTES)
        self.limit_bytes = limit_bytes
        self.trees = NULL
        self.tree_count = 0
        self._written = self._resets = False
        self.keys = 0
        self.rows = 0
        self.row_bytes = 0
        self.first_sequence = 0
        self.last_sequence = 0
        self.users = 1
        self.deleted = KeyRanges()

    def __init__(self, Budget budget not None, int64_t limit_bytes):
        if limit_bytes < 4096:
            raise ValueError(f"a memtable of {limit_bytes} bytes; give at least 4096")

    def __dealloc__(self):
        free(self.trees)

    def __len__(self) -> int:
        return self.keys + self.deleted.count

    @property
    def deletes(self) -> bool:
        """Whether it deletes what older tables may have."""
        return self._resets or self.deleted.count > 0

    @property
    def nbytes(self) -> int:
        """Bytes of slabs held."""
        return self.arena.held_bytes

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab; an allocation that does not fit the rest of one gets a
        slab of its own."""
        return self.arena.slab_bytes

    @property
    def limit_bytes(self) -> int:
        """Limit of the slabs; it may be raised while the table is filled."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, int64_t value):
        self._limit_bytes = value
        self.arena.slab_bytes = min(SLAB_BYTES, max(value // 4, 4096))

    def grant(self, Holding holding not None) -> None:
        """Take over everything that is held. It serves for allocations larger than a slab, and if
        the budget has no room. ``clear`` returns the rest to the budget."""
        _check_granted(self.arena, holding)
        self.arena.granted_bytes += holding.nbytes
        holding.nbytes = 0

    def give_back(self, Holding holding not None) -> None:
        """Return the rest of what was granted to the holding."""
        _check_granted(self.arena, holding)
        holding.nbytes += self.arena.granted_bytes
        self.arena.granted_bytes = 0

    def append(
        self, KeyBatch keys not None, RowBatch rows not None, uint64_t sequence, Py_ssize_t start
    ) -> int:
        """Insert the valid rows from place `start` of the key order on; return the place reached.
        It is less than n_valid if the table is full: pass it as `start` to the next table."""
        if keys.n != rows.n:
            raise ValueError(f"{keys.n} keys for {rows.n} rows")
        return self._write(keys, rows, True, sequence, start)

    def delete(self, KeyBatch keys not None, uint64_t sequence, Py_ssize_t start) -> int:
        """Remove the rows of the keys and note that older ones are deleted; otherwise as append."""
        return self._write(keys, None, False, sequence, start)

    cdef Py_ssize_t _write(
        self, KeyBatch keys, RowBatch rows, bint appending, uint64_t sequence, Py_ssize_t place
    ) except -1:
        """Append rows, or delete keys; return the place reached."""
        cdef Search searches[GROUP]
        cdef Py_ssize_t ends[GROUP]
        cdef Page* finger = NULL
        cdef Entry* entry
        cdef Tree* tree
        cdef int i, count
        if place >= keys.n_valid:
            return place
        tree = self._tree_for_writing(keys)
        if tree == NULL:
            return place
        self._note(sequence)
        self._resets |= not appending
        with nogil:
            while place < keys.n_valid:
                count = _gather(keys, place, searches, ends)
                find_group(tree, &finger, searches, count)
                _prefetch_chunks(searches, count)
                for i in range(count):
                    entry = searches[i].entry
                    if entry == NULL:
                        entry = self._put(tree, &searches[i], count - i)
                        if entry == NULL:
                            return place
                    if appending:
                        place = self._add_rows(entry, keys, rows, sequence, place, ends[i])
                        if place < ends[i]:
                            return place
                    else:
                        self._forget_rows(entry)
                        entry.flags |= FLAG_RESET
                        place = ends[i]
        return place

    cdef Py_ssize_t _add_rows(
        self, Entry* entry, KeyBatch keys, RowBatch rows, uint64_t sequence, Py_ssize_t place,
        Py_ssize_t end,
    ) noexcept nogil:
        """Add the rows of one key; return the place reached."""
        cdef size_t position, size
        cdef uint8_t* space
        cdef RowHead head
        head.sequence = sequence
        while place < end:
            position = keys.order[place]
            size = rows.offsets[position + 1] - rows.offsets[position]
            if place + AHEAD < keys.n_valid:
                _prefetch_row(rows, keys.order[place + AHEAD])
            space = self._row_space(entry, size)
            if space == NULL:
                break
            head.size = <uint32_t> size
            head.ordinal = <uint32_t> position
            memcpy(space, &head, sizeof(RowHead))
            memcpy(space + sizeof(RowHead), rows.data + rows.offsets[position], size)
            entry.rows += 1
            entry.row_bytes += size
            self.rows += 1
            self.row_bytes += size
            place += 1
        return place

    cdef void _forget_rows(self, Entry* entry) noexcept nogil:
        self.rows -= entry.rows
        self.row_bytes -= entry.row_bytes
        entry.rows = 0
        entry.row_bytes = 0
        entry.first = NULL
        entry.last = NULL

    def _note(self, uint64_t sequence) -> None:
        if not self._written:
            self.first_sequence = sequence
            self._written = True
        self.last_sequence = sequence

    cdef Tree* _tree_for_writing(self, KeyBatch keys) except? NULL:
        """Return the tree of a batch's stream, created if necessary; NULL without an exception if
        there is no room. The batch has a valid key."""
        cdef Tree* trees
        cdef Page* page
        cdef const uint8_t* key = keys.data + keys.offsets[keys.order[0]]
        cdef uint32_t stream = (<uint32_t> key[0] << 8) | key[1]
        if stream >= self.tree_count:
            trees = <Tree*> realloc(self.trees, (stream + 1) * sizeof(Tree))
            if trees == NULL:
                raise MemoryError(f"no memory for {stream + 1} streams")
            memset(&trees[self.tree_count], 0, (stream + 1 - self.tree_count) * sizeof(Tree))
            self.trees = trees
            self.tree_count = stream + 1
        if self.trees[stream].root == NULL:
            page = <Page*> self._allocate(sizeof(Page))
            if page == NULL:
                return NULL
            start_tree(&self.trees[stream], page)
        return &self.trees[stream]

    cdef bint _full(self, size_t size) noexcept nogil:
        """Test whether `size` more bytes would exceed the limit; they take at least a slab, unless
        some room is left. A table without rows accepts any one."""
        if <size_t> (self.arena.free_end - self.arena.free_start) >= size or (
            self.rows == 0 and self.keys <= 1
        ):
            return False
        return self.arena.held_bytes + max(<int64_t> size, self.arena.slab_bytes) > self._limit_bytes

    cdef void* _allocate(self, size_t size) noexcept nogil:
        """Allocate; NULL if there is no room."""
        return NULL if self._full(size) else self.arena.allocate(size)

    cdef Entry* _put(self, Tree* tree, Search* searches, int count) noexcept nogil:
        """Insert a new entry for the first of several searches; NULL if there is no room."""
        cdef Page* pages[MOST_LEVELS]
        cdef int i
        cdef Entry* entry = <Entry*> self._allocate(sizeof(Entry) + searches.size)
        if entry == NULL:
            return NULL
        for i in range(pages_to_put(tree, searches)):
            pages[i] = <Page*> self._allocate(sizeof(Page))
            if pages[i] == NULL:
                return NULL
        entry.first = NULL
        entry.last = NULL
        entry.row_bytes = 0
        entry.rows = 0
        entry.flags = 0
        entry.key_size = <uint32_t> searches.size
        memcpy(key_of(entry), searches.key, searches.size)
        put_entry(tree, searches, count, entry, pages)
        self.keys += 1
        return entry

    cdef uint8_t* _row_space(self, Entry* entry, size_t size) noexcept nogil:
        cdef size_t wanted = (sizeof(RowHead) + size + 7) & ~(<size_t> 7)
        cdef size_t capacity
        cdef Chunk* chunk = entry.last
        if chunk == NULL or chunk.capacity - chunk.used < wanted:
            capacity = wanted
            if chunk != NULL:
                # As much as before; most keys that have a second row have no third one.
                capacity = chunk.capacity
                if chunk != entry.first:
                    capacity *= 2
                if capacity > CHUNK_BYTES:
                    capacity = CHUNK_BYTES
                if capacity < wanted:
                    capacity = wanted
            if capacity > <size_t> 0xFFFFFF00:
                return NULL
            chunk = <Chunk*> self._allocate(sizeof(Chunk) + capacity)
            if chunk == NULL:
                return NULL
            chunk.next = NULL
            chunk.used = 0
            chunk.capacity = <uint32_t> capacity
            if entry.last == NULL:
                entry.first = chunk
            else:
                entry.last.next = chunk
            entry.last = chunk
        cdef uint8_t* space = <uint8_t*> chunk + sizeof(Chunk) + chunk.used
        chunk.used += <uint32_t> wanted
        return space

    def source(self) -> MemtableSource:
        """Return an iterator over all entries; the table must not be written to meanwhile."""
        return MemtableSource(self)

    def retain(self) -> None:
        """Add a user, who will call release; the creator is the first."""
        self.users += 1

    def release(self) -> None:
        """Remove a user; the last one clears the table. A garbage-collected table
        is cleared too."""
        if self.users <= 0:
            raise ValueError("a memtable was released more often than retained")
        self.users -= 1
        if self.users == 0:
            self.clear()

    def clear(self) -> None:
        """Release all memory; iterators and probes of it become invalid."""
        self.arena.clear()
        free(self.trees)
        self.trees = NULL
        self.tree_count = 0
        self._written = self._resets = False
        self.keys = self.rows = self.row_bytes = 0
        self.deleted = KeyRanges()

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds; everything is visited."""
        cdef uint32_t stream
        cdef uint64_t keys = 0, rows = 0
        cdef Place place
        for stream in range(self.tree_count):
            keys += check_tree(&self.trees[stream])
            first_place(&self.trees[stream], &place)
            while place.leaf != NULL:
                rows += entry_at(&place).rows
                go_on(&place)
        if keys != self.keys or rows != self.rows:
            raise AssertionError(f"{keys} keys and {rows} rows, counted {self.keys}, {self.rows}")


cdef int _gather(
    KeyBatch keys, Py_ssize_t place, Search* searches, Py_ssize_t* ends
) noexcept nogil:
    """Collect the next distinct keys, up to GROUP; the places of each reach up to its end."""
    cdef const uint8_t* key
    cdef size_t position, size
    cdef int count = 0
    while place < keys.n_valid:
        position = keys.order[place]
        key = keys.data + keys.offsets[position]
        size = keys.offsets[position + 1] - keys.offsets[position]
        if count == 0 or size != searches[count - 1].size or memcmp(
            key, searches[count - 1].key, size
        ):
            if count == GROUP:
                break
            searches[count].key = key
            searches[count].size = size
            count += 1
        place += 1
        ends[count - 1] = place
    return count


cdef inline void _prefetch_chunks(const Search* searches, int count) noexcept nogil:
    """Prefetch chunks of the keys that already exist."""
    cdef int i
    for i in range(count):
        if searches[i].entry != NULL:
            __builtin_prefetch(searches[i].entry.last)


cdef inline void _prefetch_row(RowBatch rows, size_t position) noexcept nogil:
    """Prefetch a row: rows are taken in key order, which is random in memory."""
    cdef const uint8_t* row = rows.data + rows.offsets[position]
    __builtin_prefetch(row)
    __builtin_prefetch(row + 64)


cdef class MemtableSource(EntrySource):
    """Entries of a memtable in key order."""

    def __init__(self, Memtable memtable not None):
        self.memtable = memtable
        self.deleted = memtable.deleted
        self._enter(0)

    cdef void _enter(self, uint32_t stream) noexcept nogil:
        """Seek to the first key of the first non-empty stream from this one on."""
        self.following.leaf = NULL
        self.stream = stream
        while self.stream < self.memtable.tree_count:
            first_place(&self.memtable.trees[self.stream], &self.following)
            if self.following.leaf != NULL:
                break
            self.stream += 1

    cdef int next_key(self) except -1 nogil:
        cdef Entry* entry = entry_at(&self.following)
        if entry == NULL:
            return 0
        self._step()
        self.key = key_of(entry)
        self.key_size = entry.key_size
        self.flags = entry.flags
        self.rows = entry.rows
        self.row_bytes = entry.row_bytes
        self.chunk = entry.first
        self.place = 0
        return 1

    cdef void _step(self) noexcept nogil:
        """Find the entry after the next one, perhaps in the next stream."""
        go_on(&self.following)
        if self.following.leaf == NULL:
            self._enter(self.stream + 1)

    cdef int next_row(self, RowRef* row) except -1 nogil:
        cdef RowHead* head
        while self.chunk != NULL and self.place >= self.chunk.used:
            self.chunk = self.chunk.next
            self.place = 0
        if self.chunk == NULL:
            return 0
        head = <RowHead*> (<uint8_t*> self.chunk + sizeof(Chunk) + self.place)
        row.data = <uint8_t*> head + sizeof(RowHead)
        row.size = head.size
        row.sequence = head.sequence
        row.ordinal = head.ordinal
        self.place += <uint32_t> ((sizeof(RowHead) + head.size + 7) & ~(<size_t> 7))
        return 1

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        cdef Tree* tree
        cdef uint32_t stream
        self.chunk = NULL
        if size < 2:
            self._enter(0)
            return 0
        stream = (<uint32_t> key[0] << 8) | key[1]
        tree = tree_of(self.memtable, stream)
        if tree == NULL:
            self._enter(stream)
            return 0
        self.stream = stream
        find_place(tree, key, size, &self.following)
        if self.following.leaf == NULL:
            self._enter(stream + 1)
        return 0
