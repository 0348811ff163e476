from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    GROUP = 16             # keys that are searched for at a time
    PAGE_ITEMS = 32
    MOST_LEVELS = 16       # of pages that are at least a quarter full: more than memory holds

cdef struct Chunk:
    Chunk* next
    uint32_t used
    uint32_t capacity
    # rows follow: RowHead and bytes, each padded to 8

cdef struct Entry:         # a key and its rows; never moved
    Chunk* first
    Chunk* last
    uint64_t row_bytes
    uint32_t rows
    uint32_t key_size
    uint8_t flags
    # the key follows, see key_of

cdef struct Page:
    uint32_t count
    uint32_t skip          # bytes that all keys between the bounds begin with
    # Bounds of the keys that belong here: from `low` on, below `high`; NULL: there is none. As a
    # page splits, what is above goes to a new one: its `low` stays.
    const Entry* low
    const Entry* high
    Page* next             # of leaves
    Page* previous
    # Of the items' keys, behind `skip` bytes, big-endian and zero-padded; ascending.
    uint64_t prefixes[PAGE_ITEMS]
    void* items[PAGE_ITEMS]  # of a leaf: Entry*; of an inner page: Page*, whose key is its `low`

cdef struct Tree:          # of one stream; NULL everywhere: nothing was stored yet
    Page* root
    Page* first            # leaf
    Page* last             # leaf
    int height             # levels of pages; 1: the root is a leaf

cdef struct Search:        # a key that is searched for
    const uint8_t* key     # given, with its size
    size_t size
    uint64_t prefix
    Page* leaf             # where it is or would be
    uint32_t place         # items of the leaf that have smaller prefixes
    Entry* entry           # NULL: the key is not there

cdef struct Place:         # of an entry in the order of keys
    Page* leaf             # NULL: behind the last entry, or before the first one
    uint32_t at


cdef inline uint8_t* key_of(const Entry* entry) noexcept nogil:
    return <uint8_t*> entry + sizeof(Entry)


cdef inline Entry* entry_at(const Place* place) noexcept nogil:
    """NULL: there is none."""
    return <Entry*> place.leaf.items[place.at] if place.leaf != NULL else NULL


cdef inline void go_on(Place* place) noexcept nogil:
    place.at += 1
    if place.at >= place.leaf.count:
        place.leaf = place.leaf.next
        place.at = 0


cdef inline void go_back(Place* place) noexcept nogil:
    if place.at:
        place.at -= 1
        return
    place.leaf = place.leaf.previous
    if place.leaf != NULL:
        place.at = place.leaf.count - 1

# Begin a tree with an empty page.
cdef void start_tree(Tree* tree, Page* page) noexcept nogil
cdef void first_place(const Tree* tree, Place* place) noexcept nogil
cdef void last_place(const Tree* tree, Place* place) noexcept nogil
# The place of the first entry whose key is not less.
cdef void find_place(
    const Tree* tree, const uint8_t* key, size_t size, Place* place
) noexcept nogil
# Find up to GROUP ascending keys at once. `finger`: where the last search of the group before ended,
# whose keys are not greater; NULL at first.
cdef void find_group(
    const Tree* tree, Page** finger, Search* searches, int count
) noexcept nogil
# How many pages it takes to put a key in that was not found: none but where its leaf is full.
cdef int pages_to_put(const Tree* tree, const Search* search) noexcept nogil
# Put an entry in for the first of some searches of a group, with so many pages as pages_to_put says;
# the searches behind it are told what moved.
cdef void put_entry(
    Tree* tree, Search* searches, int count, Entry* entry, Page** pages
) noexcept nogil
# AssertionError unless every invariant of the tree holds; walks all of it. The number of entries.
cdef uint64_t check_tree(const Tree* tree) except? 0xFFFFFFFF
