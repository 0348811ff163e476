"""Rows -> Arrow buffers, column by column over tiles of rows. The bytes are not trusted.

Every length is checked against the end of its row before it is used, and a buffer grows only by
bytes that were found in a row (a null of a fixed-width type takes the type's width).
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from cython_ext.arrow_c cimport ArrowArray
from cython_ext.arrow_read cimport (
    KIND_BOOL,
    KIND_BYTES,
    KIND_FIXED,
    KIND_FIXED_LIST,
    KIND_LARGE_BYTES,
    KIND_LARGE_LIST,
    KIND_LIST,
    KIND_NULL,
    KIND_STRUCT,
    ORDER_DECIMAL,
    Node,
)
from cython_ext.coding cimport Buffer, get_varint, release, reserve
from cython_ext.row_layout cimport TILE, Layout, copy_bytes, is_fixed, word

from cython_ext.errors import CorruptionError, MemoryLimitError

cdef struct Tile:
    int64_t first
    Py_ssize_t n
    const uint8_t* rows[TILE]
    const uint8_t* tails[TILE]  # the next variable value
    const uint8_t* ends[TILE]
    int64_t sizes[TILE]  # of the column at hand
    const uint8_t* limit  # the end of the last row


cdef int corrupt(const char* what) except -1 nogil:
    with gil:
        raise CorruptionError(what.decode())


cdef int open_builder(Builder* builder, const Node* node) except -1 nogil:
    """`builder` is zeroed memory; close_builder frees it also after a failure."""
    cdef Py_ssize_t i
    builder.node = node
    if node.kind == KIND_BYTES or node.kind == KIND_LIST:
        push_offset(builder, 0)
    elif node.kind == KIND_LARGE_BYTES or node.kind == KIND_LARGE_LIST:
        push_offset(builder, 0)
    reserve(&builder.values, 8)
    if node.n_children == 0:
        return 0
    builder.children = <Builder*> calloc(node.n_children, sizeof(Builder))
    if builder.children == NULL:
        with gil:
            raise MemoryError(f"cannot allocate {node.n_children} column builders")
    builder.n_children = node.n_children
    for i in range(node.n_children):
        open_builder(&builder.children[i], &node.children[i])
    return 0


cdef void close_builder(Builder* builder) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(builder.n_children):
        close_builder(&builder.children[i])
    free(builder.children)
    builder.children = NULL
    builder.n_children = 0
    release(&builder.validity)
    release(&builder.offsets)
    release(&builder.values)


cdef int read_rows(
    const Layout* layout,
    const uint8_t* data,
    const uint64_t* offsets,
    int64_t n,
    Builder* builder,
    Place* place,
) except -1 nogil:
    cdef Tile tile
    cdef Py_ssize_t c
    cdef Py_ssize_t i
    cdef uint8_t nulls = 0
    for c in range(builder.n_children):
        size_column(&builder.children[c], n)
    tile.first = 0
    while tile.first < n:
        tile.n = min(<int64_t> TILE, n - tile.first)
        place.column = -1
        start_tile(layout, data, offsets, &tile, place)
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
    builder.length = n
    return 0


cdef int size_column(Builder* builder, int64_t n) except -1 nogil:
    """Room for n values of a column; variable ones grow."""
    cdef const Node* node = builder.node
    reserve(&builder.validity, ((n + 7) >> 3) + 1)  # memset wants a buffer even for no rows
    memset(builder.validity.data, 0xFF, (n + 7) >> 3)
    builder.validity.size = (n + 7) >> 3
    if node.kind == KIND_BOOL:
        reserve(&builder.values, (n + 7) >> 3)
    elif node.kind == KIND_FIXED:
        reserve(&builder.values, n * node.width)
    elif node.kind == KIND_BYTES or node.kind == KIND_LIST:
        reserve(&builder.offsets, n * 4)
    elif node.kind == KIND_LARGE_BYTES or node.kind == KIND_LARGE_LIST:
        reserve(&builder.offsets, n * 8)
    return 0


cdef int start_tile(
    const Layout* layout,
    const uint8_t* data,
    const uint64_t* offsets,
    Tile* tile,
    Place* place,
) except -1 nogil:
    cdef Py_ssize_t i
    cdef uint64_t start
    cdef uint64_t end
    for i in range(tile.n):
        start = offsets[tile.first + i]
        end = offsets[tile.first + i + 1]
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


cdef inline bint clean_bitmap(const uint8_t* bitmap, int64_t n) noexcept nogil:
    """Whether the bits behind the last one are zero."""
    return n & 7 == 0 or bitmap[n >> 3] >> (n & 7) == 0


cdef int read_column(
    Builder* builder, int64_t at, Py_ssize_t c, bint nulls, Tile* tile, Place* place
) except -1 nogil:
    cdef const Node* node = builder.node
    cdef int64_t found = 0
    builder.length = tile.first + tile.n
    if nulls:
        found = read_validity(builder.validity.data + (tile.first >> 3), c, tile)
        builder.null_count += found
    if node.kind == KIND_FIXED:
        read_fixed(node, builder.values.data + tile.first * node.width, at, tile)
    elif node.kind == KIND_BOOL:
        read_bools(builder.values.data + (tile.first >> 3), at, tile, place)
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


cdef int64_t read_validity(uint8_t* target, Py_ssize_t c, Tile* tile) noexcept nogil:
    """Collect one column's bits; the number of nulls."""
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
        target[i >> 3] = <uint8_t> ~bits
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
        target[i >> 3] = <uint8_t> bits
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
    """Narrowed decimals back to 16 bytes."""
    cdef Py_ssize_t i
    cdef word value
    cdef int64_t low
    for i in range(tile.n):
        memcpy(&value, tile.rows[i] + at, sizeof(word))
        low = <int32_t> value if word is uint32_t else <int64_t> value
        target[2 * i] = <uint64_t> low
        target[2 * i + 1] = <uint64_t> (low >> 63)


