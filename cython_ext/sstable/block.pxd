from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer

cdef enum:
    BLOCK_ROWS = 1
    BLOCK_KEYS = 2
    BLOCK_INDEX = 3
    BLOCK_FILTER = 4
    BLOCK_TOP = 5
    BLOCK_PROPERTIES = 6
    BLOCK_EDIT = 7
    TRAILER_BYTES = 16
    LARGEST_RAW = 0x7E000000    # bytes of a block; LZ4 counts in int
    ROW_TAIL_BYTES = 12
    STACK_BYTES = 16384   # of scratch for a block that is read; larger ones take theirs from malloc
    SPARE_BYTES = STACK_BYTES   # of a block that is read past the cache

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
