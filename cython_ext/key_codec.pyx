"""Typed columns -> key bytes that memcmp orders as the typed keys are ordered.

The encoding (a disk format; every number is big-endian). A key is the stream's number, 2 bytes,
then its columns one after another, each self-delimiting:

=========================== =====================================================================
boolean                     1 byte, 0 or 1
unsigned integer            its width (1, 2, 4, 8)
integer, date, time,        its width, sign bit flipped
timestamp, duration
float                       its width (2, 4, 8); NaN becomes the one positive quiet NaN and sorts
                            last, -0.0 becomes 0.0; then all bits flipped if negative, else the
                            sign bit
decimal                     unscaled value, sign bit flipped; 8 bytes up to precision 18, 16 up
                            to 38, else 32, whatever width Arrow uses
month-day-nano interval     months (4), days (4), nanoseconds (8), each as an integer
fixed-size binary           its bytes
string, binary              its bytes with 00 written as 00 FF, then 00 01
struct                      its children, each as a *nested value*
list, fixed-size list       its elements, each as a nested value, then 00
nested value                01 if null, else 02 and the value
=========================== =====================================================================

A null in a key column itself makes the whole key null: such a key is never stored. Equal keys,
as Spark's equi-join sees them, have equal bytes, and no key is a prefix of another.
Maps have no order and are refused; dictionaries and views are keys of their plain type.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from cython_ext.arrow_c cimport ArrowArray
from cython_ext.arrow_read cimport (
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
    TypeTree,
    bit_at,
    borrowed,
    bytes_at,
    has_nulls,
    is_valid,
    list_at,
)
from cython_ext.codec cimport xxh3
from cython_ext.key_sort cimport sort_keys

import numpy as np

from cython_ext.errors import InvalidArgumentError

cdef extern from *:
    uint16_t __builtin_bswap16(uint16_t) noexcept nogil
    uint32_t __builtin_bswap32(uint32_t) noexcept nogil
    uint64_t __builtin_bswap64(uint64_t) noexcept nogil

cdef enum:
    STREAM_BYTES = 2
    END = 0  # of a list
    NULL_VALUE = 1  # markers of a nested value
    SOME_VALUE = 2

ctypedef fused word:
    uint8_t
    uint16_t
    uint32_t
    uint64_t


@cython.final
cdef class KeyCodec:
    """Encodes batches of key columns. Types that cannot be keys: InvalidArgumentError."""

    cdef TypeTree tree

    def __cinit__(self, schema):
        self.tree = TypeTree(schema, for_keys=True)
        if len(self.tree.schema) == 0:
            raise InvalidArgumentError("the key has no columns; name at least one")

    def __init__(self, schema):
        pass

    @property
    def schema(self):
        """The key columns with their plain types."""
        return self.tree.schema

    def encode(self, batch):
        """The keys of a batch, sorted and hashed. Column names are ignored; other types, or a
        decimal beyond its precision, are an InvalidArgumentError. Cost: one pass over the data,
        n log n for the sort; the result is about the size of the keys + 21 bytes each."""
        cdef KeyBatch keys = KeyBatch.__new__(KeyBatch)
        _, capsule = self.tree.adapt(batch, False).__arrow_c_array__()
        cdef const ArrowArray* array = borrowed(capsule)
        cdef Py_ssize_t column
        with nogil:
            keys.take_rows(array.length)
            column = encode_columns(keys, &self.tree.root, array)
        if column >= 0:
            field = self.tree.schema.field(column)
            raise InvalidArgumentError(
                f"column {field.name!r}: a value does not fit {field.type}; cast it to more digits"
            )
        return keys


@cython.final
cdef class KeyBatch:
    """Encoded keys, sorted and hashed; see key_codec.pxd for the fields."""

    def __dealloc__(self):
        free(self.data)
        free(self.offsets)
        free(self.valid)
        free(self.hashes)
        free(self.order)

    @staticmethod
    def from_bytes(list keys):
        """A batch of keys that are encoded already (without stream bytes; None: null)."""
        cdef KeyBatch batch = KeyBatch.__new__(KeyBatch)
        cdef Py_ssize_t i
        cdef bytes key
        batch.take_rows(len(keys))
        for i in range(batch.n):
            batch.valid[i] = keys[i] is not None
            batch.offsets[i + 1] = len(keys[i]) if batch.valid[i] else 0
        batch.take_data()
        for i in range(batch.n):
            if batch.valid[i]:
                key = keys[i]
                memcpy(batch.data + batch.offsets[i] + STREAM_BYTES, <const char*> key, len(key))
        with nogil:
            batch.finish()
        return batch

    def __len__(self):
        return self.n

    @property
    def n_valid(self):
        """How many keys hold no null."""
        return self.n_valid

    @property
    def nbytes(self):
        """Bytes of memory this batch holds."""
        if self.offsets == NULL:
            return 0
        return self.offsets[self.n] + self.n * (8 + 1 + 8 + 4) + 8

    @property
    def valid(self):
        return copied(self.valid, self.n, np.bool_)

    @property
    def order(self):
        """Positions of the valid keys, ascending by key, ties by position."""
        return copied(self.order, self.n_valid, np.uint32)

    @property
    def hashes(self):
        """XXH3 of each key without its stream bytes; 0 for a null key."""
        return copied(self.hashes, self.n, np.uint64)

    def to_pylist(self):
        """The keys without their stream bytes; None for a null key."""
        cdef Py_ssize_t i
        cdef list keys = []
        for i in range(self.n):
            if self.valid[i]:
                keys.append(
                    self.data[self.offsets[i] + STREAM_BYTES:self.offsets[i + 1]]
                )
            else:
                keys.append(None)
        return keys

    def distinct(self):
        """The distinct valid keys in ascending order, and where their rows are: those of distinct
        key g are ``order[starts[g]:starts[g + 1]]``."""
        cdef KeyBatch found = KeyBatch.__new__(KeyBatch)
        cdef int64_t[::1] starts = np.empty(self.n_valid + 1, np.int64)
        cdef int64_t* first = &starts[0]
        with nogil:
            found.take_rows(group_starts(self, first))
            copy_groups(self, found, first)
        return found, np.asarray(starts)[: found.n + 1].copy()

    def set_stream_number(self, uint32_t stream):
        """Say which stream the keys are of, for stores that put the number in front."""
        self.set_stream(stream)

    cdef int set_stream(self, uint32_t stream) except -1 nogil:
        """Write the stream's number in front of every key."""
        cdef uint16_t number = __builtin_bswap16(<uint16_t> stream)
        cdef Py_ssize_t i
        if stream > 0xFFFF:
            with gil:
                raise InvalidArgumentError(f"stream number {stream}; a store has at most 65536")
        for i in range(self.n):
            memcpy(self.data + self.offsets[i], &number, STREAM_BYTES)
        return 0

    cdef int take_rows(self, Py_ssize_t n) except -1 nogil:
        """Room for n keys, all of them null and empty."""
        if n > 0x7FFFFFFF:
            with gil:
                raise InvalidArgumentError(
                    f"{n} keys in one batch; split it, the limit is 2^31 - 1"
                )
        self.n = n
        self.offsets = <uint64_t*> calloc(n + 1, sizeof(uint64_t))
        self.valid = <uint8_t*> calloc(n + 1, 1)
        self.hashes = <uint64_t*> calloc(n + 1, sizeof(uint64_t))
        self.order = <uint32_t*> malloc((n + 1) * sizeof(uint32_t))
        if not (self.offsets and self.valid and self.hashes and self.order):
            with gil:
                raise MemoryError(f"cannot allocate a batch of {n} keys")
        return 0

    cdef int take_data(self) except -1 nogil:
        """Turn the sizes in ``offsets[1:]`` into offsets, and allocate that much."""
        cdef Py_ssize_t i
        cdef uint64_t total = 0
        for i in range(self.n):
            self.offsets[i] = total
            total += self.offsets[i + 1] + STREAM_BYTES
        self.offsets[self.n] = total
        self.data = <uint8_t*> malloc(total + 8)
        if self.data == NULL:
            with gil:
                raise MemoryError(f"cannot allocate {total} bytes of keys")
        return self.set_stream(0)

    cdef int finish(self) except -1 nogil:
        """Hash and sort the valid keys."""
        cdef Py_ssize_t i
        cdef Py_ssize_t n_valid = 0
        for i in range(self.n):
            if self.valid[i]:
                self.order[n_valid] = <uint32_t> i
                n_valid += 1
                self.hashes[i] = xxh3(key_start(self, i), key_size(self, i))
        self.n_valid = n_valid
        if sort_keys(self.data, self.offsets, STREAM_BYTES, self.order, n_valid):
            with gil:
                raise MemoryError(f"cannot allocate memory to sort {n_valid} keys")
        return 0