cdef inline void read_cell(const Node* node, const uint8_t* source, uint8_t* target) noexcept nogil:
    """One fixed-width value, sign-extended if it was narrowed."""
    memcpy(target, source, node.row_width)
    if node.row_width < node.width:
        memset(
            target + node.row_width,
            0xFF if source[node.row_width - 1] & 0x80 else 0,
            node.width - node.row_width,
        )


cdef int read_sizes(Py_ssize_t c, bint nulls, Tile* tile, Place* place) except -1 nogil:
    """The lengths of a variable column; the tails move behind them."""
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


cdef const uint8_t* checked_varint(
    const uint8_t* at, const uint8_t* end, uint64_t* value
) noexcept nogil:
    """The byte after the varint; NULL if it passes the end or is longer than needed."""
    cdef const uint8_t* after = get_varint(at, end, value)
    if after == NULL or (after - at > 1 and (after - 1)[0] == 0):
        return NULL
    return after


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
    """The ends of a tile's strings; values.size is still where they start."""
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


cdef int grow_bytes(Builder* builder, int64_t extra) except -1 nogil:
    """Room for the bytes of strings, and 16 more for copies that write too much."""
    cdef int64_t total = <int64_t> builder.values.size + extra
    if builder.node.kind == KIND_BYTES and total > INT32_MAX:
        with gil:
            raise MemoryLimitError(
                f"{total} bytes of strings do not fit one batch; "
                "read fewer rows at a time, or store the column as a large_string or large_binary"
            )
    reserve(&builder.values, extra + 16)
    return 0


cdef int read_nested(Builder* builder, Py_ssize_t c, Tile* tile, Place* place) except -1 nogil:
    cdef Py_ssize_t i
    cdef const uint8_t* end
    cdef const uint8_t* after
    for i in range(tile.n):
        place.row = tile.first + i
        if (tile.rows[i][c >> 3] >> (c & 7)) & 1:
            add_null(builder)
            continue
        end = tile.tails[i] + tile.sizes[i]
        after = add_value(builder, tile.tails[i], end)
        if after != end:
            corrupt(b"a nested value is shorter than its length")
        tile.tails[i] = end
    return 0


