"""Arrow columns -> the bytes of keys, a column at a time; key_codec.pyx describes the encoding."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport (
    KIND_BOOL,
    KIND_BYTES,
    KIND_FIXED,
    KIND_LARGE_BYTES,
    KIND_NULL,
    KIND_STRUCT,
    ORDER_DECIMAL,
    ORDER_FLOAT,
    ORDER_INTERVAL,
    ORDER_RAW,
    ORDER_SIGNED,
    Node,
    bit_at,
    bytes_at,
    has_nulls,
    is_valid,
    list_at,
)

cdef extern from *:
    uint16_t __builtin_bswap16(uint16_t) noexcept nogil
    uint32_t __builtin_bswap32(uint32_t) noexcept nogil
    uint64_t __builtin_bswap64(uint64_t) noexcept nogil

cdef enum:
    END = 0  # of a list
    NULL_VALUE = 1  # markers of a nested value
    SOME_VALUE = 2

ctypedef fused word:
    uint8_t
    uint16_t
    uint32_t
    uint64_t


cdef void mark_nulls(
    const Node* node, const ArrowArray* array, int64_t start, const KeyRows* keys
) noexcept nogil:
    cdef Py_ssize_t i
    start += array.offset
    if node.kind == KIND_NULL:
        for i in range(keys.n):
            keys.valid[i] = 0
    elif has_nulls(array):
        for i in range(keys.n):
            keys.valid[i] &= bit_at(array.buffers[0], start + i)


cdef void add_sizes(
    const Node* node, const ArrowArray* array, int64_t start, const KeyRows* keys
) noexcept nogil:
    cdef Py_ssize_t i
    start += array.offset
    if node.kind == KIND_BOOL or node.kind == KIND_FIXED:
        for i in range(keys.n):
            keys.sizes[i] += node.key_width if keys.valid[i] else 0
    else:
        for i in range(keys.n):
            if keys.valid[i]:
                keys.sizes[i] += size_of(node, array, start + i)


cdef bint put_column(
    const Node* node,
    const ArrowArray* array,
    int64_t start,
    const KeyRows* keys,
    uint8_t** cursors,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef const uint8_t* values
    start += array.offset
    if node.kind == KIND_FIXED and node.order > ORDER_RAW and node.order <= ORDER_SIGNED:
        values = <const uint8_t*> array.buffers[1] + start * node.width
        if node.width == 1:
            put_integers(<const uint8_t*> values, node, keys, cursors)
        elif node.width == 2:
            put_integers(<const uint16_t*> values, node, keys, cursors)
        elif node.width == 4:
            put_integers(<const uint32_t*> values, node, keys, cursors)
        else:
            put_integers(<const uint64_t*> values, node, keys, cursors)
        return True
    for i in range(keys.n):
        if keys.valid[i]:
            cursors[i] = put_value(node, array, start + i, cursors[i])
            if cursors[i] == NULL:
                return False
    return True


cdef void put_integers(
    const word* values, const Node* node, const KeyRows* keys, uint8_t** cursors
) noexcept nogil:
    cdef Py_ssize_t i
    cdef word flip = sign_bit[word](0) if node.order == ORDER_SIGNED else <word> 0
    for i in range(keys.n):
        if keys.valid[i]:
            cursors[i] = put_big_endian(<word> (values[i] ^ flip), cursors[i])


cdef inline word sign_bit(word unused) noexcept nogil:
    return <word> ((<uint64_t> 1) << (8 * sizeof(word) - 1))


cdef inline uint8_t* put_big_endian(word value, uint8_t* target) noexcept nogil:
    if word is uint16_t:
        value = __builtin_bswap16(value)
    elif word is uint32_t:
        value = __builtin_bswap32(value)
    elif word is uint64_t:
        value = __builtin_bswap64(value)
    memcpy(target, &value, sizeof(word))
    return target + sizeof(word)


cdef inline uint8_t* put_signed(const word* source, uint8_t* target) noexcept nogil:
    cdef word value
    memcpy(&value, source, sizeof(word))
    return put_big_endian(<word> (value ^ sign_bit[word](0)), target)


cdef inline uint8_t* put_float(const word* source, word infinity, uint8_t* target) noexcept nogil:
    """`infinity` has the bits of +inf; what is above it is NaN."""
    cdef word value
    cdef word sign = sign_bit[word](0)
    cdef word magnitude
    memcpy(&value, source, sizeof(word))
    magnitude = <word> (value & ~sign)
    if magnitude > infinity:  # one NaN: positive and quiet
        value = <word> (infinity | ((infinity & -infinity) >> 1))
    elif magnitude == 0:
        value = 0
    value = <word> (~value if value & sign else value | sign)
    return put_big_endian(value, target)


cdef uint8_t* put_decimal(const uint8_t* source, const Node* node, uint8_t* target) noexcept nogil:
    """The low key_width bytes of the value, NULL if the others are not its sign."""
    cdef uint8_t sign = 0xFF if source[node.width - 1] & 0x80 else 0
    cdef int64_t i
    cdef int64_t at
    for i in range(node.key_width, node.width):
        if source[i] != sign:
            return NULL
    for i in range(node.key_width):
        at = node.key_width - 1 - i
        target[i] = source[at] if at < node.width else sign
    if (target[0] ^ sign) & 0x80:
        return NULL
    target[0] ^= 0x80
    return target + node.key_width


cdef uint8_t* put_fixed(const uint8_t* source, const Node* node, uint8_t* target) noexcept nogil:
    if node.order == ORDER_DECIMAL:
        return put_decimal(source, node, target)
    if node.order == ORDER_FLOAT:
        if node.width == 8:
            return put_float(<const uint64_t*> source, <uint64_t> 0x7FF0000000000000, target)
        if node.width == 4:
            return put_float(<const uint32_t*> source, <uint32_t> 0x7F800000, target)
        return put_float(<const uint16_t*> source, <uint16_t> 0x7C00, target)
    if node.order == ORDER_INTERVAL:
        target = put_signed(<const uint32_t*> source, target)
        target = put_signed(<const uint32_t*> (source + 4), target)
        return put_signed(<const uint64_t*> (source + 8), target)
    if node.order == ORDER_RAW:
        memcpy(target, source, node.width)
        return target + node.width
    if node.order == ORDER_SIGNED:
        if node.width == 8:
            return put_signed(<const uint64_t*> source, target)
        if node.width == 4:
            return put_signed(<const uint32_t*> source, target)
        if node.width == 2:
            return put_signed(<const uint16_t*> source, target)
        return put_signed(source, target)
    return put_unsigned(source, node.width, target)


cdef uint8_t* put_unsigned(const uint8_t* source, int64_t width, uint8_t* target) noexcept nogil:
    cdef int64_t i
    for i in range(width):
        target[i] = source[width - 1 - i]
    return target + width


cdef uint8_t* put_escaped(const uint8_t* source, int64_t size, uint8_t* target) noexcept nogil:
    """00 becomes 00 FF; 00 01 ends it."""
    cdef const uint8_t* zero
    cdef size_t piece
    while size > 0:
        zero = <const uint8_t*> memchr(source, 0, size)
        piece = size if zero == NULL else zero - source
        memcpy(target, source, piece)
        target += piece
        if zero == NULL:
            break
        target[0] = 0
        target[1] = 0xFF
        target += 2
        source += piece + 1
        size -= piece + 1
    target[0] = 0
    target[1] = 1
    return target + 2


cdef uint64_t escaped_size(const uint8_t* source, int64_t size) noexcept nogil:
    cdef uint64_t total = size + 2
    cdef const uint8_t* zero
    while size > 0:
        zero = <const uint8_t*> memchr(source, 0, size)
        if zero == NULL:
            break
        total += 1
        size -= zero - source + 1
        source = zero + 1
    return total


cdef uint64_t size_of(const Node* node, const ArrowArray* array, int64_t i) noexcept nogil:
    """The encoded bytes of one value that is not null."""
    cdef uint64_t total = 0
    cdef int64_t size
    cdef int64_t start
    cdef int64_t k
    cdef const uint8_t* data
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        data = bytes_at(node, array, i, &size)
        return escaped_size(data, size)
    if node.kind == KIND_STRUCT:
        for k in range(node.n_children):
            total += size_of_nested(
                &node.children[k], array.children[k], array.children[k].offset + i
            )
        return total
    if node.kind == KIND_BOOL or node.kind == KIND_FIXED:
        return node.key_width
    size = list_at(node, array, i, &start)
    for k in range(start, start + size):
        total += size_of_nested(node.children, array.children[0], k)
    return total + 1


cdef uint64_t size_of_nested(const Node* node, const ArrowArray* array, int64_t i) noexcept nogil:
    return 1 + size_of(node, array, i) if is_valid(node, array, i) else 1


cdef uint8_t* put_value(
    const Node* node, const ArrowArray* array, int64_t i, uint8_t* target
) noexcept nogil:
    """Write one value that is not null; NULL if it does not fit its type."""
    cdef int64_t size
    cdef int64_t start
    cdef int64_t k
    cdef const uint8_t* data
    if node.kind == KIND_FIXED:
        return put_fixed(<const uint8_t*> array.buffers[1] + i * node.width, node, target)
    if node.kind == KIND_BOOL:
        target[0] = bit_at(array.buffers[1], i)
        return target + 1
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        data = bytes_at(node, array, i, &size)
        return put_escaped(data, size, target)
    if node.kind == KIND_STRUCT:
        for k in range(node.n_children):
            target = put_nested(
                &node.children[k], array.children[k], array.children[k].offset + i, target
            )
            if target == NULL:
                return NULL
        return target
    size = list_at(node, array, i, &start)
    for k in range(start, start + size):
        target = put_nested(node.children, array.children[0], k, target)
        if target == NULL:
            return NULL
    target[0] = END
    return target + 1


cdef uint8_t* put_nested(
    const Node* node, const ArrowArray* array, int64_t i, uint8_t* target
) noexcept nogil:
    if not is_valid(node, array, i):
        target[0] = NULL_VALUE
        return target + 1
    target[0] = SOME_VALUE
    return put_value(node, array, i, target + 1)
