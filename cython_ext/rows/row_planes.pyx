"""Transposed rows -> Arrow buffers, column by column, without intermediate rows.

The bytes of a fixed-width column are adjacent planes. Its values are these bytes interleaved, for
16 rows at a time in vector registers. A string column with one length in all rows is handled
likewise. That takes half the time of transposing, copying and reading rows (docs/design/store.md).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.rows.arrow_read cimport KIND_BOOL, KIND_BYTES, KIND_FIXED, KIND_NULL, Node
from lsmstate.cython_ext.base.coding cimport load_u64
from lsmstate.cython_ext.rows.row_builder cimport Builder, grow_bytes, reserve_rows
from lsmstate.cython_ext.rows.row_layout cimport WIDEST_TRANSPOSED, Layout, gathered_bits, put_bits

cdef enum:
    VECTOR = 16  # bytes, and rows taken together: some behind the last are written, too (SPARE_ROWS)

cdef extern from *:
    """
    typedef unsigned char lsm_vector __attribute__((vector_size(16)));
    typedef int lsm_ints __attribute__((vector_size(16)));
    typedef long long lsm_longs __attribute__((vector_size(16)));
    #ifdef __clang__
    #define LSM_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
    #else
    #define LSM_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (lsm_vector){__VA_ARGS__})
    #endif
    #define LOW_BYTES(a, b) \\
        LSM_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
    #define HIGH_BYTES(a, b) \\
        LSM_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
    #define LOW_INTS(a, b) \\
        LSM_SHUFFLE(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23)
    #define HIGH_INTS(a, b) \\
        LSM_SHUFFLE(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31)
    #define LOW_LONGS(a, b) \\
        LSM_SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
    #define HIGH_LONGS(a, b) \\
        LSM_SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
    #define INT_SIGNS(a) ((lsm_vector) ((lsm_ints) (a) >> 31))
    #define LONG_SIGNS(a) ((lsm_vector) ((lsm_longs) (a) >> 63))
    """
    ctypedef struct Vector "lsm_vector":
        pass
    # The first and the second half of what two vectors give, one byte (int, long) of each by turns.
    Vector LOW_BYTES(Vector, Vector) noexcept nogil
    Vector HIGH_BYTES(Vector, Vector) noexcept nogil
    Vector LOW_INTS(Vector, Vector) noexcept nogil
    Vector HIGH_INTS(Vector, Vector) noexcept nogil
    Vector LOW_LONGS(Vector, Vector) noexcept nogil
    Vector HIGH_LONGS(Vector, Vector) noexcept nogil
    int __builtin_popcount(unsigned int) nogil
    # All bits of an int (a long) like its highest one.
    Vector INT_SIGNS(Vector) noexcept nogil
    Vector LONG_SIGNS(Vector) noexcept nogil


cdef bint are_alike(const Layout* layout, const Planes* planes) noexcept nogil:
    cdef const Node* node
    cdef const uint8_t* plane
    cdef size_t at = <size_t> layout.header
    cdef Py_ssize_t columns = layout.root.n_children, c
    cdef Py_ssize_t nulls
    cdef uint8_t length
    if not layout.is_planar or not at <= planes.width <= WIDEST_TRANSPOSED:
        return False
    if columns & 7 and _any_bits(_plane(planes, columns >> 3), planes.n) >> (columns & 7):
        return False
    for c in range(columns):
        node = &layout.root.children[c]
        if node.kind == KIND_FIXED:
            continue
        if node.kind == KIND_BOOL:
            if _any_bits(_plane(planes, layout.places[c]), planes.n) > 1:
                return False
            continue
        nulls = _nulls(planes, c)
        if node.kind == KIND_NULL:
            if nulls != planes.n:
                return False
            continue
        if nulls == planes.n:
            continue
        if nulls or at >= planes.width:
            return False
        plane = _plane(planes, at)
        length = plane[0]
        if length >= 0x80 or not _is_constant(plane, planes.n):
            return False
        at += 1 + <size_t> length
        if at > planes.width:
            return False
    return at == planes.width


cdef int read_planes(
    const Layout* layout, const Planes* planes, int64_t expected, Builder* builder
) except -1 nogil:
    cdef int64_t first = builder.length
    cdef size_t tail = <size_t> layout.header
    cdef Py_ssize_t c
    cdef uint8_t nulls = 0
    cdef Builder* column
    reserve_rows(builder, first + planes.n, expected)
    for c in range(builder.n_children):
        column = &builder.children[c]
        if c & 7 == 0:
            nulls = _any_bits(_plane(planes, c >> 3), planes.n)
        if (nulls >> (c & 7)) & 1:
            column.null_count += _read_nulls(planes, c, column.validity.data, first)
        if column.node.kind == KIND_FIXED:
            _read_fixed(
                column.node, planes, layout.places[c],
                column.values.data + first * column.node.width,
            )
        elif column.node.kind == KIND_BOOL:
            _read_bools(_plane(planes, layout.places[c]), planes.n, column.values.data, first)
        elif column.node.kind != KIND_NULL:
            tail = _read_bytes(planes, tail, (nulls >> (c & 7)) & 1, column)
        column.length = first + planes.n
    builder.length = first + planes.n
    return 0


cdef inline const uint8_t* _plane(const Planes* planes, size_t byte) noexcept nogil:
    return planes.data + byte * planes.stride


cdef inline uint8_t _any_bits(const uint8_t* plane, Py_ssize_t n) noexcept nogil:
    """Return the bits that are set in any byte."""
    cdef uint8_t found = 0
    cdef Py_ssize_t i
    for i in range(n):
        found |= plane[i]
    return found


cdef inline bint _is_constant(const uint8_t* plane, Py_ssize_t n) noexcept nogil:
    cdef uint8_t differing = 0
    cdef Py_ssize_t i
    for i in range(n):
        differing |= plane[i] ^ plane[0]
    return differing == 0


cdef Py_ssize_t _nulls(const Planes* planes, Py_ssize_t c) noexcept nogil:
    cdef const uint8_t* plane = _plane(planes, c >> 3)
    cdef Py_ssize_t found = 0, i
    for i in range(planes.n):
        found += (plane[i] >> (c & 7)) & 1
    return found


cdef int64_t _read_nulls(
    const Planes* planes, Py_ssize_t c, uint8_t* validity, int64_t first
) noexcept nogil:
    """Clear the bits of nulls; return how many there are."""
    cdef const uint8_t* plane = _plane(planes, c >> 3)
    cdef int64_t found = 0
    cdef Py_ssize_t i
    cdef uint32_t nulls
    for i in range(0, planes.n, 8):
        nulls = gathered_bits(load_u64(plane + i) >> (c & 7))
        if planes.n - i < 8:  # who comes next is valid until it is read
            nulls &= (<uint32_t> 1 << (planes.n - i)) - 1
        put_bits(validity, first + i, ~nulls)
        found += __builtin_popcount(nulls)
    return found


cdef void _read_bools(
    const uint8_t* plane, Py_ssize_t n, uint8_t* target, int64_t first
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(0, n, 8):
        put_bits(target, first + i, gathered_bits(load_u64(plane + i)))


cdef void _read_fixed(
    const Node* node, const Planes* planes, size_t at, uint8_t* target
) noexcept nogil:
    cdef const uint8_t* plane = _plane(planes, at)
    cdef Py_ssize_t i
    if node.width == 2 and node.row_width == 2:
        _interleave_values(plane, planes.stride, planes.n, 2, target)
    elif node.width == 4 and node.row_width == 4:
        _interleave_values(plane, planes.stride, planes.n, 4, target)
    elif node.width == 8 and node.row_width == 8:
        _interleave_values(plane, planes.stride, planes.n, 8, target)
    elif node.width == 16 and node.row_width == 4:
        _widen_ints(plane, planes.stride, planes.n, target)
    elif node.width == 16 and node.row_width == 8:
        _widen_longs(plane, planes.stride, planes.n, target)
    else:
        _interleave(plane, planes.stride, planes.n, node.row_width, node.width, target)
        if node.row_width < node.width:
            plane += (node.row_width - 1) * planes.stride
            for i in range(planes.n):
                memset(
                    target + i * node.width + node.row_width, 0xFF if plane[i] & 0x80 else 0,
                    node.width - node.row_width,
                )


cdef size_t _read_bytes(
    const Planes* planes, size_t at, bint is_null, Builder* column
) except 0 nogil:
    """Read strings of one length, or of none; return where the next ones lie."""
    cdef size_t size = 0 if is_null else _plane(planes, at)[0]
    cdef int64_t end = <int64_t> column.values.size
    cdef int64_t first = column.length
    cdef Py_ssize_t i
    cdef int32_t* narrow
    cdef int64_t* wide
    if not is_null:
        at += 1
    grow_bytes(column, <int64_t> size * planes.n)
    _interleave(
        _plane(planes, at), planes.stride, planes.n, size, size, column.values.data + end
    )
    column.values.size += size * <size_t> planes.n
    if column.node.kind == KIND_BYTES:
        narrow = <int32_t*> column.offsets.data + first + 1
        for i in range(planes.n):
            end += <int64_t> size
            narrow[i] = <int32_t> end
        column.offsets.size += planes.n * 4
    else:
        wide = <int64_t*> column.offsets.data + first + 1
        for i in range(planes.n):
            end += <int64_t> size
            wide[i] = end
        column.offsets.size += planes.n * 8
    return at + size


cdef void _interleave(
    const uint8_t* plane, Py_ssize_t stride, Py_ssize_t n, Py_ssize_t size, Py_ssize_t step,
    uint8_t* target,
) noexcept nogil:
    """Write values of `size` bytes each, to places `step` bytes apart."""
    cdef Py_ssize_t i, j
    if size == 1 and step == 1:
        memcpy(target, plane, n)
        return
    for j in range(0, size - 7, 8):
        _scatter_longs(plane + j * stride, stride, n, step, target + j)
    for j in range(size & ~7, size):
        for i in range(n):
            target[i * step + j] = plane[j * stride + i]


cdef inline Vector _loaded(const uint8_t* source) noexcept nogil:
    cdef Vector vector
    memcpy(&vector, source, VECTOR)
    return vector


cdef inline void _put(uint8_t* target, Vector vector) noexcept nogil:
    memcpy(target, &vector, VECTOR)


cdef inline void _weave(const Vector* source, Vector* target, int n) noexcept nogil:
    """Interleave the bytes of the first half of n vectors and of the second. After log2(n) times
    the vectors of n planes are the values of 16 rows."""
    cdef int i
    for i in range(n // 2):
        target[2 * i] = LOW_BYTES(source[i], source[i + n // 2])
        target[2 * i + 1] = HIGH_BYTES(source[i], source[i + n // 2])


cdef inline void _load_values(
    const uint8_t* plane, size_t stride, int size, Vector* values
) noexcept nogil:
    """Load 16 values of 2, 4 or 8 bytes each."""
    cdef Vector woven[8]
    cdef int j
    for j in range(size):
        values[j] = _loaded(plane + j * stride)
    _weave(values, woven, size)
    if size == 4:
        _weave(woven, values, 4)
        return
    if size == 8:
        _weave(woven, values, 8)
        _weave(values, woven, 8)
    memcpy(values, woven, size * VECTOR)


cdef inline void _interleave_values(
    const uint8_t* plane, size_t stride, Py_ssize_t n, int size, uint8_t* target
) noexcept nogil:
    cdef Vector values[8]
    cdef Py_ssize_t i
    for i in range(0, n, 16):
        _load_values(plane + i, stride, size, values)
        memcpy(target + size * i, values, size * VECTOR)


cdef void _scatter_longs(
    const uint8_t* plane, size_t stride, Py_ssize_t n, size_t step, uint8_t* target
) noexcept nogil:
    """Write eight bytes of each value, and none after the last."""
    cdef Vector values[8]
    cdef Py_ssize_t i, k
    for i in range(0, n, 16):
        _load_values(plane + i, stride, 8, values)
        for k in range(min(<Py_ssize_t> VECTOR, n - i)):
            memcpy(target + (i + k) * step, <uint8_t*> values + 8 * k, 8)


cdef void _widen_ints(
    const uint8_t* plane, size_t stride, Py_ssize_t n, uint8_t* target
) noexcept nogil:
    """Widen decimals of 4 bytes to 16: each is followed by three times its sign."""
    cdef Vector values[8]
    cdef Vector signs, low, high
    cdef Py_ssize_t i
    cdef int j
    for i in range(0, n, 16):
        _load_values(plane + i, stride, 4, values)
        for j in range(4):
            signs = INT_SIGNS(values[j])
            low = LOW_INTS(values[j], signs)
            _put(target, LOW_LONGS(low, LOW_INTS(signs, signs)))
            _put(target + VECTOR, HIGH_LONGS(low, LOW_INTS(signs, signs)))
            high = HIGH_INTS(values[j], signs)
            _put(target + 2 * VECTOR, LOW_LONGS(high, HIGH_INTS(signs, signs)))
            _put(target + 3 * VECTOR, HIGH_LONGS(high, HIGH_INTS(signs, signs)))
            target += 4 * VECTOR


cdef void _widen_longs(
    const uint8_t* plane, size_t stride, Py_ssize_t n, uint8_t* target
) noexcept nogil:
    """Widen decimals of 8 bytes to 16."""
    cdef Vector values[8]
    cdef Vector signs
    cdef Py_ssize_t i
    cdef int j
    for i in range(0, n, 16):
        _load_values(plane + i, stride, 8, values)
        for j in range(8):
            signs = LONG_SIGNS(values[j])
            _put(target, LOW_LONGS(values[j], signs))
            _put(target + VECTOR, HIGH_LONGS(values[j], signs))
            target += 2 * VECTOR
