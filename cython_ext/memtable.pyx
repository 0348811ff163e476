"""Ordered multimap in memory: a skip list with one node per key, chunks of rows hanging from it.

Keys of a batch come sorted, so the list is walked once per batch with a finger: the path to the
last key is the start of the search for the next. Rows are appended to the node's last chunk;
chunks double up to 32 KiB. Nothing is ever moved, so pointers to rows hold until clear().
Heights come from a generator with a fixed seed: the same appends make the same table.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cython_ext.arena cimport Arena
from cython_ext.budget cimport MEMTABLE, Budget
from cython_ext.coding cimport compare
from cython_ext.entries cimport FLAG_RESET, EntrySource, RowRef
from cython_ext.key_codec cimport KeyBatch
from cython_ext.row_codec cimport RowBatch

cdef uint32_t CHUNK_BYTES = 32 * 1024
cdef int64_t SLAB_BYTES = 256 * 1024


cdef inline uint64_t _prefix(const uint8_t* key, size_t size) noexcept nogil:
    cdef uint64_t prefix = 0
    cdef size_t i, end = size if size < 10 else 10
    for i in range(2, end):
        prefix |= (<uint64_t> key[i]) << (56 - 8 * (i - 2))
    return prefix


cdef inline uint16_t _stream(const uint8_t* key) noexcept nogil:
    return <uint16_t> ((key[0] << 8) | key[1])


cdef inline int _order(
    const Node* node, uint16_t stream, uint64_t prefix, const uint8_t* key, size_t size
) noexcept nogil:
    """Sign of node's key against the key; the common cases never leave the node."""
    if node.stream != stream:
        return -1 if node.stream < stream else 1
    if node.prefix != prefix:
        return -1 if node.prefix < prefix else 1
    if node.key_size <= 10 and size <= 10:
        return (node.key_size > size) - (node.key_size < size)
    return compare(node.key, node.key_size, key, size)


