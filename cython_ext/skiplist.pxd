from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    MAX_HEIGHT = 16
    GROUP = 16             # keys that are searched for at a time

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
    uint8_t height
    uint8_t flags
    Link next[1]           # `height` of them; the key follows, see key_of

cdef struct StreamList:    # the skip list of one stream
    # Of height MAX_HEIGHT; NULL: nothing was stored yet. Its key is what the keys of the first
    # batch begin with, the stream's number at least; prefixes are taken behind it.
    Node* head
    int height             # levels in use

cdef struct Search:        # the way to a key
    const uint8_t* key     # given, with its size
    size_t size
    uint64_t prefix
    Node* node             # the last one passed, on this level
    Node* awaited          # its memory was asked for, to compare its key
    int level
    int top                # level it began on; on higher ones the finger stands right
    Node* path[MAX_HEIGHT]  # found: on each of these levels the last node less than the key

cdef struct Finger:        # how far ascending insertions have come
    Node* searched[MAX_HEIGHT]  # what a search found on this level
    Node* reached[MAX_HEIGHT]   # the last node less than the next key: that, or one put in since


cdef inline uint8_t* key_of(const Node* node) noexcept nogil:
    return <uint8_t*> &node.next[node.height]

# Of a node of that height, without its key.
cdef size_t head_bytes(int height) noexcept nogil
# Put the finger at the start of a list.
cdef void start_path(const StreamList* stream_list, Node** path) noexcept nogil
# The first node whose key is not less, or NULL; `path` is a finger kept over ascending keys.
cdef Node* find_node(
    const StreamList* stream_list, Node** path, const uint8_t* key, size_t size
) noexcept nogil
# How much of both keys, the least and the greatest of a batch, the head of a new list takes over.
cdef size_t head_key_size(
    const uint8_t* least, size_t least_size, const uint8_t* greatest, size_t greatest_size
) noexcept nogil
# Find up to GROUP ascending keys at once; the finger stands before the least of them.
cdef void find_group(
    const StreamList* stream_list, const Finger* finger, Search* searches, int count
) noexcept nogil
# The node that a search found, NULL if its key is not there; nothing was put in since.
cdef Node* found_node(const Search* search) noexcept nogil
# Put the finger at the start of a list.
cdef void start_finger(const StreamList* stream_list, Finger* finger) noexcept nogil
# The node of a key that was searched for, NULL if there is none; the keys before it are put in.
cdef Node* node_at(Finger* finger, const Search* search) noexcept nogil
# Put a node in where node_at has just found none.
cdef void insert_node(
    StreamList* stream_list, Finger* finger, const Search* search, Node* node
) noexcept nogil
# Go on from where the last search of a group ended: all of its keys are in.
cdef void settle_finger(
    const StreamList* stream_list, Finger* finger, const Search* search
) noexcept nogil
# AssertionError unless every invariant of the list holds; walks all of it.
cdef int check_levels(const StreamList* stream_list) except -1