cdef inline uint8_t* key_start(KeyBatch keys, Py_ssize_t i) noexcept nogil:
    return keys.data + keys.offsets[i] + STREAM_BYTES


cdef inline uint64_t key_size(KeyBatch keys, Py_ssize_t i) noexcept nogil:
    return keys.offsets[i + 1] - keys.offsets[i] - STREAM_BYTES


cdef object copied(const void* source, Py_ssize_t n, object dtype):
    """A numpy array of its own, so that it may outlive the batch."""
    array = np.empty(n, dtype)
    cdef uint8_t[::1] view
    if n:
        view = array.view(np.uint8)
        memcpy(&view[0], source, view.shape[0])
    return array


cdef Py_ssize_t group_starts(KeyBatch keys, int64_t* starts) noexcept nogil:
    """Where runs of equal keys start in `order`, and the number of runs."""
    cdef Py_ssize_t i
    cdef Py_ssize_t groups = 0
    cdef Py_ssize_t last = 0
    cdef Py_ssize_t here
    for i in range(keys.n_valid):
        here = keys.order[i]
        if (
            i == 0
            or keys.hashes[here] != keys.hashes[last]
            or key_size(keys, here) != key_size(keys, last)
            or memcmp(key_start(keys, here), key_start(keys, last), key_size(keys, here))
        ):
            starts[groups] = i
            groups += 1
        last = here
    starts[groups] = keys.n_valid
    return groups