cdef class Memtable:
    """Takes sorted batches until `limit_bytes` of slabs are in use."""

    def __cinit__(self, Budget budget not None, int64_t limit_bytes):
        self.arena = Arena(budget, MEMTABLE, min(SLAB_BYTES, max(limit_bytes // 8, 4096)))
        self.limit_bytes = limit_bytes
        self.head = NULL
        self.height = 1
        self.random = <uint64_t> 0x2545F4914F6CDD1D
        self.keys = 0
        self.rows = 0
        self.row_bytes = 0
        self.first_sequence = 0
        self.last_sequence = 0

    def __init__(self, Budget budget not None, int64_t limit_bytes):
        if limit_bytes < 4096:
            raise ValueError(f"a memtable of {limit_bytes} bytes; give at least 4096")

    def __len__(self) -> int:
        return self.keys

    @property
    def nbytes(self) -> int:
        """Bytes of slabs held."""
        return self.arena.held_bytes

    def append(
        self, KeyBatch keys not None, RowBatch rows not None, uint64_t sequence, Py_ssize_t start
    ) -> int:
        """Insert the valid rows from place `start` of the key order on; returns the place
        reached, less than n_valid if the table is full. Pass the result as `start` to the next."""
        cdef Py_ssize_t place = start
        cdef size_t position, size
        cdef uint8_t* key
        cdef uint8_t* space
        cdef RowHead head
        cdef Node* path[MAX_HEIGHT]
        cdef Node* node = NULL
        if keys.n != rows.n:
            raise ValueError(f"{keys.n} keys for {rows.n} rows")
        with nogil:
            if self._start_writing(path, sequence) == 0:
                while place < keys.n_valid:
                    position = keys.order[place]
                    key = keys.data + keys.offsets[position]
                    node = self._place(path, key, keys.offsets[position + 1] - keys.offsets[position])
                    if node == NULL:
                        break
                    size = rows.offsets[position + 1] - rows.offsets[position]
                    space = self._row_space(node, size)
                    if space == NULL:
                        break
                    head.size = <uint32_t> size
                    head.ordinal = <uint32_t> position
                    head.sequence = sequence
                    memcpy(space, &head, sizeof(RowHead))
                    memcpy(space + sizeof(RowHead), rows.data + rows.offsets[position], size)
                    node.rows += 1
                    node.row_bytes += size
                    self.rows += 1
                    self.row_bytes += size
                    place += 1
        return place

    def delete(self, KeyBatch keys not None, uint64_t sequence, Py_ssize_t start) -> int:
        """Forget the rows of the keys and mark that older ones are deleted; else as append."""
        cdef Py_ssize_t place = start
        cdef size_t position
        cdef Node* path[MAX_HEIGHT]
        cdef Node* node
        with nogil:
            if self._start_writing(path, sequence) == 0:
                while place < keys.n_valid:
                    position = keys.order[place]
                    node = self._place(
                        path, keys.data + keys.offsets[position],
                        keys.offsets[position + 1] - keys.offsets[position],
                    )
                    if node == NULL:
                        break
                    self.rows -= node.rows
                    self.row_bytes -= node.row_bytes
                    node.rows = 0
                    node.row_bytes = 0
                    node.first = NULL
                    node.last = NULL
                    node.flags |= FLAG_RESET
                    place += 1
        return place

    cdef int _start_writing(self, Node** path, uint64_t sequence) noexcept nogil:
        cdef int level
        if self.head == NULL:
            self.head = self._make(NULL, 0, MAX_HEIGHT)
            if self.head == NULL:
                return -1
            self.first_sequence = sequence
        self.last_sequence = sequence
        self.start(path)
        return 0

    cdef void start(self, Node** path) noexcept nogil:
        cdef int level
        for level in range(MAX_HEIGHT):
            path[level] = self.head

    cdef bint _full(self, size_t size) noexcept nogil:
        """Whether `size` more bytes would pass the limit; a table without rows takes any one."""
        if <size_t> (self.arena.free_end - self.arena.free_start) >= size or (
            self.rows == 0 and self.keys <= 1
        ):
            return False
        return self.arena.held_bytes + <int64_t> size > self.limit_bytes

    cdef Node* _make(self, const uint8_t* key, size_t size, int height) noexcept nogil:
        cdef size_t head = sizeof(Node) + (height - 1) * sizeof(Node*)
        cdef Node* node
        cdef int level
        if self._full(head + size):
            return NULL
        node = <Node*> self.arena.allocate(head + size)
        if node == NULL:
            return NULL
        node.first = NULL
        node.last = NULL
        node.row_bytes = 0
        node.rows = 0
        node.flags = 0
        node.height = <uint8_t> height
        node.key_size = <uint32_t> size
        node.key = <uint8_t*> node + head
        node.stream = 0
        node.prefix = 0
        if size:
            memcpy(node.key, key, size)
            node.stream = _stream(key)
            node.prefix = _prefix(key, size)
        for level in range(height):
            node.next[level] = NULL
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

    cdef Node* find(self, Node** path, const uint8_t* key, size_t size) noexcept nogil:
        """Invariant: path[level] is the last node of its level known to be less than the key, so
        for ascending keys the search climbs only as high as the distance demands."""
        cdef uint16_t stream = _stream(key)
        cdef uint64_t prefix = _prefix(key, size)
        cdef int level = 0
        cdef Node* node
        cdef Node* following
        if self.head == NULL:
            return NULL
        while level + 1 < self.height:
            following = path[level].next[level]
            if following == NULL or _order(following, stream, prefix, key, size) >= 0:
                break
            level += 1
        node = path[level]
        while level >= 0:
            # The node reached above may lie before the finger of this level, never after it
            # where the climb did not pass this level; take whichever is further.
            if path[level] != self.head and (
                node == self.head
                or _order(node, path[level].stream, path[level].prefix,
                          path[level].key, path[level].key_size) < 0
            ):
                node = path[level]
            following = node.next[level]
            while following != NULL and _order(following, stream, prefix, key, size) < 0:
                node = following
                following = node.next[level]
            path[level] = node
            level -= 1
        return path[0].next[0]

    cdef Node* _place(self, Node** path, const uint8_t* key, size_t size) noexcept nogil:
        """The node of the key, made if need be; NULL if there is no room."""
        cdef Node* node = self.find(path, key, size)
        cdef int height, level
        if node != NULL and _order(node, _stream(key), _prefix(key, size), key, size) == 0:
            return node
        height = self._random_height()
        node = self._make(key, size, height)
        if node == NULL:
            return NULL
        if height > self.height:
            self.height = height
        for level in range(height):
            if level > 0:
                self._advance(path, level, node)
            node.next[level] = path[level].next[level]
            path[level].next[level] = node
        self.keys += 1
        return node

    cdef void _advance(self, Node** path, int level, Node* node) noexcept nogil:
        """Bring the finger of one level up to the node: a search that ended low left it behind."""
        cdef Node* following = path[level].next[level]
        while following != NULL and _order(
            following, node.stream, node.prefix, node.key, node.key_size
        ) < 0:
            path[level] = following
            following = following.next[level]

    cdef uint8_t* _row_space(self, Node* node, size_t size) noexcept nogil:
        cdef size_t wanted = (sizeof(RowHead) + size + 7) & ~(<size_t> 7)
        cdef size_t capacity
        cdef Chunk* chunk = node.last
        if chunk == NULL or chunk.capacity - chunk.used < wanted:
            capacity = wanted
            if chunk != NULL:
                capacity = 2 * <size_t> chunk.capacity
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

    def clear(self) -> None:
        """Give all memory back; iterators and probes of it are invalid from now on."""
        self.arena.clear()
        self.head = NULL
        self.height = 1
        self.keys = 0
        self.rows = 0
        self.row_bytes = 0

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds; walks everything."""
        cdef Node* node
        cdef Node* following
        cdef int level
        cdef uint64_t keys = 0, rows = 0
        if self.head == NULL:
            return
        for level in range(self.height):
            node = self.head.next[level]
            while node != NULL:
                following = node.next[level]
                if level == 0:
                    keys += 1
                    rows += node.rows
                if node.height <= level:
                    raise AssertionError(f"a node of height {node.height} on level {level}")
                if following != NULL and compare(
                    node.key, node.key_size, following.key, following.key_size
                ) >= 0:
                    raise AssertionError("keys out of order")
                node = following
        if keys != self.keys or rows != self.rows:
            raise AssertionError(f"{keys} keys and {rows} rows, counted {self.keys}, {self.rows}")


cdef class MemtableSource(EntrySource):
    """Entries of a memtable in key order."""

    def __init__(self, Memtable memtable not None):
        self.memtable = memtable
        self.node = NULL
        self.following = memtable.head.next[0] if memtable.head != NULL else NULL

    cdef int next_key(self) except -1 nogil:
        self.node = self.following
        if self.node == NULL:
            return 0
        self.following = self.node.next[0]
        self.key = self.node.key
        self.key_size = self.node.key_size
        self.flags = self.node.flags
        self.rows = self.node.rows
        self.row_bytes = self.node.row_bytes
        self.chunk = self.node.first
        self.place = 0
        return 1

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
        if self.memtable.head == NULL:
            self.following = NULL
        elif size < 2:
            self.following = self.memtable.head.next[0]
        else:
            self.memtable.start(path)
            self.following = self.memtable.find(path, key, size)
        self.node = NULL
        return 0