cdef int push_bit(Buffer* bits, int64_t at, bint value) except -1 nogil:
    """Bit number `at`, which is the next one."""
    if at & 7 == 0:
        reserve(bits, 1)
        bits.data[bits.size] = 0
        bits.size += 1
    bits.data[at >> 3] |= <uint8_t> (value << (at & 7))
    return 0


cdef int push_offset(Builder* builder, int64_t value) except -1 nogil:
    cdef int32_t narrow = <int32_t> value
    if builder.node.kind == KIND_BYTES or builder.node.kind == KIND_LIST:
        if value > INT32_MAX:
            with gil:
                raise MemoryLimitError(
                    f"{value} list elements do not fit one batch; read fewer rows at a time, or "
                    "store the column as a large_list"
                )
        reserve(&builder.offsets, 4)
        memcpy(builder.offsets.data + builder.offsets.size, &narrow, 4)
        builder.offsets.size += 4
    else:
        reserve(&builder.offsets, 8)
        memcpy(builder.offsets.data + builder.offsets.size, &value, 8)
        builder.offsets.size += 8
    return 0


cdef int add_child_null(Builder* builder) except -1 nogil:
    if builder.node.required:
        corrupt(b"a map has a null key or entry")
    push_bit(&builder.validity, builder.length, False)
    builder.length += 1
    builder.null_count += 1
    return add_null(builder)


cdef const uint8_t* add_child(
    Builder* builder, const uint8_t* at, const uint8_t* end
) except NULL nogil:
    push_bit(&builder.validity, builder.length, True)
    builder.length += 1
    return add_value(builder, at, end)


cdef int add_null(Builder* builder) except -1 nogil:
    """What a null takes in the buffers other than validity; `length` counts it already."""
    cdef const Node* node = builder.node
    cdef int64_t k
    if node.kind == KIND_BOOL:
        push_bit(&builder.values, builder.length - 1, False)
    elif node.kind == KIND_FIXED:
        reserve(&builder.values, node.width)
        memset(builder.values.data + builder.values.size, 0, node.width)
        builder.values.size += node.width
    elif node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        push_offset(builder, builder.values.size)
    elif node.kind == KIND_LIST or node.kind == KIND_LARGE_LIST:
        push_offset(builder, builder.children.length)
    elif node.kind == KIND_STRUCT:
        for k in range(node.n_children):
            add_hidden(&builder.children[k])
    elif node.kind == KIND_FIXED_LIST:
        for k in range(node.width):
            add_hidden(builder.children)
    return 0


cdef int add_hidden(Builder* builder) except -1 nogil:
    """A slot under a null parent; null itself."""
    push_bit(&builder.validity, builder.length, False)
    builder.length += 1
    builder.null_count += 1
    return add_null(builder)


cdef const uint8_t* add_value(
    Builder* builder, const uint8_t* at, const uint8_t* end
) except NULL nogil:
    """Read one value that is not null; the byte behind it."""
    cdef const Node* node = builder.node
    cdef uint64_t size = 0
    if node.kind == KIND_FIXED:
        if end - at < node.row_width:
            corrupt(b"a nested value passes its end")
        reserve(&builder.values, node.width)
        read_cell(node, at, builder.values.data + builder.values.size)
        builder.values.size += node.width
        return at + node.row_width
    if node.kind == KIND_BOOL:
        if end - at < 1 or at[0] > 1:
            corrupt(b"a nested boolean is neither 0 nor 1")
        push_bit(&builder.values, builder.length - 1, at[0])
        return at + 1
    if node.kind == KIND_STRUCT:
        return add_children(builder, node.n_children, at, end)
    if node.kind == KIND_FIXED_LIST:
        return add_children(builder, node.width, at, end)
    if node.kind == KIND_NULL:
        corrupt(b"a value in a column of nulls")
    at = checked_varint(at, end, &size)
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        if at == NULL or size > <uint64_t> (end - at):
            corrupt(b"a nested length passes its end")
        grow_bytes(builder, size)
        copy_bytes(builder.values.data + builder.values.size, at, size)
        builder.values.size += size
        push_offset(builder, builder.values.size)
        return at + size
    if at == NULL or size > 8 * <uint64_t> (end - at):  # each element has a bit at least
        corrupt(b"a nested list is longer than its bytes")
    at = add_children(builder, size, at, end)
    push_offset(builder, builder.children.length)
    return at


