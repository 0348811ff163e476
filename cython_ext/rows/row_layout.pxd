"""Where the parts of a row lie, and the small reads, writes and copies its coders share."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.rows.arrow_read cimport KIND_BOOL, KIND_FIXED, KIND_NULL, Node
from lsmstate.cython_ext.base.coding cimport get_varint

cdef enum:
    TILE = 256  # rows handled together, column by column
    SPARE_ROWS = 15  # that columns of planar rows have room for: they are written in vectors of 16
    WIDEST_TRANSPOSED = 255  # bytes of a row: blocks of wider ones are not shuffled
    SPARE_BITS = 24  # of bitmaps: they are written in words of 16

cdef struct Layout:
    const Node* root
    int64_t bitmap  # bytes
    int64_t header  # bytes of bitmap and fixed part
    int64_t* places  # of the fixed-width columns in a row
    bint is_planar  # no column is nested, and rows may be so short that blocks have them transposed

cdef struct Tile:  # rows being read
    int64_t first
    Py_ssize_t n
    const uint8_t* rows[TILE]
    const uint8_t* tails[TILE]  # the next variable value
    const uint8_t* ends[TILE]
    int64_t sizes[TILE]  # of the column at hand
    const uint8_t* limit  # the end of the last row

# Where reading stands, for the message of an error.
cdef struct Place:
    int64_t row
    Py_ssize_t column

# A cell of one to eight bytes as a number; what it means does not matter here.
ctypedef fused word:
    uint8_t
    uint16_t
    uint32_t
    uint64_t


cdef inline bint is_fixed(const Node* node) noexcept nogil:
    return node.kind == KIND_FIXED or node.kind == KIND_BOOL or node.kind == KIND_NULL


cdef inline int64_t varint_size(uint64_t value) noexcept nogil:
    cdef int64_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t* write_varint(uint8_t* target, uint64_t value) noexcept nogil:
    while value >= 0x80:
        target[0] = <uint8_t> (value | 0x80)
        target += 1
        value >>= 7
    target[0] = <uint8_t> value
    return target + 1


cdef inline void copy_bytes(uint8_t* target, const uint8_t* source, int64_t size) noexcept nogil:
    """memcpy without the call for the short strings that most are: two overlapping words."""
    cdef uint64_t head
    cdef uint64_t tail
    cdef uint32_t half
    cdef uint32_t rest
    if size > 16:
        memcpy(target, source, size)
    elif size >= 8:
        memcpy(&head, source, 8)
        memcpy(&tail, source + size - 8, 8)
        memcpy(target, &head, 8)
        memcpy(target + size - 8, &tail, 8)
    elif size >= 4:
        memcpy(&half, source, 4)
        memcpy(&rest, source + size - 4, 4)
        memcpy(target, &half, 4)
        memcpy(target + size - 4, &rest, 4)
    elif size:
        target[0] = source[0]
        target[size >> 1] = source[size >> 1]
        target[size - 1] = source[size - 1]


cdef inline bint clean_bitmap(const uint8_t* bitmap, int64_t n) noexcept nogil:
    """Whether the bits behind the last one are zero."""
    return n & 7 == 0 or bitmap[n >> 3] >> (n & 7) == 0


cdef inline uint32_t gathered_bits(uint64_t bytes) noexcept nogil:
    """The lowest bits of eight bytes, the first one's lowest."""
    return <uint32_t> (
        ((bytes & <uint64_t> 0x0101010101010101) * <uint64_t> 0x0102040810204080) >> 56
    )


cdef inline void put_bits(uint8_t* bitmap, int64_t at, uint32_t bits) noexcept nogil:
    """Behind `at` others, eight bits or more, of which the next ones may be written over. There is
    room for a byte behind that of the first."""
    cdef uint16_t word = 0
    cdef int shift = at & 7
    memcpy(&word, bitmap + (at >> 3), 1)
    word = <uint16_t> ((word & ((1 << shift) - 1)) | (bits << shift))
    memcpy(bitmap + (at >> 3), &word, 2)


cdef inline void read_cell(const Node* node, const uint8_t* source, uint8_t* target) noexcept nogil:
    """One fixed-width value, sign-extended if it was narrowed."""
    memcpy(target, source, node.row_width)
    if node.row_width < node.width:
        memset(
            target + node.row_width,
            0xFF if source[node.row_width - 1] & 0x80 else 0,
            node.width - node.row_width,
        )


cdef inline const uint8_t* checked_varint(
    const uint8_t* at, const uint8_t* end, uint64_t* value
) noexcept nogil:
    """The byte after the varint; NULL if it passes the end or is longer than needed."""
    cdef const uint8_t* after = get_varint(at, end, value)
    if after == NULL or (after - at > 1 and (after - 1)[0] == 0):
        return NULL
    return after
