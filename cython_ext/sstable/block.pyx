"""One block: sealing, checking, and reading rows in place (docs/design/disk-format.md).

No length is trusted. The checksum shows that the bytes are those that were written, and the parsers
still refuse what would lead outside the block.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from lsmstate.cython_ext.base.compression cimport (
    CODEC_LZ4, CODEC_NONE, CODEC_PLANES, CODEC_ZSTD, compress, compress_bound, decompress, shuffle,
    unshuffle, xxh3,
)
from lsmstate.cython_ext.base.coding cimport Buffer, load_u32, load_u64, reserve
from lsmstate.cython_ext.rows.bit_planes cimport pack_planes, unpack_planes
from lsmstate.cython_ext.rows.row_layout cimport WIDEST_TRANSPOSED

cdef enum:
    LARGEST_SHUFFLED_BLOCK = 1 << 20  # larger blocks, of one huge row, are not worth a second copy
    # Shuffled columns and key suffixes repeat soon or never: searching less makes LZ4 twice as fast
    # and blocks 2 % larger (bench/README.md).
    ACCELERATION = 8
    # Planes are used if they are this much smaller than their rows; else LZ4 may do better.
    PLANES_EIGHTHS = 5
    ARRAY_PLANES = 8  # behind the rows: four of sequence numbers, four of ordinals
    # Most bytes that a byte of LZ4 and a block of Zstandard (at least four bytes) expand to.
    LZ4_EXPANSION = 255
    ZSTD_BLOCK_BYTES = 128 << 10
    LEAST_ZSTD_BLOCK_BYTES = 4


cdef uint64_t _checksum(const uint8_t* stored, size_t payload, uint64_t offset) noexcept nogil:
    """Checksum of the payload, the trailer's first half and the block's offset, so that a block
    from another place is not accepted."""
    cdef uint64_t parts[3]
    parts[0] = xxh3(stored, payload)
    parts[1] = load_u64(stored + payload)
    parts[2] = offset
    return xxh3(parts, 24)


cdef int seal_block(
    Buffer* target, int kind, int codec, Buffer* raw, Buffer* scratch, uint64_t offset
) except -1 nogil:
    cdef uint8_t* payload
    cdef const uint8_t* source = raw.data
    cdef size_t written = 0, capacity = compress_bound(raw.size)
    cdef RowBlock rows
    cdef uint8_t shuffled = 0
    cdef uint32_t raw_size = <uint32_t> raw.size
    cdef uint64_t checksum
    if raw.size > LARGEST_RAW:
        with gil:
            raise ValueError(f"a block of {raw.size} bytes")
    reserve(target, capacity + TRAILER_BYTES)
    payload = target.data + target.size
    if codec != CODEC_NONE and raw.size:
        if (
            kind == BLOCK_ROWS
            and raw.size <= LARGEST_SHUFFLED_BLOCK
            and parse_row_block(raw.data, raw.size, &rows) == 0
        ):
            # Bytes of equal meaning side by side: columns of rows of one size, and the arrays.
            scratch.size = 0
            reserve(scratch, raw.size)
            _row_shuffle(&rows, raw.data, raw.size, scratch.data, True)
            source = scratch.data
            shuffled = 1
        if shuffled and codec == CODEC_LZ4 and _has_shuffled_rows(&rows):
            written = _pack_rows(&rows, source, raw.size, payload, capacity, &codec)
        else:
            written = compress(codec, ACCELERATION, source, raw.size, payload, capacity)
    if written == 0:
        codec = CODEC_NONE
        shuffled = 0
        if raw.size:
            memcpy(payload, raw.data, raw.size)
        written = raw.size
    payload[written] = <uint8_t> kind
    payload[written + 1] = <uint8_t> codec
    payload[written + 2] = shuffled
    payload[written + 3] = 0
    memcpy(payload + written + 4, &raw_size, 4)
    checksum = _checksum(payload, written, offset)
    memcpy(payload + written + 8, &checksum, 8)
    target.size += written + TRAILER_BYTES
    return 0


cdef void _row_shuffle(
    const RowBlock* rows, const uint8_t* source, size_t size, uint8_t* target, bint forward
) noexcept nogil:
    """Shuffle (or back) the rows by their width if they have one, and the arrays by four."""
    cdef size_t arrays = size - ROW_TAIL_BYTES
    cdef size_t cells = <size_t> rows.rows * (2 if rows.width else 3) * 4
    cdef size_t body = arrays - cells
    if _has_shuffled_rows(rows):
        if forward:
            shuffle(rows.width, source, rows.data_size, target)
        else:
            unshuffle(rows.width, source, rows.data_size, target)
        memcpy(target + rows.data_size, source + rows.data_size, body - rows.data_size)
    else:
        memcpy(target, source, body)
    if cells:
        if forward:
            shuffle(4, source + body, cells, target + body)
        else:
            unshuffle(4, source + body, cells, target + body)
    memcpy(target + arrays, source + arrays, ROW_TAIL_BYTES)


cdef size_t _pack_rows(
    const RowBlock* rows, const uint8_t* source, size_t size, uint8_t* target, size_t capacity,
    int* codec,
) noexcept nogil:
    """Pack shuffled rows of one width as planes, or by LZ4 if planes stay large and LZ4 is smaller;
    0 if neither helps."""
    cdef size_t packed = _put_planes(rows, source, size, target), written
    if packed <= size * PLANES_EIGHTHS // 8:
        codec[0] = CODEC_PLANES
        return packed
    written = compress(CODEC_LZ4, ACCELERATION, source, size, target, capacity)
    if packed >= size or 0 < written < packed:
        return written
    codec[0] = CODEC_PLANES
    return _put_planes(rows, source, size, target)


cdef size_t _put_planes(
    const RowBlock* rows, const uint8_t* source, size_t size, uint8_t* target
) noexcept nogil:
    """Write the planes of rows, sequence numbers and ordinals, and the tail with their number."""
    cdef size_t packed = pack_planes(source, rows.width + ARRAY_PLANES, rows.rows, target)
    memcpy(target + packed, source + size - ROW_TAIL_BYTES, ROW_TAIL_BYTES)
    return packed + ROW_TAIL_BYTES


cdef int _expand(
    int codec, const uint8_t* source, size_t size, uint8_t* target, size_t raw_size
) noexcept nogil:
    """Invert seal_block for shuffled rows; -1 if they do not decode."""
    cdef RowBlock rows
    if codec != CODEC_PLANES:
        return decompress(codec, source, size, target, raw_size)
    if size < ROW_TAIL_BYTES or raw_size < ROW_TAIL_BYTES:
        return -1
    size -= ROW_TAIL_BYTES
    memcpy(target + raw_size - ROW_TAIL_BYTES, source + size, ROW_TAIL_BYTES)
    if parse_row_block(target, raw_size, &rows) or rows.rows == 0 or rows.width == 0:
        return -1
    return unpack_planes(source, size, rows.width + ARRAY_PLANES, rows.rows, target)


cdef inline bint _has_shuffled_rows(const RowBlock* rows) noexcept nogil:
    return 1 < rows.width <= WIDEST_TRANSPOSED and rows.data_size != 0


cdef long check_block(
    const uint8_t* stored, size_t size, uint64_t offset, int kind
) noexcept nogil:
    cdef size_t payload, raw_size
    if size < TRAILER_BYTES:
        return -1
    payload = size - TRAILER_BYTES
    if stored[payload] != kind or load_u64(stored + payload + 8) != _checksum(
        stored, payload, offset
    ):
        return -1
    raw_size = load_u32(stored + payload + 4)
    return raw_size if _may_decode(stored + payload, payload, raw_size) else -1


cdef bint _may_decode(const uint8_t* trailer, size_t payload, size_t raw_size) noexcept nogil:
    """Test whether a payload of this size can decode to so many bytes, before
    memory is allocated."""
    if raw_size > LARGEST_RAW or (trailer[2] and raw_size > LARGEST_SHUFFLED_BLOCK):
        return False
    if trailer[1] == CODEC_NONE:
        return raw_size == payload
    if trailer[1] == CODEC_LZ4:
        return raw_size <= payload * LZ4_EXPANSION
    if trailer[1] == CODEC_ZSTD:
        return raw_size <= (payload // LEAST_ZSTD_BLOCK_BYTES + 1) * ZSTD_BLOCK_BYTES
    return trailer[1] == CODEC_PLANES and trailer[2] != 0


cdef int unseal_block(
    const uint8_t* stored, size_t size, uint8_t* raw, size_t raw_size
) noexcept nogil:
    cdef size_t payload = size - TRAILER_BYTES
    cdef int codec = stored[payload + 1], result = -1
    cdef RowBlock rows
    cdef uint8_t room[STACK_BYTES]
    cdef uint8_t* shuffled = room
    if not stored[payload + 2]:
        return decompress(codec, stored, payload, raw, raw_size)
    if raw_size > STACK_BYTES:
        shuffled = <uint8_t*> malloc(raw_size)
        if shuffled == NULL:
            return -1
    # The tail is never shuffled, so the shape of the block can be read before the rest.
    if (
        _expand(codec, stored, payload, shuffled, raw_size) == 0
        and parse_row_block(shuffled, raw_size, &rows) == 0
    ):
        _row_shuffle(&rows, shuffled, raw_size, raw, False)
        result = 0
    if shuffled != room:
        free(shuffled)
    return result


cdef int unseal_row_block(
    const uint8_t* stored, size_t size, uint8_t* raw, size_t raw_size, uint8_t* transposed
) noexcept nogil:
    cdef size_t payload = size - TRAILER_BYTES
    cdef RowBlock rows
    cdef uint8_t shuffled[SPARE_BYTES]
    transposed[0] = 0
    if not stored[payload + 2]:
        return decompress(stored[payload + 1], stored, payload, raw, raw_size)
    if _expand(stored[payload + 1], stored, payload, raw, raw_size):
        return -1
    if raw_size > SPARE_BYTES or parse_row_block(raw, raw_size, &rows):
        return -1
    if _has_shuffled_rows(&rows):
        transposed[0] = 1
        return 0
    memcpy(shuffled, raw, raw_size)
    _row_shuffle(&rows, shuffled, raw_size, raw, False)
    return 0


cdef void take_transposed(
    const RowBlock* block, uint32_t first, uint32_t count, uint8_t* target
) noexcept nogil:
    cdef const uint8_t* byte
    cdef uint32_t i, j
    for i in range(count):
        byte = block.data + first + i
        for j in range(block.width):
            target[j] = byte[0]
            byte += block.rows
        target += block.width


cdef void set_upright(const RowBlock* block, uint8_t* target) noexcept nogil:
    unshuffle(block.width, block.data, block.data_size, target)


cdef int parse_row_block(const uint8_t* raw, size_t size, RowBlock* block) noexcept nogil:
    cdef size_t arrays
    cdef const uint8_t* tail
    if size < ROW_TAIL_BYTES:
        return -1
    tail = raw + size - ROW_TAIL_BYTES
    block.rows = load_u32(tail)
    block.data_size = load_u32(tail + 4)
    block.width = load_u32(tail + 8)
    block.data = raw
    arrays = <size_t> block.rows * 4
    block.ordinals = tail - arrays
    block.sequences = block.ordinals - arrays
    block.ends = block.sequences - arrays
    if block.width:
        block.ends = NULL
    if <size_t> block.data_size + arrays * (2 if block.width else 3) + ROW_TAIL_BYTES != size:
        return -1
    if block.width and <size_t> block.width * block.rows != block.data_size:
        return -1
    return 0


cdef int row_span(
    const RowBlock* block, uint32_t first, uint32_t count, size_t* start, size_t* end
) noexcept nogil:
    cdef uint64_t behind = <uint64_t> first + count
    if behind > block.rows:
        return -1
    if block.ends == NULL:
        start[0] = <size_t> first * block.width
        end[0] = <size_t> behind * block.width
        return 0
    start[0] = load_u32(block.ends + 4 * (<size_t> first - 1)) if first else 0
    end[0] = load_u32(block.ends + 4 * (<size_t> behind - 1)) if behind else 0
    return -1 if start[0] > end[0] or end[0] > block.data_size else 0


cdef int row_of(
    const RowBlock* block, uint32_t index, const uint8_t** data, size_t* size
) noexcept nogil:
    cdef size_t start = 0, end = 0
    if row_span(block, index, 1, &start, &end):
        return -1
    data[0] = block.data + start
    size[0] = end - start
    return 0
