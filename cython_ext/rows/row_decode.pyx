"""Rows -> Arrow buffers, column by column over tiles of rows. The bytes are not trusted.

Every length is checked against the end of its row before it is used, and a buffer grows only by
bytes that were found in a row (a null of a fixed-width type takes the type's width).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from lsmstate.cython_ext.rows.arrow_read cimport (
    KIND_BOOL,
    KIND_BYTES,
    KIND_FIXED,
    KIND_LARGE_BYTES,
    KIND_NULL,
    Node,
)
from lsmstate.cython_ext.rows.row_builder cimport Builder, corrupt, grow_bytes, reserve_rows, read_nested
from lsmstate.cython_ext.rows.row_layout cimport (
    TILE,
    Layout,
    Place,
    Tile,
    checked_varint,
    clean_bitmap,
    copy_bytes,
    put_bits,
    read_cell,
    word,
)


cdef int read_rows(
    const Layout* layout,
    const uint8_t* data,
    const uint64_t* offsets,
    int64_t n,
    int64_t expected,
    Builder* builder,
    Place* place,
) except -1 nogil:
    cdef Tile tile
    cdef Py_ssize_t c
    cdef Py_ssize_t i
    cdef uint8_t nulls = 0
    cdef int64_t before = builder.length
    cdef int64_t total = before + n
    reserve_rows(builder, total, expected)
    tile.first = before
    while tile.first < total:
        tile.n = min(<int64_t> TILE, total - tile.first)
        place.column = -1
        start_tile(layout, data, offsets + (tile.first - before), &tile, place)
        for c in range(builder.n_children):
            place.column = c
            if c & 7 == 0:
                nulls = 0
                for i in range(tile.n):
                    nulls |= tile.rows[i][c >> 3]
            read_column(
                &builder.children[c], layout.places[c], c, (nulls >> (c & 7)) & 1, &tile, place
            )
        place.column = -1
        for i in range(tile.n):
            if tile.tails[i] != tile.ends[i]:
                place.row = tile.first + i
                corrupt(b"bytes are left over at its end")
        tile.first += TILE
    builder.length = total
    return 0


cdef int start_tile(
    const Layout* layout,
    const uint8_t* data,
    const uint64_t* offsets,  # of the tile
    Tile* tile,
    Place* place,
) except -1 nogil:
    cdef Py_ssize_t i
    cdef uint64_t start
    cdef uint64_t end
    for i in range(tile.n):
        start = offsets[i]
        end = offsets[i + 1]
        if end < start or end - start < <uint64_t> layout.header:
            place.row = tile.first + i
            corrupt(b"shorter than its fixed part")
        tile.rows[i] = data + start
        tile.tails[i] = data + start + layout.header
        tile.ends[i] = data + end
        if not clean_bitmap(tile.rows[i], layout.root.n_children):
            place.row = tile.first + i
            corrupt(b"the null bitmap has bits beyond the last column")
    tile.limit = tile.ends[tile.n - 1]
    return 0


cdef int read_column(
    Builder* builder, int64_t at, Py_ssize_t c, bint nulls, Tile* tile, Place* place
) except -1 nogil:
    cdef const Node* node = builder.node
    cdef int64_t found = 0
    builder.length = tile.first + tile.n
    if nulls:
        found = read_validity(builder.validity.data, c, tile)
        builder.null_count += found
    if node.kind == KIND_FIXED:
        read_fixed(node, builder.values.data + tile.first * node.width, at, tile)
    elif node.kind == KIND_BOOL:
        read_bools(builder.values.data, at, tile, place)
    elif node.kind == KIND_NULL:
        if found != tile.n:
            place.row = tile.first
            corrupt(b"a value in a column of nulls")
    else:
        read_sizes(c, nulls, tile, place)
        if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
            read_bytes(builder, tile, place)
        else:
            read_nested(builder, c, tile, place)
    return 0


cdef int64_t read_validity(uint8_t* validity, Py_ssize_t c, Tile* tile) noexcept nogil:
    """Collect one column's bits; return the number of nulls."""
    cdef Py_ssize_t i
    cdef Py_ssize_t k
    cdef Py_ssize_t byte = c >> 3
    cdef int bit = c & 7
    cdef int64_t nulls = 0
    cdef uint32_t bits
    cdef uint32_t one
    for i in range(0, tile.n, 8):
        bits = 0
        for k in range(min(<Py_ssize_t> 8, tile.n - i)):
            one = (tile.rows[i + k][byte] >> bit) & 1
            bits |= one << k
            nulls += one
        put_bits(validity, tile.first + i, ~bits)
    return nulls


