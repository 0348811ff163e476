from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from cython_ext.arena cimport Arena
from cython_ext.entries cimport EntrySource, RowRef
from cython_ext.key_codec cimport KeyBatch
from cython_ext.key_ranges cimport KeyRanges
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

cdef struct Link:
    Node* node
    uint64_t prefix        # of that node, so that most comparisons need not visit it

cdef struct Node:
    Chunk* first
    Chunk* last
    uint64_t row_bytes
    uint32_t rows
    uint32_t key_size
    uint8_t* key
    uint8_t height
    uint8_t flags
    Link next[1]           # `height` of them

cdef struct StreamList:    # the skip list of one stream
    Node* head             # of height MAX_HEIGHT, without a key; NULL: nothing was stored yet
    int height             # levels in use


cdef class Memtable:
    cdef Arena arena
    cdef int64_t _limit_bytes
    cdef StreamList* lists         # by stream number
    cdef readonly uint32_t list_count
    cdef uint64_t random
    cdef readonly uint64_t keys
    cdef readonly uint64_t rows
    cdef readonly uint64_t row_bytes
    cdef readonly uint64_t first_sequence
    cdef readonly uint64_t last_sequence
    cdef readonly KeyRanges deleted    # of everything older than this table
    cdef bint _written
    cdef int users                 # see retain
    cdef StreamList* _list_for_writing(self, uint32_t stream) except? NULL
    cdef bint _full(self, size_t size) noexcept nogil
    cdef Node* _make(self, const uint8_t* key, size_t size, int height) noexcept nogil
    cdef int _random_height(self) noexcept nogil
    cdef Node* _place(
        self, StreamList* stream_list, Node** path, const uint8_t* key, size_t size
    ) noexcept nogil
    cdef uint8_t* _row_space(self, Node* node, size_t size) noexcept nogil

# The list of a stream, NULL if nothing of it is stored.
cdef StreamList* list_of(Memtable memtable, uint32_t stream) noexcept nogil
# Put the finger at the start of a list.
cdef void start_path(const StreamList* stream_list, Node** path) noexcept nogil
# The first node whose key is not less, or NULL; `path` is a finger kept over ascending keys.
cdef Node* find_node(
    const StreamList* stream_list, Node** path, const uint8_t* key, size_t size
) noexcept nogil


cdef class MemtableSource(EntrySource):
    cdef Memtable memtable
    cdef uint32_t stream           # whose list is being read
    cdef Node* node
    cdef Node* following
    cdef Chunk* chunk
    cdef uint32_t place
    cdef void _enter(self, uint32_t stream) noexcept nogil
    cdef void _step(self) noexcept nogil
