"""Key bytes -> typed columns, the inverse of the encoding in key_codec.pyx.

A key is rewritten as a row of its columns, which the row codec converts to Arrow. Values that the
encoding made equal stay equal: -0.0 is returned as 0.0, every NaN as the one quiet NaN,
dictionaries and views as their plain types. The bytes are not trusted: CorruptionError.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset

from lsmstate.cython_ext.rows.arrow_read cimport (
    KIND_BOOL, KIND_BYTES, KIND_FIXED, KIND_FIXED_LIST, KIND_LARGE_BYTES, KIND_NULL, KIND_STRUCT,
    ORDER_DECIMAL, ORDER_FLOAT, ORDER_INTERVAL, ORDER_RAW, ORDER_SIGNED, Node,
)
from lsmstate.cython_ext.base.coding cimport Buffer, put_bytes, put_varint, release, reserve
from lsmstate.cython_ext.rows.row_codec cimport RowCodec
from lsmstate.cython_ext.rows.row_layout cimport is_fixed

from lsmstate.cython_ext.errors import CorruptionError

cdef enum:
    END = 0  # of a list
    NULL_VALUE = 1  # markers of a nested value
    SOME_VALUE = 2


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class KeyDecoder:
    """Decodes keys of one schema, whose types are known to be key types."""

    def __cinit__(self, schema):
        self.codec = RowCodec(schema)

    def __init__(self, schema):
        pass

    def __dealloc__(self):
        release(&self.nested)

    @property
    def schema(self):
        """Return the schema of decoded keys: the key columns with plain types."""
        return self.codec.schema

    def decode(self, list keys):
        """Decode keys as KeyBatch.to_pylist returns them, without nulls, to one RecordBatch."""
        cdef Buffer rows
        cdef bytes key
        cdef Py_ssize_t i
        cdef uint64_t* offsets = <uint64_t*> malloc((len(keys) + 1) * sizeof(uint64_t))
        if offsets == NULL:
            raise MemoryError(f"cannot allocate the offsets of {len(keys)} keys")
        memset(&rows, 0, sizeof(Buffer))
        offsets[0] = 0
        try:
            for i in range(len(keys)):
                key = keys[i]
                self.put_row(<const uint8_t*> <const char*> key, len(key), &rows)
                offsets[i + 1] = rows.size
            return self.codec.decode_c(rows.data, offsets, len(keys), None)
        finally:
            free(offsets)
            release(&rows)

    cdef int put_row(self, const uint8_t* key, size_t size, Buffer* target) except -1 nogil:
        cdef const uint8_t* at = key
        cdef const uint8_t* end = key + size
        cdef const Node* root = self.codec.layout.root
        cdef const Node* node
        cdef size_t row = target.size
        cdef int64_t place
        cdef Py_ssize_t c
        reserve(target, self.codec.layout.header)
        memset(target.data + row, 0, self.codec.layout.header)
        target.size += self.codec.layout.header
        for c in range(root.n_children):
            node = &root.children[c]
            place = self.codec.layout.places[c]
            if is_fixed(node):
                at = _fixed(node, at, end, target.data + row + place)
            elif node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
                at = _put_text(at, end, target)
            else:
                self.nested.size = 0
                at = _put_value(node, at, end, &self.nested)
                put_varint(target, self.nested.size)
                put_bytes(target, self.nested.data, self.nested.size)
        if at != end:
            _damaged(b"bytes are left over at its end")
        return 0


cdef int _damaged(const char* what) except -1 nogil:
    with gil:
        raise CorruptionError(
            f"a stored key is damaged or of another schema ({what.decode()}); "
            "restore an earlier checkpoint"
        )


cdef const uint8_t* _fixed(
    const Node* node, const uint8_t* at, const uint8_t* end, uint8_t* target
) except NULL nogil:
    """Write one fixed-width value as rows have it, row_width bytes; return the next place."""
    if node.kind == KIND_NULL or end - at < node.key_width:
        _damaged(b"shorter than its columns")
    if node.kind == KIND_BOOL:
        if at[0] > 1:
            _damaged(b"a boolean is neither 0 nor 1")
        target[0] = at[0]
    elif node.order == ORDER_RAW:
        memcpy(target, at, node.width)
    elif node.order == ORDER_INTERVAL:
        _from_big_endian(at, 4, target, 4, 0x80, 0)
        _from_big_endian(at + 4, 4, target + 4, 4, 0x80, 0)
        _from_big_endian(at + 8, 8, target + 8, 8, 0x80, 0)
    elif node.order == ORDER_FLOAT and not at[0] & 0x80:  # negative: all bits were flipped
        _from_big_endian(at, node.width, target, node.width, 0, 0xFF)
    elif node.order == ORDER_FLOAT or node.order == ORDER_SIGNED or node.order == ORDER_DECIMAL:
        _from_big_endian(at, node.key_width, target, node.row_width, 0x80, 0)
    else:
        _from_big_endian(at, node.width, target, node.width, 0, 0)
    return at + node.key_width


cdef inline void _from_big_endian(
    const uint8_t* source, int64_t width, uint8_t* target, int64_t kept, uint8_t sign, uint8_t flip
) noexcept nogil:
    """Copy the low `kept` bytes: `sign` is flipped in the highest byte, `flip` in all."""
    cdef int64_t i
    for i in range(kept):
        target[i] = source[width - 1 - i] ^ flip
    if kept == width:
        target[width - 1] ^= sign


cdef const uint8_t* _after_text(
    const uint8_t* at, const uint8_t* end, uint64_t* size
) except NULL nogil:
    """Return the place after an escaped string, and the bytes it stands for."""
    cdef const uint8_t* zero
    size[0] = 0
    while True:
        zero = <const uint8_t*> memchr(at, 0, end - at) if at < end else NULL
        if zero == NULL or zero + 1 >= end or (zero[1] != 1 and zero[1] != 0xFF):
            _damaged(b"a string has no end")
        size[0] += zero - at
        at = zero + 2
        if zero[1] == 1:
            return at
        size[0] += 1


cdef const uint8_t* _put_text(
    const uint8_t* at, const uint8_t* end, Buffer* target
) except NULL nogil:
    """Write a string with its length in front; 00 FF becomes 00."""
    cdef uint64_t size
    cdef const uint8_t* zero
    cdef const uint8_t* after = _after_text(at, end, &size)
    put_varint(target, size)
    reserve(target, size)
    while True:
        zero = <const uint8_t*> memchr(at, 0, after - at)
        put_bytes(target, at, zero - at + (zero[1] == 0xFF))
        at = zero + 2
        if zero[1] == 1:
            return after


cdef const uint8_t* _put_value(
    const Node* node, const uint8_t* at, const uint8_t* end, Buffer* target
) except NULL nogil:
    """Write a nested value, or a value inside one, as rows have it."""
    cdef int64_t k, count
    cdef size_t bitmap
    if node.kind == KIND_FIXED or node.kind == KIND_BOOL:
        reserve(target, node.row_width)
        at = _fixed(node, at, end, target.data + target.size)
        target.size += node.row_width
        return at
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        return _put_text(at, end, target)
    if node.kind == KIND_NULL:
        _damaged(b"a value in a column of nulls")
    if node.kind == KIND_STRUCT:
        bitmap = _start_bitmap(target, node.n_children)
        for k in range(node.n_children):
            at = _put_child(&node.children[k], at, end, bitmap, k, target)
        return at
    count = _list_length(node.children, at, end)
    if node.kind != KIND_FIXED_LIST:
        put_varint(target, count)
    elif count != node.width:
        _damaged(b"a fixed-size list has another size")
    bitmap = _start_bitmap(target, count)
    for k in range(count):
        at = _put_child(node.children, at, end, bitmap, k, target)
    return at + 1  # the END that was seen when counting


cdef inline size_t _start_bitmap(Buffer* target, int64_t n) except? 0 nogil:
    cdef size_t start = target.size
    reserve(target, (n + 7) >> 3)
    if n:
        memset(target.data + start, 0, (n + 7) >> 3)
    target.size += (n + 7) >> 3
    return start


cdef const uint8_t* _put_child(
    const Node* node, const uint8_t* at, const uint8_t* end, size_t bitmap, int64_t k,
    Buffer* target,
) except NULL nogil:
    if _is_null(at, end):
        target.data[bitmap + (k >> 3)] |= <uint8_t> (1 << (k & 7))
        return at + 1
    return _put_value(node, at + 1, end, target)


cdef inline bint _is_null(const uint8_t* at, const uint8_t* end) except -1 nogil:
    if at >= end or (at[0] != NULL_VALUE and at[0] != SOME_VALUE):
        _damaged(b"a nested value has no marker")
    return at[0] == NULL_VALUE


cdef int64_t _list_length(
    const Node* child, const uint8_t* at, const uint8_t* end
) except -1 nogil:
    """Return how many elements come before the END."""
    cdef int64_t count = 0
    while at < end and at[0] != END:
        at = at + 1 if _is_null(at, end) else _after_value(child, at + 1, end)
        count += 1
    if at >= end:
        _damaged(b"a list has no end")
    return count


cdef const uint8_t* _after_value(
    const Node* node, const uint8_t* at, const uint8_t* end
) except NULL nogil:
    cdef Py_ssize_t k
    cdef uint64_t size
    if node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        return _after_text(at, end, &size)
    if node.kind == KIND_FIXED or node.kind == KIND_BOOL:
        if end - at < node.key_width:
            _damaged(b"shorter than its columns")
        return at + node.key_width
    if node.kind == KIND_NULL:
        _damaged(b"a value in a column of nulls")
    if node.kind == KIND_STRUCT:
        for k in range(node.n_children):
            at = at + 1 if _is_null(at, end) else _after_value(&node.children[k], at + 1, end)
        return at
    while at < end and at[0] != END:
        at = at + 1 if _is_null(at, end) else _after_value(node.children, at + 1, end)
    if at >= end:
        _damaged(b"a list has no end")
    return at + 1
