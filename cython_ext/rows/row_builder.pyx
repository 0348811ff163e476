"""Growing Arrow columns: memory, single values at any depth, and export to Arrow.

The bytes are not trusted: every length is checked against the end of its value before it is used.
"""

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport (
    KIND_BOOL,
    KIND_BYTES,
    KIND_FIXED,
    KIND_FIXED_LIST,
    KIND_LARGE_BYTES,
    KIND_LARGE_LIST,
    KIND_LIST,
    KIND_NULL,
    KIND_STRUCT,
    Node,
)
from lsmstate.cython_ext.base.coding cimport Buffer, release
from lsmstate.cython_ext.rows.row_layout cimport (
    SPARE_BITS, Place, Tile, checked_varint, clean_bitmap, copy_bytes, read_cell,
)
from lsmstate.cython_ext.memory.buffer_pool cimport (
    Owned, SpareBuffers, give_back, hold_spares, leave_spares, reserve_spare, trim_buffer,
)

from lsmstate.cython_ext.errors import CorruptionError, MemoryLimitError


cdef int corrupt(const char* what) except -1 nogil:
    with gil:
        raise CorruptionError(what.decode())


cdef int open_builder(
    Builder* builder, const Node* node, SpareBuffers* spares
) except -1 nogil:
    """Open a builder in zeroed memory; close_builder frees it also after a failure."""
    cdef Py_ssize_t i
    builder.node = node
    builder.spares = spares
    if node.kind == KIND_BYTES or node.kind == KIND_LIST:
        push_offset(builder, 0)
    elif node.kind == KIND_LARGE_BYTES or node.kind == KIND_LARGE_LIST:
        push_offset(builder, 0)
    reserve_spare(builder.spares, &builder.values, 8)
    if node.n_children == 0:
        return 0
    builder.children = <Builder*> calloc(node.n_children, sizeof(Builder))
    if builder.children == NULL:
        with gil:
            raise MemoryError(f"cannot allocate {node.n_children} column builders")
    builder.n_children = node.n_children
    for i in range(node.n_children):
        open_builder(&builder.children[i], &node.children[i], spares)
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


cdef int64_t builder_bytes(const Builder* builder) noexcept nogil:
    cdef int64_t held = <int64_t> (builder.validity.size + builder.offsets.size)
    cdef Py_ssize_t i
    if builder.node.kind == KIND_BOOL or builder.node.kind == KIND_FIXED:
        held += <int64_t> values_size(builder.node, builder.length)
    else:
        held += <int64_t> builder.values.size
    for i in range(builder.n_children):
        held += builder_bytes(&builder.children[i])
    return held


cdef int reserve_rows(Builder* batch, int64_t rows, int64_t expected) except -1 nogil:
    cdef int64_t room = INT64_MAX
    cdef Py_ssize_t c
    if rows <= batch.room:
        return 0
    if expected < rows:  # not foreseen: not again for a while
        expected = rows if batch.room == 0 else rows + (rows >> 2)
    for c in range(batch.n_children):
        room = min(
            room,
            _make_column_room(&batch.children[c], batch.length, expected, batch.spare_rows),
        )
    # Buffers may be larger than asked for: growing all for one row more would copy them.
    for c in range(batch.n_children):
        _start_validity(&batch.children[c].validity, room)
    batch.room = room
    return 0


