"""Arrow columns -> rows, column by column over tiles of rows that stay in the first-level cache.

The inner loops are typed and know no nulls: a mask per row makes the cell zero. Variable-width
values are measured first, so that all rows are written into one allocation.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport (
    KIND_BOOL,
    KIND_BYTES,
    KIND_FIXED,
    KIND_LARGE_BYTES,
    KIND_NULL,
    KIND_STRUCT,
    KIND_FIXED_LIST,
    ORDER_DECIMAL,
    Node,
    bit_at,
    bytes_at,
    has_nulls,
    is_valid,
    list_at,
)
from lsmstate.cython_ext.rows.row_layout cimport (
    TILE,
    Layout,
    copy_bytes,
    is_fixed,
    varint_size,
    word,
    write_varint,
)

ctypedef fused offset_t:
    int32_t
    int64_t

cdef struct Tile:
    int64_t first  # row of the batch
    Py_ssize_t n
    uint8_t* rows[TILE]
    uint8_t* tails[TILE]  # where the next variable value goes
    uint64_t masks[TILE]  # of the column at hand: all ones, or zero if null


cdef void measure_rows(
    const Layout* layout, const ArrowArray* batch, uint64_t* offsets
) noexcept nogil:
    cdef Py_ssize_t c
    cdef Py_ssize_t i
    cdef const Node* node
    cdef const ArrowArray* array
    cdef int64_t start
    for i in range(batch.length):
        offsets[i + 1] = layout.header
    for c in range(layout.root.n_children):
        node = &layout.root.children[c]
        array = batch.children[c]
        start = batch.offset + array.offset
        if is_fixed(node):
            continue
        if node.kind == KIND_BYTES and not has_nulls(array):
            measure_bytes(<const int32_t*> array.buffers[1] + start, batch.length, offsets)
        elif node.kind == KIND_LARGE_BYTES and not has_nulls(array):
            measure_bytes(<const int64_t*> array.buffers[1] + start, batch.length, offsets)
        else:
            for i in range(batch.length):
                if is_valid(node, array, start + i):
                    offsets[i + 1] += framed_size(node, array, start + i)


cdef void measure_bytes(const offset_t* ends, int64_t n, uint64_t* offsets) noexcept nogil:
    cdef int64_t i
    cdef uint64_t size
    for i in range(n):
        size = ends[i + 1] - ends[i]
        offsets[i + 1] += size + varint_size(size)


cdef int64_t framed_size(const Node* node, const ArrowArray* array, int64_t i) noexcept nogil:
    """Return the size of a value of a variable column with the length in front."""
    cdef int64_t size
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        bytes_at(node, array, i, &size)
    else:
        size = value_size(node, array, i)
    return size + varint_size(size)


cdef int64_t value_size(const Node* node, const ArrowArray* array, int64_t i) noexcept nogil:
    """Return the size of a value inside a nested one, or of a whole nested one; it is not null."""
    cdef int64_t size
    cdef int64_t start
    cdef int64_t total
    cdef int64_t k
    if is_fixed(node):
        return node.row_width
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        return framed_size(node, array, i)
    if node.kind == KIND_STRUCT:
        total = (node.n_children + 7) >> 3
        for k in range(node.n_children):
            start = array.children[k].offset + i
            if is_valid(&node.children[k], array.children[k], start):
                total += value_size(&node.children[k], array.children[k], start)
        return total
    size = list_at(node, array, i, &start)
    total = (size + 7) >> 3
    if node.kind != KIND_FIXED_LIST:
        total += varint_size(size)
    for k in range(start, start + size):
        if is_valid(node.children, array.children[0], k):
            total += value_size(node.children, array.children[0], k)
    return total


cdef Py_ssize_t write_rows(
    const Layout* layout, const ArrowArray* batch, const uint64_t* offsets, uint8_t* data
) noexcept nogil:
    cdef Tile tile
    cdef Py_ssize_t c
    cdef Py_ssize_t i
    tile.first = 0
    while tile.first < batch.length:
        tile.n = min(<int64_t> TILE, batch.length - tile.first)
        for i in range(tile.n):
            tile.rows[i] = data + offsets[tile.first + i]
            tile.tails[i] = tile.rows[i] + layout.header
            memset(tile.rows[i], 0, layout.bitmap)
        for c in range(layout.root.n_children):
            if not write_column(layout, c, batch, &tile):
                return c
        tile.first += TILE
    return -1


cdef bint write_column(
    const Layout* layout, Py_ssize_t c, const ArrowArray* batch, Tile* tile
) noexcept nogil:
    cdef const Node* node = &layout.root.children[c]
    cdef const ArrowArray* array = batch.children[c]
    cdef int64_t start = batch.offset + array.offset + tile.first
    cdef Py_ssize_t i
    set_masks(node, array, start, c, tile)
    if node.kind == KIND_NULL:
        return True
    if node.kind == KIND_FIXED:
        return write_fixed(
            node, <const uint8_t*> array.buffers[1] + start * node.width, layout.places[c], tile
        )
    if node.kind == KIND_BOOL:
        for i in range(tile.n):
            tile.rows[i][layout.places[c]] = <uint8_t> (
                bit_at(array.buffers[1], start + i) & tile.masks[i]
            )
        return True
    if node.kind == KIND_BYTES:
        write_bytes(<const int32_t*> array.buffers[1] + start, array.buffers[2], tile)
        return True
    if node.kind == KIND_LARGE_BYTES:
        write_bytes(<const int64_t*> array.buffers[1] + start, array.buffers[2], tile)
        return True
    for i in range(tile.n):
        if tile.masks[i]:
            tile.tails[i] = write_varint(tile.tails[i], value_size(node, array, start + i))
            tile.tails[i] = write_value(node, array, start + i, tile.tails[i])
            if tile.tails[i] == NULL:
                return False
    return True


cdef void set_masks(
    const Node* node, const ArrowArray* array, int64_t start, Py_ssize_t c, Tile* tile
) noexcept nogil:
    """Set the masks of a column, and its bits in the rows' null bitmaps."""
    cdef Py_ssize_t i
    cdef uint64_t valid
    cdef Py_ssize_t byte = c >> 3
    cdef int bit = c & 7
    if node.kind == KIND_NULL:
        for i in range(tile.n):
            tile.rows[i][byte] |= <uint8_t> (1 << bit)
    elif has_nulls(array):
        for i in range(tile.n):
            valid = bit_at(array.buffers[0], start + i)
            tile.masks[i] = 0 - valid
            tile.rows[i][byte] |= <uint8_t> ((valid ^ 1) << bit)
    else:
        for i in range(tile.n):
            tile.masks[i] = ~(<uint64_t> 0)


