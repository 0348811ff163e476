"""Ordered multimap in memory: a skip list per stream, a node per key, chunks of rows at it.

Keys of a batch come sorted, so the list is walked once per batch, with a finger and some keys at a
time (skiplist.pyx). Rows are appended to the node's last chunk; chunks double up to 32 KiB. Nothing
is ever moved, so pointers to rows hold until clear().
Heights come from a generator with a fixed seed: the same appends make the same table.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from cython_ext.arena cimport Arena
from cython_ext.budget cimport MEMTABLE, Budget
from cython_ext.entries cimport FLAG_RESET, EntrySource, RowRef
from cython_ext.key_codec cimport KeyBatch
from cython_ext.key_ranges cimport KeyRanges
from cython_ext.row_codec cimport RowBatch
from cython_ext.skiplist cimport (
    GROUP, MAX_HEIGHT, Chunk, Finger, Node, Search, StreamList, check_levels, find_group,
    find_node, found_node, head_bytes, head_key_size, insert_node, key_of, node_at, settle_finger,
    start_finger, start_path,
)

cdef extern from *:
    void __builtin_prefetch(const void*) nogil

cdef enum:
    AHEAD = 6  # rows whose memory is asked for before they are copied

cdef uint32_t CHUNK_BYTES = 32 * 1024
cdef int64_t SLAB_BYTES = 2 * 1024 * 1024  # a huge page


cdef StreamList* list_of(Memtable memtable, uint32_t stream) noexcept nogil:
    if stream >= memtable.list_count or memtable.lists[stream].head == NULL:
        return NULL
    return &memtable.lists[stream]


@cython.final
cdef class Memtable:
    """Takes sorted batches until `limit_bytes` of slabs are in use."""

    def __cinit__(self, Budget budget not None, int64_t limit_bytes):
        self.arena = Arena(budget, MEMTABLE, SLAB_BYTES)
        self.limit_bytes = limit_bytes
        self.lists = NULL
        self.list_count = 0
        self._written = False
        self.random = <uint64_t> 0x2545F4914F6CDD1D
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
        free(self.lists)

    def __len__(self) -> int:
        return self.keys + self.deleted.count

    @property
    def nbytes(self) -> int:
        """Bytes of slabs held."""
        return self.arena.held_bytes

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab; what is larger than what is left of one gets a slab of its own."""
        return self.arena.slab_bytes

    @property
    def limit_bytes(self) -> int:
        """Of slabs; a table that is being filled may get more room."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, int64_t value):
        self._limit_bytes = value
        self.arena.slab_bytes = min(SLAB_BYTES, max(value // 4, 4096))

    def append(
        self, KeyBatch keys not None, RowBatch rows not None, uint64_t sequence, Py_ssize_t start
    ) -> int:
        """Insert the valid rows from place `start` of the key order on; returns the place
        reached, less than n_valid if the table is full. Pass the result as `start` to the next."""
        if keys.n != rows.n:
            raise ValueError(f"{keys.n} keys for {rows.n} rows")
        return self._write(keys, rows, True, sequence, start)

    def delete(self, KeyBatch keys not None, uint64_t sequence, Py_ssize_t start) -> int:
        """Forget the rows of the keys and mark that older ones are deleted; else as append."""
        return self._write(keys, None, False, sequence, start)

    cdef Py_ssize_t _write(
        self, KeyBatch keys, RowBatch rows, bint appending, uint64_t sequence, Py_ssize_t place
    ) except -1:
        """Append rows, or delete keys; the place reached."""
        cdef Search searches[GROUP]
        cdef Py_ssize_t ends[GROUP]
        cdef Finger finger
        cdef Node* node
        cdef StreamList* stream_list
        cdef int i, count
        if place >= keys.n_valid:
            return place
        stream_list = self._list_for_writing(keys)
        if stream_list == NULL:
            return place
        self._note(sequence)
        with nogil:
            start_finger(stream_list, &finger)
            while place < keys.n_valid:
                count = _gather(keys, place, searches, ends)
                find_group(stream_list, &finger, searches, count)
                _prefetch_chunks(searches, count)
                for i in range(count):
                    node = self._place(stream_list, &finger, &searches[i])
                    if node == NULL:
                        return place
                    if appending:
                        place = self._add_rows(node, keys, rows, sequence, place, ends[i])
                        if place < ends[i]:
                            return place
                    else:
                        self._forget_rows(node)
                        node.flags |= FLAG_RESET
                        place = ends[i]
                settle_finger(stream_list, &finger, &searches[count - 1])
        return place

    cdef Py_ssize_t _add_rows(
        self, Node* node, KeyBatch keys, RowBatch rows, uint64_t sequence, Py_ssize_t place,
        Py_ssize_t end,
    ) noexcept nogil:
        """The rows of one key; the place reached."""
        cdef size_t position, size
        cdef uint8_t* space
        cdef RowHead head
        head.sequence = sequence
        while place < end:
            position = keys.order[place]
            size = rows.offsets[position + 1] - rows.offsets[position]
            if place + AHEAD < keys.n_valid:
                _prefetch_row(rows, keys.order[place + AHEAD])
            space = self._row_space(node, size)
            if space == NULL:
                break
            head.size = <uint32_t> size
            head.ordinal = <uint32_t> position
            memcpy(space, &head, sizeof(RowHead))
            memcpy(space + sizeof(RowHead), rows.data + rows.offsets[position], size)
            node.rows += 1
            node.row_bytes += size
            self.rows += 1
            self.row_bytes += size
            place += 1
        return place

    cdef void _forget_rows(self, Node* node) noexcept nogil:
        self.rows -= node.rows
        self.row_bytes -= node.row_bytes
        node.rows = 0
        node.row_bytes = 0
        node.first = NULL
        node.last = NULL

    def _note(self, uint64_t sequence) -> None:
        if not self._written:
            self.first_sequence = sequence
            self._written = True
        self.last_sequence = sequence

    cdef StreamList* _list_for_writing(self, KeyBatch keys) except? NULL:
        """The list of a batch's stream, made if need be; NULL without an exception if there is no
        room. The batch has a valid key."""
        cdef StreamList* lists
        cdef uint32_t i, stream
        cdef size_t least = keys.order[0], greatest = keys.order[keys.n_valid - 1]
        cdef const uint8_t* key = keys.data + keys.offsets[least]
        stream = (<uint32_t> key[0] << 8) | key[1]
        if stream >= self.list_count:
            lists = <StreamList*> realloc(self.lists, (stream + 1) * sizeof(StreamList))
            if lists == NULL:
                raise MemoryError(f"no memory for {stream + 1} streams")
            for i in range(self.list_count, stream + 1):
                lists[i].head = NULL
                lists[i].height = 1
            self.lists = lists
            self.list_count = stream + 1
        if self.lists[stream].head == NULL:
            self.lists[stream].head = self._make(key, head_key_size(
                key, keys.offsets[least + 1] - keys.offsets[least],
                keys.data + keys.offsets[greatest],
                keys.offsets[greatest + 1] - keys.offsets[greatest],
            ), MAX_HEIGHT)
        return &self.lists[stream] if self.lists[stream].head != NULL else NULL

    cdef bint _full(self, size_t size) noexcept nogil:
        """Whether room for `size` more bytes would pass the limit: a slab at least, unless there is
        some left. A table without rows takes any one."""
        if <size_t> (self.arena.free_end - self.arena.free_start) >= size or (
            self.rows == 0 and self.keys <= 1
        ):
            return False
        return self.arena.held_bytes + max(<int64_t> size, self.arena.slab_bytes) > self._limit_bytes

    cdef Node* _make(self, const uint8_t* key, size_t size, int height) noexcept nogil:
        cdef Node* node
        cdef int level
        if self._full(head_bytes(height) + size):
            return NULL
        node = <Node*> self.arena.allocate(head_bytes(height) + size)
        if node == NULL:
            return NULL
        node.first = NULL
        node.last = NULL
        node.row_bytes = 0
        node.rows = 0
        node.flags = 0
        node.height = <uint8_t> height
        node.key_size = <uint32_t> size
        if size:
            memcpy(key_of(node), key, size)
        for level in range(height):
            node.next[level].node = NULL
        return node

    cdef int _random_height(self) noexcept nogil:
        cdef int height = 1
        self.random ^= self.random << 13
        self.random ^= self.random >> 7
        self.random ^= self.random << 17
        cdef uint64_t bits = self.random
        while height < MAX_HEIGHT and (bits & 3) == 0:
            height += 1
            bits >>= 2
        return height

    cdef Node* _place(
        self, StreamList* stream_list, Finger* finger, const Search* search
    ) noexcept nogil:
        """The node of the key, made if need be; NULL if there is no room."""
        cdef Node* node = node_at(finger, search)
        if node == NULL:
            node = self._make(search.key, search.size, self._random_height())
            if node != NULL:
                insert_node(stream_list, finger, search, node)
                self.keys += 1
        return node

    cdef uint8_t* _row_space(self, Node* node, size_t size) noexcept nogil:
        cdef size_t wanted = (sizeof(RowHead) + size + 7) & ~(<size_t> 7)
        cdef size_t capacity
        cdef Chunk* chunk = node.last
        if chunk == NULL or chunk.capacity - chunk.used < wanted:
            capacity = wanted
            if chunk != NULL:
                # As much as before; most keys that have a second row have no third one.
                capacity = chunk.capacity
                if chunk != node.first:
                    capacity *= 2
                if capacity > CHUNK_BYTES:
                    capacity = CHUNK_BYTES
                if capacity < wanted:
                    capacity = wanted
            if capacity > <size_t> 0xFFFFFF00 or self._full(sizeof(Chunk) + capacity):
                return NULL
            chunk = <Chunk*> self.arena.allocate(sizeof(Chunk) + capacity)
            if chunk == NULL:
                return NULL
            chunk.next = NULL
            chunk.used = 0
            chunk.capacity = <uint32_t> capacity
            if node.last == NULL:
                node.first = chunk
            else:
                node.last.next = chunk
            node.last = chunk
        cdef uint8_t* space = <uint8_t*> chunk + sizeof(Chunk) + chunk.used
        chunk.used += <uint32_t> wanted
        return space

    def source(self) -> MemtableSource:
        """An iterator over all entries; the table must not be written to meanwhile."""
        return MemtableSource(self)

    def retain(self) -> None:
        """One more user, who will call release; whoever made the table is the first."""
        self.users += 1

    def release(self) -> None:
        """One user less; the last one clears the table. A table that is garbage is cleared too."""
        if self.users <= 0:
            raise ValueError("a memtable was released more often than retained")
        self.users -= 1
        if self.users == 0:
            self.clear()

    def clear(self) -> None:
        """Give all memory back; iterators and probes of it are invalid from now on."""
        self.arena.clear()
        free(self.lists)
        self.lists = NULL
        self.list_count = 0
        self._written = False
        self.keys = self.rows = self.row_bytes = 0
        self.deleted = KeyRanges()

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds; walks everything."""
        cdef uint32_t stream
        cdef uint64_t keys = 0, rows = 0
        cdef Node* node
        for stream in range(self.list_count):
            if self.lists[stream].head == NULL:
                continue
            check_levels(&self.lists[stream])
            node = self.lists[stream].head.next[0].node
            while node != NULL:
                keys += 1
                rows += node.rows
                node = node.next[0].node
        if keys != self.keys or rows != self.rows:
            raise AssertionError(f"{keys} keys and {rows} rows, counted {self.keys}, {self.rows}")


