from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cython_ext.coding cimport Buffer

cdef enum:
    BLOCK_ROWS = 1
    BLOCK_KEYS = 2
    BLOCK_INDEX = 3
    BLOCK_FILTER = 4
    BLOCK_TOP = 5
    BLOCK_PROPERTIES = 6
    BLOCK_EDIT = 7
    TRAILER_BYTES = 16
    ROW_TAIL_BYTES = 12
    KEY_TAIL_BYTES = 24
    RESTART_ENTRIES = 8   # of a key block from one restart to the next, at most
    STACK_BYTES = 16384   # of scratch for a block that is read; larger ones take theirs from malloc
    SPARE_BYTES = STACK_BYTES   # of a block that is read past the cache
    STREAM_BYTES = 2            # of a stored key, in front; no key has less

# Append `raw` to `target` as a stored block: payload and trailer.
cdef int seal_block(
    Buffer* target, int kind, int codec, Buffer* raw, Buffer* scratch, uint64_t offset
) except -1 nogil
# The raw size if the stored block is whole, of this kind and can decode to so many bytes, else -1.
cdef long check_block(
    const uint8_t* stored, size_t size, uint64_t offset, int kind
) noexcept nogil
# Decode a checked block into raw_size bytes; -1 if it does not decode.
cdef int unseal_block(const uint8_t* stored, size_t size, uint8_t* raw, size_t raw_size) noexcept nogil
# The same of a row block of at most SPARE_BYTES, but rows of one width may stay *transposed*: byte
# j of row i lies at j * rows + i. Whoever wants few of them takes them from there.
cdef int unseal_row_block(
    const uint8_t* stored, size_t size, uint8_t* raw, size_t raw_size, uint8_t* transposed
) noexcept nogil


cdef struct RowBlock:      # a decoded row block, read in place
    const uint8_t* data
    const uint8_t* ends    # NULL: every row is `width` bytes
    const uint8_t* sequences
    const uint8_t* ordinals
    uint32_t rows
    uint32_t data_size
    uint32_t width

# -1: the lengths in the block contradict each other.
cdef int parse_row_block(const uint8_t* raw, size_t size, RowBlock* block) noexcept nogil
# Where `count` rows from `first` on lie in block.data; -1: they do not lie in the block.
cdef int row_span(
    const RowBlock* block, uint32_t first, uint32_t count, size_t* start, size_t* end
) noexcept nogil
# Copy `count` transposed rows from `first` on, all of which lie in the block.
cdef void take_transposed(
    const RowBlock* block, uint32_t first, uint32_t count, uint8_t* target
) noexcept nogil
# The rows of a transposed block, one behind the other.
cdef void set_upright(const RowBlock* block, uint8_t* target) noexcept nogil
# -1: row `index` does not lie in the block.
cdef int row_of(
    const RowBlock* block, uint32_t index, const uint8_t** data, size_t* size
) noexcept nogil


cdef struct KeyBlock:      # a decoded key block, read in place
    const uint8_t* entries
    const uint8_t* entries_end
    const uint8_t* restarts
    const uint8_t* row_ends
    uint64_t row_base
    uint32_t row_blocks
    uint32_t restart_count
    uint32_t count

cdef struct KeyEntry:
    uint8_t flags
    uint64_t rows
    uint64_t row_bytes
    uint32_t block_index   # of the row block with its first row, within this key block
    uint32_t row_index

cdef int parse_key_block(const uint8_t* raw, size_t size, KeyBlock* block) noexcept nogil
# Decode the entry at `place` into key and entry; the place after it, NULL if it is damaged.
# At a restart entry is zeroed by the caller; *key is empty or the key before, which must be less.
cdef const uint8_t* next_entry(
    const KeyBlock* block, const uint8_t* place, Buffer* key, KeyEntry* entry
) noexcept nogil
# Whether an entry's counts are such as this key block can have.
cdef bint may_hold(const KeyBlock* block, const KeyEntry* entry) noexcept nogil
# Where row block `index` of this key block lies in the file.
cdef int row_block_place(
    const KeyBlock* block, uint32_t index, uint64_t* offset, uint32_t* size
) noexcept nogil

cdef struct KeySearch:     # for ascending keys, in one block after the other; `key` is to be released
    KeyBlock block
    size_t shared          # bytes that all its restarts' keys begin with
    uint32_t restart       # where the key before was looked for
    uint32_t group         # the restart from which `entry`, of `key`, was decoded
    const uint8_t* place   # behind it
    const uint8_t* group_end
    KeyEntry entry
    Buffer key

# Stand before the first key of a decoded block; -1: it is damaged.
cdef int enter_key_block(const uint8_t* raw, size_t size, KeySearch* search) noexcept nogil
# 1 if the key is in the block, in search.entry; 0 if not; -1 if the block is damaged. No key is
# less than the one asked for before.
cdef int search_key_block(KeySearch* search, const uint8_t* key, size_t size) noexcept nogil
# The place of the restart from which a search for the key begins.
cdef int restart_before(
    const KeyBlock* block, const uint8_t* key, size_t key_size, uint32_t* found
) noexcept nogil
cdef const uint8_t* restart_place(const KeyBlock* block, uint32_t index) noexcept nogil