cdef int read_bools(uint8_t* target, int64_t at, Tile* tile, Place* place) except -1 nogil:
    cdef Py_ssize_t i
    cdef Py_ssize_t k
    cdef uint32_t bits
    cdef uint32_t seen = 0
    for i in range(0, tile.n, 8):
        bits = 0
        for k in range(min(<Py_ssize_t> 8, tile.n - i)):
            bits |= <uint32_t> (tile.rows[i + k][at] & 1) << k
            seen |= tile.rows[i + k][at]
        put_bits(target, tile.first + i, bits)
    if seen > 1:
        place.row = tile.first
        corrupt(b"a boolean is neither 0 nor 1, in this row or one of the next 255")
    return 0


cdef void read_fixed(const Node* node, uint8_t* target, int64_t at, Tile* tile) noexcept nogil:
    cdef Py_ssize_t i
    if node.width == node.row_width and node.width == 4:
        read_cells(<uint32_t*> target, at, tile)
    elif node.width == node.row_width and node.width == 8:
        read_cells(<uint64_t*> target, at, tile)
    elif node.width == node.row_width and node.width == 2:
        read_cells(<uint16_t*> target, at, tile)
    elif node.width == node.row_width and node.width == 1:
        read_cells(target, at, tile)
    elif node.width == 16 and node.row_width == 4:
        read_wide(<uint64_t*> target, <uint32_t> 0, at, tile)
    elif node.width == 16 and node.row_width == 8:
        read_wide(<uint64_t*> target, <uint64_t> 0, at, tile)
    else:
        for i in range(tile.n):
            read_cell(node, tile.rows[i] + at, target + i * node.width)


cdef void read_cells(word* target, int64_t at, Tile* tile) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(tile.n):
        memcpy(&target[i], tile.rows[i] + at, sizeof(word))


cdef void read_wide(uint64_t* target, word unused, int64_t at, Tile* tile) noexcept nogil:
    """Widen decimals back to 16 bytes."""
    cdef Py_ssize_t i
    cdef word value
    cdef int64_t low
    for i in range(tile.n):
        memcpy(&value, tile.rows[i] + at, sizeof(word))
        low = <int32_t> value if word is uint32_t else <int64_t> value
        target[2 * i] = <uint64_t> low
        target[2 * i + 1] = <uint64_t> (low >> 63)


cdef int read_sizes(Py_ssize_t c, bint nulls, Tile* tile, Place* place) except -1 nogil:
    """Read the lengths of a variable column; the tails move past them."""
    cdef Py_ssize_t i
    cdef uint64_t size = 0
    cdef const uint8_t* at
    for i in range(tile.n):
        if nulls and (tile.rows[i][c >> 3] >> (c & 7)) & 1:
            tile.sizes[i] = 0
            continue
        at = tile.tails[i]
        if at < tile.ends[i] and at[0] < 0x80:
            size = at[0]
            at += 1
        else:
            at = checked_varint(at, tile.ends[i], &size)
        if at == NULL or size > <uint64_t> (tile.ends[i] - at):
            place.row = tile.first + i
            corrupt(b"a length passes its end")
        tile.sizes[i] = <int64_t> size
        tile.tails[i] = at
    return 0


cdef int read_bytes(Builder* builder, Tile* tile, Place* place) except -1 nogil:
    cdef Py_ssize_t i
    cdef int64_t total = 0
    cdef int64_t size
    cdef uint8_t* target
    cdef const uint8_t* source
    for i in range(tile.n):
        total += tile.sizes[i]
    grow_bytes(builder, total)
    target = builder.values.data + builder.values.size
    for i in range(tile.n):
        size = tile.sizes[i]
        source = tile.tails[i]
        tile.tails[i] = source + size
        # 16 bytes at once where both sides have them; what is too much is overwritten next
        if size <= 16 and source + 16 <= tile.limit:
            memcpy(target, source, 16)
        else:
            copy_bytes(target, source, size)
        target += size
    put_offsets(builder, tile)
    builder.values.size += total
    return 0


cdef int put_offsets(Builder* builder, Tile* tile) except -1 nogil:
    """Write the ends of a tile's strings; values.size is still where they start."""
    cdef Py_ssize_t i
    cdef int64_t end = builder.values.size
    cdef int32_t* narrow
    cdef int64_t* wide
    if builder.node.kind == KIND_BYTES:
        narrow = <int32_t*> (builder.offsets.data + builder.offsets.size)
        for i in range(tile.n):
            end += tile.sizes[i]
            narrow[i] = <int32_t> end
        builder.offsets.size += tile.n * 4
    else:
        wide = <int64_t*> (builder.offsets.data + builder.offsets.size)
        for i in range(tile.n):
            end += tile.sizes[i]
            wide[i] = end
        builder.offsets.size += tile.n * 8
    return 0