cdef int copy_groups(KeyBatch source, KeyBatch target, int64_t* starts) except -1 nogil:
    """The first key of each run, which are sorted already."""
    cdef Py_ssize_t g
    cdef Py_ssize_t i
    for g in range(target.n):
        target.offsets[g + 1] = key_size(source, source.order[starts[g]])
    target.take_data()
    for g in range(target.n):
        i = source.order[starts[g]]
        target.valid[g] = 1
        target.hashes[g] = source.hashes[i]
        target.order[g] = <uint32_t> g
        memcpy(key_start(target, g), key_start(source, i), key_size(source, i))
    target.n_valid = target.n
    return 0


cdef Py_ssize_t encode_columns(
    KeyBatch keys, const Node* root, const ArrowArray* batch
) except -2 nogil:
    """Fill `keys`; -1, or the number of a column with a value beyond its type."""
    cdef Py_ssize_t c
    cdef Py_ssize_t i
    cdef uint8_t** cursors
    cdef bint fits = True
    for i in range(keys.n):
        keys.valid[i] = 1
    for c in range(root.n_children):
        mark_nulls(&root.children[c], batch.children[c], batch.offset, keys)
    for c in range(root.n_children):
        add_sizes(&root.children[c], batch.children[c], batch.offset, keys)
    keys.take_data()
    cursors = <uint8_t**> malloc((keys.n + 1) * sizeof(uint8_t*))
    if cursors == NULL:
        with gil:
            raise MemoryError(f"cannot allocate cursors for {keys.n} keys")
    for i in range(keys.n):
        cursors[i] = key_start(keys, i)
    for c in range(root.n_children):
        fits = put_column(&root.children[c], batch.children[c], batch.offset, keys, cursors)
        if not fits:
            break
    free(cursors)
    if not fits:
        return c
    keys.finish()
    return -1


cdef void mark_nulls(
    const Node* node, const ArrowArray* array, int64_t start, KeyBatch keys
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
    const Node* node, const ArrowArray* array, int64_t start, KeyBatch keys
) noexcept nogil:
    cdef Py_ssize_t i
    start += array.offset
    if node.kind == KIND_BOOL or node.kind == KIND_FIXED:
        for i in range(keys.n):
            keys.offsets[i + 1] += node.key_width if keys.valid[i] else 0
    else:
        for i in range(keys.n):
            if keys.valid[i]:
                keys.offsets[i + 1] += size_of(node, array, start + i)


cdef bint put_column(
    const Node* node, const ArrowArray* array, int64_t start, KeyBatch keys, uint8_t** cursors
) noexcept nogil:
    """Append one column to every valid key; False if a value does not fit its type."""
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
    const word* values, const Node* node, KeyBatch keys, uint8_t** cursors
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