cdef bint write_fixed(
    const Node* node, const uint8_t* values, int64_t place, Tile* tile
) noexcept nogil:
    cdef Py_ssize_t i
    if node.width == node.row_width and node.width == 4:
        write_cells(<const uint32_t*> values, place, tile)
    elif node.width == node.row_width and node.width == 8:
        write_cells(<const uint64_t*> values, place, tile)
    elif node.width == node.row_width and node.width == 2:
        write_cells(<const uint16_t*> values, place, tile)
    elif node.width == node.row_width and node.width == 1:
        write_cells(values, place, tile)
    elif node.width == 16 and node.row_width == 4:
        return write_narrow(<const uint64_t*> values, <uint32_t> 0, place, tile)
    elif node.width == 16 and node.row_width == 8:
        return write_narrow(<const uint64_t*> values, <uint64_t> 0, place, tile)
    else:
        for i in range(tile.n):
            if not tile.masks[i]:
                memset(tile.rows[i] + place, 0, node.row_width)
            elif not write_cell(node, values + i * node.width, tile.rows[i] + place):
                return False
    return True


cdef void write_cells(const word* values, int64_t place, Tile* tile) noexcept nogil:
    cdef Py_ssize_t i
    cdef word value
    for i in range(tile.n):
        value = <word> (values[i] & tile.masks[i])
        memcpy(tile.rows[i] + place, &value, sizeof(word))