cdef int _gather(
    KeyBatch keys, Py_ssize_t place, Search* searches, Py_ssize_t* ends
) noexcept nogil:
    """The next distinct keys, up to GROUP of them; the places of each reach up to its end."""
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
    """Of the keys that are there already."""
    cdef int i
    cdef Node* node
    for i in range(count):
        node = found_node(&searches[i])
        if node != NULL:
            __builtin_prefetch(node.last)


cdef inline void _prefetch_row(RowBatch rows, size_t position) noexcept nogil:
    """Rows are taken in the order of their keys, which is none to the memory they lie in."""
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
        """Stand before the first key of the first stream from this one on that has any."""
        self.node = NULL
        self.following = NULL
        self.stream = stream
        while self.following == NULL and self.stream < self.memtable.list_count:
            if self.memtable.lists[self.stream].head != NULL:
                self.following = self.memtable.lists[self.stream].head.next[0].node
            if self.following == NULL:
                self.stream += 1

    cdef int next_key(self) except -1 nogil:
        self.node = self.following
        if self.node == NULL:
            return 0
        self._step()
        self.key = key_of(self.node)
        self.key_size = self.node.key_size
        self.flags = self.node.flags
        self.rows = self.node.rows
        self.row_bytes = self.node.row_bytes
        self.chunk = self.node.first
        self.place = 0
        return 1

    cdef void _step(self) noexcept nogil:
        """Find the entry that follows the current one, maybe in the next stream."""
        cdef Node* current = self.node
        self.following = current.next[0].node
        if self.following == NULL:
            self._enter(self.stream + 1)
            self.node = current

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
        cdef Node* path[MAX_HEIGHT]
        cdef StreamList* stream_list
        cdef uint32_t stream
        if size < 2:
            self._enter(0)
            return 0
        stream = (<uint32_t> key[0] << 8) | key[1]
        stream_list = list_of(self.memtable, stream)
        if stream_list != NULL:
            start_path(stream_list, path)
            self.following = find_node(stream_list, path, key, size)
            self.stream = stream
        if stream_list == NULL or self.following == NULL:
            self._enter(stream + (stream_list != NULL))
        self.node = NULL
        return 0
