from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer, load_u32, load_u64

cdef enum:
    KEY_TAIL_BYTES = 24
    MOST_ZONES = 0xFFFF   # columns with zones, so that sizes do not overflow
    RESTART_ENTRIES = 8   # from one restart to the next, at most


cdef struct KeyBlock:      # a decoded key block, read in place
    const uint8_t* entries
    const uint8_t* entries_end
    const uint8_t* zones   # of the row blocks
    const uint8_t* restarts
    const uint8_t* row_ends
    uint64_t row_base
    uint32_t row_blocks
    uint32_t restart_count
    uint32_t count
    uint32_t zone_columns

cdef struct Zone:          # of one column in one row block; without a value its least is the greater
    uint64_t least
    uint64_t greatest

cdef struct KeyEntry:
    uint8_t flags
    uint64_t rows
    uint64_t row_bytes
    uint32_t block_index   # of the row block with its first row, within this key block
    uint32_t row_index

cdef int parse_key_block(const uint8_t* raw, size_t size, KeyBlock* block) noexcept nogil
# Decode the entry at `place` into key and entry; the place after it, NULL if it is damaged.
# At a restart entry is zeroed by the caller; *key is empty or the key before, which must be less.
# MemoryError.
cdef const uint8_t* next_entry(
    const KeyBlock* block, const uint8_t* place, Buffer* key, KeyEntry* entry
) except? NULL nogil
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
# less than the one asked for before. MemoryError.
cdef int search_key_block(KeySearch* search, const uint8_t* key, size_t size) except? -1 nogil
# The place of the restart from which a search for the key begins.
cdef int restart_before(
    const KeyBlock* block, const uint8_t* key, size_t key_size, uint32_t* found
) noexcept nogil
cdef const uint8_t* restart_place(const KeyBlock* block, uint32_t index) noexcept nogil


cdef inline uint32_t zone_column(const KeyBlock* block, uint32_t place) noexcept nogil:
    """The number of a key block's zone column."""
    return load_u32(block.zones + 4 * <size_t> place)


cdef inline const uint8_t* _zones_of(const KeyBlock* block, uint32_t row_block) noexcept nogil:
    cdef size_t columns = block.zone_columns
    return block.zones + 4 * columns + row_block * (4 + columns * sizeof(Zone))


cdef inline uint32_t zone_rows(const KeyBlock* block, uint32_t row_block) noexcept nogil:
    """The number of rows in a row block, which is one of the key block."""
    return load_u32(_zones_of(block, row_block))


cdef inline Zone zone_at(const KeyBlock* block, uint32_t row_block, uint32_t place) noexcept nogil:
    """The zone of a row block in a key block's zone column."""
    cdef const uint8_t* at = _zones_of(block, row_block) + 4 + place * sizeof(Zone)
    cdef Zone zone
    zone.least = load_u64(at)
    zone.greatest = load_u64(at + 8)
    return zone