cdef bint write_narrow(
    const uint64_t* values, word unused, int64_t place, Tile* tile
) noexcept nogil:
    """Write decimals of 16 bytes in fewer; return False if one does not fit."""
    cdef Py_ssize_t i
    cdef int64_t low
    cdef int64_t kept
    cdef uint64_t lost = 0
    cdef word value
    for i in range(tile.n):
        low = <int64_t> values[2 * i]
        value = <word> (<uint64_t> low & tile.masks[i])
        kept = <int32_t> value if word is uint32_t else <int64_t> value
        lost |= (values[2 * i + 1] ^ <uint64_t> (low >> 63)) & tile.masks[i]
        lost |= <uint64_t> (low ^ kept) & tile.masks[i]
        memcpy(tile.rows[i] + place, &value, sizeof(word))
    return lost == 0


cdef bint write_cell(const Node* node, const uint8_t* source, uint8_t* target) noexcept nogil:
    """Write one fixed-width value; return False if it is a decimal that does not fit."""
    cdef int64_t i
    cdef uint8_t sign
    memcpy(target, source, node.row_width)
    if node.order == ORDER_DECIMAL and node.row_width < node.width:
        sign = 0xFF if source[node.row_width - 1] & 0x80 else 0
        for i in range(node.row_width, node.width):
            if source[i] != sign:
                return False
    return True


cdef void write_bytes(const offset_t* ends, const void* data, Tile* tile) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t size
    cdef uint8_t* target
    for i in range(tile.n):
        if tile.masks[i]:
            size = ends[i + 1] - ends[i]
            target = write_varint(tile.tails[i], size)
            copy_bytes(target, <const uint8_t*> data + ends[i], size)
            tile.tails[i] = target + size


cdef uint8_t* write_value(
    const Node* node, const ArrowArray* array, int64_t i, uint8_t* target
) noexcept nogil:
    """Write a value inside a nested one, or a whole nested one; NULL if a decimal does not fit."""
    cdef int64_t size
    cdef int64_t start
    cdef int64_t k
    cdef uint8_t* bitmap
    cdef const uint8_t* data
    if node.kind == KIND_FIXED:
        if not write_cell(node, <const uint8_t*> array.buffers[1] + i * node.width, target):
            return NULL
        return target + node.row_width
    if node.kind == KIND_BOOL:
        target[0] = bit_at(array.buffers[1], i)
        return target + 1
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        data = bytes_at(node, array, i, &size)
        target = write_varint(target, size)
        copy_bytes(target, data, size)
        return target + size
    if node.kind == KIND_STRUCT:
        bitmap = target
        target = start_bitmap(target, node.n_children)
        for k in range(node.n_children):
            start = array.children[k].offset + i
            target = write_child(
                &node.children[k], array.children[k], start, bitmap, k, target
            )
            if target == NULL:
                return NULL
        return target
    size = list_at(node, array, i, &start)
    if node.kind != KIND_FIXED_LIST:
        target = write_varint(target, size)
    bitmap = target
    target = start_bitmap(target, size)
    for k in range(size):
        target = write_child(node.children, array.children[0], start + k, bitmap, k, target)
        if target == NULL:
            return NULL
    return target


cdef inline uint8_t* start_bitmap(uint8_t* target, int64_t n) noexcept nogil:
    memset(target, 0, (n + 7) >> 3)
    return target + ((n + 7) >> 3)


cdef inline uint8_t* write_child(
    const Node* node,
    const ArrowArray* array,
    int64_t i,
    uint8_t* bitmap,
    int64_t k,
    uint8_t* target,
) noexcept nogil:
    """Write child k of a nested value, or its bit in the bitmap if it is null."""
    if is_valid(node, array, i):
        return write_value(node, array, i, target)
    bitmap[k >> 3] |= <uint8_t> (1 << (k & 7))
    return target