cdef const uint8_t* add_children(
    Builder* builder, int64_t n, const uint8_t* at, const uint8_t* end
) except NULL nogil:
    """The children of a struct, or the elements of a list, behind their null bitmap."""
    cdef const uint8_t* bitmap = at
    cdef bint struct_like = builder.node.kind == KIND_STRUCT
    cdef Builder* child
    cdef int64_t k
    if end - at < (n + 7) >> 3 or not clean_bitmap(bitmap, n):
        corrupt(b"a nested null bitmap passes its end")
    at += (n + 7) >> 3
    for k in range(n):
        child = &builder.children[k if struct_like else 0]
        if (bitmap[k >> 3] >> (k & 7)) & 1:
            add_child_null(child)
        else:
            at = add_child(child, at, end)
    return at


cdef int export_builder(Builder* builder, ArrowArray* array) except -1 nogil:
    """Children first; on failure what was exported so far belongs to `array` all the same."""
    cdef Py_ssize_t i
    cdef const Node* node = builder.node
    memset(array, 0, sizeof(ArrowArray))
    array.release = release_array
    array.length = builder.length
    array.null_count = builder.length if node.kind == KIND_NULL else builder.null_count
    array.buffers = <const void**> calloc(3 + builder.n_children, sizeof(void*))
    array.children = <ArrowArray**> calloc(builder.n_children + 1, sizeof(void*))
    if array.buffers == NULL or array.children == NULL:
        with gil:
            raise MemoryError("cannot allocate an Arrow array")
    for i in range(builder.n_children):
        array.children[i] = <ArrowArray*> calloc(1, sizeof(ArrowArray))
        if array.children[i] == NULL:
            with gil:
                raise MemoryError("cannot allocate an Arrow array")
        array.n_children = i + 1
        export_builder(&builder.children[i], array.children[i])
    if node.kind == KIND_NULL:
        return 0
    array.n_buffers = 1
    if builder.null_count:
        hand_over(&builder.validity, array, 0)
    if node.kind == KIND_BOOL or node.kind == KIND_FIXED:
        array.n_buffers = 2
        hand_over(&builder.values, array, 1)
    elif node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        array.n_buffers = 3
        hand_over(&builder.offsets, array, 1)
        shrink(&builder.values)
        hand_over(&builder.values, array, 2)
    elif node.kind == KIND_LIST or node.kind == KIND_LARGE_LIST:
        array.n_buffers = 2
        hand_over(&builder.offsets, array, 1)
    return 0


cdef void hand_over(Buffer* buffer, ArrowArray* array, int place) noexcept nogil:
    array.buffers[place] = buffer.data
    buffer.data = NULL
    release(buffer)


cdef void shrink(Buffer* buffer) noexcept nogil:
    """Give back what growing by half left over."""
    cdef void* data
    if buffer.capacity > 4096 and buffer.capacity - buffer.size > buffer.size >> 3:
        data = realloc(buffer.data, buffer.size + 16)
        if data != NULL:
            buffer.data = <uint8_t*> data


cdef void release_array(ArrowArray* array) noexcept nogil:
    """The callback of the Arrow C data interface. A consumer may have taken children out."""
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    if array.buffers != NULL:
        for i in range(array.n_buffers):
            free(<void*> array.buffers[i])
    free(array.buffers)
    free(array.children)
    array.release = NULL
