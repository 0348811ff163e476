from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from cython_ext.arena cimport Arena
from cython_ext.entries cimport EntrySource, RowRef
from cython_ext.key_codec cimport KeyBatch
from cython_ext.row_codec cimport RowBatch

cdef enum:
    MAX_HEIGHT = 16

cdef struct RowHead:
    uint32_t size
    uint32_t ordinal
    uint64_t sequence

cdef struct Chunk:
    Chunk* next
    uint32_t used
    uint32_t capacity
    # rows follow: RowHead and bytes, each padded to 8

cdef struct Node:
    Chunk* first
    Chunk* last
    uint64_t row_bytes
    uint64_t prefix        # bytes 2..10 of the key, big-endian, zero-padded
    uint32_t rows
    uint32_t key_size
    uint16_t stream
    uint8_t height
    uint8_t flags
    uint8_t* key
    Node* next[1]          # `height` of them


cdef class Memtable:
    cdef Arena arena
    cdef int64_t limit_bytes
    cdef Node* head
    cdef int height
    cdef uint64_t random
    cdef readonly uint64_t keys
    cdef readonly uint64_t rows
    cdef readonly uint64_t row_bytes
    cdef readonly uint64_t first_sequence
    cdef readonly uint64_t last_sequence
    cdef int _start_writing(self, Node** path, uint64_t sequence) noexcept nogil
    cdef void _advance(self, Node** path, int level, Node* node) noexcept nogil
    cdef bint _full(self, size_t size) noexcept nogil
    cdef Node* _make(self, const uint8_t* key, size_t size, int height) noexcept nogil
    cdef int _random_height(self) noexcept nogil
    cdef Node* _place(self, Node** path, const uint8_t* key, size_t size) noexcept nogil
    cdef uint8_t* _row_space(self, Node* node, size_t size) noexcept nogil
    # The first node whose key is not less, or NULL; `path` is a finger kept over ascending keys.
    cdef Node* find(self, Node** path, const uint8_t* key, size_t size) noexcept nogil
    cdef void start(self, Node** path) noexcept nogil


cdef class MemtableSource(EntrySource):
    cdef Memtable memtable
    cdef Node* node
    cdef Node* following
    cdef Chunk* chunk
    cdef uint32_t place