cdef int64_t _make_column_room(
    Builder* column, int64_t length, int64_t rows, int64_t spare_rows
) except -1 nogil:
    """Make room; return for how many rows there is room then. A buffer grows by its size, which is
    therefore set here: it follows from the length, and is otherwise set at the end."""
    cdef const Node* node = column.node
    cdef size_t bits = <size_t> (length + 7) >> 3
    cdef int64_t more = rows - length
    cdef int64_t room
    column.validity.size = bits
    reserve_spare(column.spares, &column.validity, ((more + 7) >> 3) + SPARE_BITS // 8)
    room = _bits_fitting(&column.validity)
    if node.kind == KIND_BOOL:
        column.values.size = bits
        reserve_spare(column.spares, &column.values, ((more + 7) >> 3) + SPARE_BITS // 8)
        room = min(room, _bits_fitting(&column.values))
    elif node.kind == KIND_FIXED and node.width:
        column.values.size = length * node.width
        reserve_spare(column.spares, &column.values, (more + spare_rows) * node.width)
        room = min(room, <int64_t> column.values.capacity // node.width - spare_rows)
    elif node.kind == KIND_BYTES or node.kind == KIND_LIST:
        reserve_spare(column.spares, &column.offsets, more * 4)
        room = min(room, <int64_t> column.offsets.capacity // 4 - 1)
    elif node.kind == KIND_LARGE_BYTES or node.kind == KIND_LARGE_LIST:
        reserve_spare(column.spares, &column.offsets, more * 8)
        room = min(room, <int64_t> column.offsets.capacity // 8 - 1)
    return room


cdef inline int64_t _bits_fitting(const Buffer* bits) noexcept nogil:
    return 8 * <int64_t> bits.capacity - SPARE_BITS


cdef void _start_validity(Buffer* validity, int64_t room) noexcept nogil:
    """Mark the next rows valid until a null is read."""
    cdef size_t size = <size_t> (room + 7) >> 3
    memset(validity.data + validity.size, 0xFF, size - validity.size)
    validity.size = size


cdef int grow_bytes(Builder* builder, int64_t extra) except -1 nogil:
    """Make room for the bytes of strings, and 16 more for copies that write too much."""
    cdef int64_t total = <int64_t> builder.values.size + extra
    if builder.node.kind == KIND_BYTES and total > INT32_MAX:
        with gil:
            raise MemoryLimitError(
                f"{total} bytes of strings do not fit one batch; "
                "read fewer rows at a time, or store the column as a large_string or large_binary"
            )
    return reserve_spare(builder.spares, &builder.values, extra + 16)


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


cdef int push_bit(
    const Builder* builder, Buffer* bits, int64_t at, bint value
) except -1 nogil:
    """Write bit number `at`, which is the next one."""
    if at & 7 == 0:
        reserve_spare(builder.spares, bits, 1)
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
        reserve_spare(builder.spares, &builder.offsets, 4)
        memcpy(builder.offsets.data + builder.offsets.size, &narrow, 4)
        builder.offsets.size += 4
    else:
        reserve_spare(builder.spares, &builder.offsets, 8)
        memcpy(builder.offsets.data + builder.offsets.size, &value, 8)
        builder.offsets.size += 8
    return 0


cdef int add_child_null(Builder* builder) except -1 nogil:
    if builder.node.required:
        corrupt(b"a map has a null key or entry")
    push_bit(builder, &builder.validity, builder.length, False)
    builder.length += 1
    builder.null_count += 1
    return add_null(builder)


cdef const uint8_t* add_child(
    Builder* builder, const uint8_t* at, const uint8_t* end
) except NULL nogil:
    push_bit(builder, &builder.validity, builder.length, True)
    builder.length += 1
    return add_value(builder, at, end)


cdef int add_null(Builder* builder) except -1 nogil:
    """Add a null to the buffers other than validity; `length` already counts it."""
    cdef const Node* node = builder.node
    cdef int64_t k
    if node.kind == KIND_BOOL:
        push_bit(builder, &builder.values, builder.length - 1, False)
    elif node.kind == KIND_FIXED:
        reserve_spare(builder.spares, &builder.values, node.width)
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
    """Add a slot under a null parent, which is null itself."""
    push_bit(builder, &builder.validity, builder.length, False)
    builder.length += 1
    builder.null_count += 1
    return add_null(builder)


cdef const uint8_t* add_value(
    Builder* builder, const uint8_t* at, const uint8_t* end
) except NULL nogil:
    """Read one value that is not null; return the next byte."""
    cdef const Node* node = builder.node
    cdef uint64_t size = 0
    if node.kind == KIND_FIXED:
        if end - at < node.row_width:
            corrupt(b"a nested value passes its end")
        reserve_spare(builder.spares, &builder.values, node.width)
        read_cell(node, at, builder.values.data + builder.values.size)
        builder.values.size += node.width
        return at + node.row_width
    if node.kind == KIND_BOOL:
        if end - at < 1 or at[0] > 1:
            corrupt(b"a nested boolean is neither 0 nor 1")
        push_bit(builder, &builder.values, builder.length - 1, at[0])
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
    if at == NULL or size > 8 * <uint64_t> (end - at):  # each element has at least one bit
        corrupt(b"a nested list is longer than its bytes")
    at = add_children(builder, size, at, end)
    push_offset(builder, builder.children.length)
    return at


cdef const uint8_t* add_children(
    Builder* builder, int64_t n, const uint8_t* at, const uint8_t* end
) except NULL nogil:
    """Read the children of a struct, or the elements of a list, after their null bitmap."""
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
    """Export, children first; after a failure `array` owns what was exported so far."""
    cdef Py_ssize_t i
    cdef const Node* node = builder.node
    memset(array, 0, sizeof(ArrowArray))
    array.release = release_array
    array.length = builder.length
    array.null_count = builder.length if node.kind == KIND_NULL else builder.null_count
    array.buffers = <const void**> calloc(3 + builder.n_children, sizeof(void*))
    array.children = <ArrowArray**> calloc(builder.n_children + 1, sizeof(void*))
    array.private_data = calloc(1, sizeof(Owned))
    if array.buffers == NULL or array.children == NULL or array.private_data == NULL:
        with gil:
            raise MemoryError("cannot allocate an Arrow array")
    if builder.spares != NULL:
        hold_spares(builder.spares)
        (<Owned*> array.private_data).spares = builder.spares
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
        builder.validity.size = <size_t> ((builder.length + 7) >> 3)
        trim_buffer(&builder.validity)
        hand_over(&builder.validity, array, 0)
    if node.kind == KIND_BOOL or node.kind == KIND_FIXED:
        array.n_buffers = 2
        builder.values.size = values_size(node, builder.length)
        trim_buffer(&builder.values)
        hand_over(&builder.values, array, 1)
    elif node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        array.n_buffers = 3
        shrink_offsets(builder)
        hand_over(&builder.offsets, array, 1)
        trim_buffer(&builder.values)
        hand_over(&builder.values, array, 2)
    elif node.kind == KIND_LIST or node.kind == KIND_LARGE_LIST:
        array.n_buffers = 2
        shrink_offsets(builder)
        hand_over(&builder.offsets, array, 1)
    return 0


cdef size_t values_size(const Node* node, int64_t n) noexcept nogil:
    """Return the size of values of one width."""
    return <size_t> ((n + 7) >> 3 if node.kind == KIND_BOOL else n * node.width)


cdef void shrink_offsets(Builder* builder) noexcept nogil:
    """Set the number of offsets from the length: gathering does not count them."""
    cdef bint is_large = builder.node.kind == KIND_LARGE_BYTES or builder.node.kind == KIND_LARGE_LIST
    builder.offsets.size = <size_t> (builder.length + 1) * (8 if is_large else 4)
    trim_buffer(&builder.offsets)


cdef void hand_over(Buffer* buffer, ArrowArray* array, int place) noexcept nogil:
    array.buffers[place] = buffer.data
    (<Owned*> array.private_data).capacities[place] = <int64_t> buffer.capacity
    buffer.data = NULL
    release(buffer)


cdef void release_array(ArrowArray* array) noexcept nogil:
    """The release callback of the Arrow C data interface. A consumer may have moved
    children out."""
    cdef Owned* owned = <Owned*> array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    if owned != NULL:
        for i in range(array.n_buffers):
            give_back(owned.spares, <void*> array.buffers[i], owned.capacities[i])
        if owned.spares != NULL:
            leave_spares(owned.spares)
    free(owned)
    free(array.buffers)
    free(array.children)
    array.release = NULL
