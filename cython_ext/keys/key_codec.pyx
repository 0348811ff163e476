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
from libc.string cimport memcmp, memcpy, memset

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport Node, TypeTree, borrowed
from lsmstate.cython_ext.base.compression cimport xxh3
from lsmstate.cython_ext.base.coding cimport STREAM_BYTES
from lsmstate.cython_ext.keys.key_encode cimport KeyRows, add_sizes, mark_nulls, put_column
from lsmstate.cython_ext.keys.key_sort cimport sort_keys

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef extern from *:
    uint16_t __builtin_bswap16(uint16_t) noexcept nogil


@cython.final
cdef class KeyCodec:
    """Encodes batches of key columns. Types that cannot be keys raise InvalidArgumentError."""

    cdef TypeTree tree
    #: Plain types of the key columns, in order.
    cdef readonly tuple types

    def __cinit__(self, schema):
        self.tree = TypeTree(schema, for_keys=True)
        self.types = tuple(self.tree.schema.types)
        if len(self.tree.schema) == 0:
            raise InvalidArgumentError("the key has no columns; name at least one")

    def __init__(self, schema):
        pass

    @property
    def schema(self):
        """Return the key columns with their plain types."""
        return self.tree.schema

    def encode(self, batch):
        """Encode, sort and hash the keys of a batch.

        Column names are ignored. Other types, or a decimal beyond its precision, raise
        InvalidArgumentError. Cost: one pass over the data, n log n for the sort. The result has
        about the size of the keys and 21 bytes per key.
        """
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
        keys.types = self.types
        return keys


@cython.final
cdef class KeyBatch:
    """Encoded keys, sorted and hashed; see key_codec.pxd for the fields."""

    def __cinit__(self):
        self.stream = -1

    def __dealloc__(self):
        free(self.data)
        if self.is_copy:
            return
        free(self.offsets)
        free(self.valid)
        free(self.hashes)
        free(self.order)

    @staticmethod
    def from_bytes(list keys):
        """Make a batch of keys that are already encoded (without stream bytes; None: null)."""
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
        """Number of keys without a null."""
        return self.n_valid

    @property
    def nbytes(self):
        """Bytes of memory of this batch."""
        if self.offsets == NULL:
            return 0
        return self.offsets[self.n] + self.n * (8 + 1 + 8 + 4) + 8

    @property
    def sizes(self):
        """Bytes of each key, without the stream's number."""
        ends = copied(self.offsets, self.n + 1, np.int64)
        return np.diff(ends) - STREAM_BYTES

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
        """Return the keys without their stream bytes; None for a null key."""
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
        """Return the distinct valid keys in ascending order, and where their rows are: those of
        distinct key g are ``order[starts[g]:starts[g + 1]]``."""
        cdef KeyBatch found = KeyBatch.__new__(KeyBatch)
        cdef int64_t[::1] starts = np.empty(self.n_valid + 1, np.int64)
        cdef int64_t* first = &starts[0]
        with nogil:
            found.take_rows(group_starts(self, first))
            copy_groups(self, found, first)
        found.types = self.types
        return found, np.asarray(starts)[: found.n + 1].copy()

    def take(self, positions):
        """Return the keys at these ascending positions (int64); they stay sorted. Cost: one pass
        over this batch's order, one over the result."""
        cdef const int64_t[::1] wanted = np.ascontiguousarray(positions, np.int64)
        cdef Py_ssize_t n = wanted.shape[0]
        cdef KeyBatch found = KeyBatch.__new__(KeyBatch)
        cdef Py_ssize_t i
        for i in range(n):
            if not (wanted[i - 1] if i else -1) < wanted[i] < self.n:
                raise InvalidArgumentError(
                    f"position {wanted[i]}: give ascending positions from 0 to {self.n - 1}"
                )
        with nogil:
            found.take_rows(n)
            copy_taken(self, found, &wanted[0] if n else NULL)
        found.types = self.types
        return found

    cpdef KeyBatch of_stream(self, uint32_t stream):
        """Return the keys with a stream's number in front, as a store has them.

        This batch is returned if it bears that number or none yet. Otherwise it is copied, since
        another thread may be reading it. Cost of a copy: one pass over the keys, which count twice
        until it is released.
        """
        cdef KeyBatch copy
        if self.stream == <int64_t> stream:
            return self
        if stream > 0xFFFF:
            raise InvalidArgumentError(f"stream number {stream}; a store has at most 65536")
        if self.stream < 0:
            self.stream = <int32_t> stream
            self._put_stream(stream)
            return self
        copy = KeyBatch.__new__(KeyBatch)
        copy.is_copy = True
        copy.owner = self.owner if self.is_copy else self
        copy.n, copy.n_valid, copy.types = self.n, self.n_valid, self.types
        copy.offsets, copy.valid = self.offsets, self.valid
        copy.hashes, copy.order = self.hashes, self.order
        copy.data = <uint8_t*> malloc(self.offsets[self.n] + 8)
        if copy.data == NULL:
            raise MemoryError(f"cannot allocate {self.offsets[self.n]} bytes of keys")
        with nogil:
            memcpy(copy.data, self.data, self.offsets[self.n])
            copy._put_stream(stream)
        copy.stream = <int32_t> stream
        return copy

    cdef void _put_stream(self, uint32_t stream) noexcept nogil:
        cdef uint16_t number = __builtin_bswap16(<uint16_t> stream)
        cdef Py_ssize_t i
        for i in range(self.n):
            memcpy(self.data + self.offsets[i], &number, STREAM_BYTES)

    cdef int take_rows(self, Py_ssize_t n) except -1 nogil:
        """Make room for n keys, all of them null and empty."""
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
        """Turn the sizes in ``offsets[1:]`` into offsets, and allocate the data."""
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
        self._put_stream(0)
        return 0

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
    """Return a numpy array with data of its own, which may outlive the batch."""
    array = np.empty(n, dtype)
    cdef uint8_t[::1] view
    if n:
        view = array.view(np.uint8)
        memcpy(&view[0], source, view.shape[0])
    return array


cdef Py_ssize_t group_starts(KeyBatch keys, int64_t* starts) noexcept nogil:
    """Find where runs of equal keys start in `order`; return the number of runs."""
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
    """Copy the first key of each run; they are already sorted."""
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


cdef int copy_taken(KeyBatch source, KeyBatch target, const int64_t* positions) except -1 nogil:
    """Copy the keys at the positions, in the source's order without those left out."""
    cdef Py_ssize_t i
    cdef Py_ssize_t n_valid = 0
    cdef int32_t* places = <int32_t*> malloc((source.n + 1) * sizeof(int32_t))
    if places == NULL:
        with gil:
            raise MemoryError(f"cannot allocate places for {source.n} keys")
    memset(places, 0xFF, source.n * sizeof(int32_t))
    try:
        for i in range(target.n):
            places[positions[i]] = <int32_t> i
            target.offsets[i + 1] = key_size(source, positions[i])
        target.take_data()
        for i in range(target.n):
            target.valid[i] = source.valid[positions[i]]
            target.hashes[i] = source.hashes[positions[i]]
            memcpy(key_start(target, i), key_start(source, positions[i]), key_size(target, i))
        for i in range(source.n_valid):
            if places[source.order[i]] >= 0:
                target.order[n_valid] = <uint32_t> places[source.order[i]]
                n_valid += 1
        target.n_valid = n_valid
    finally:
        free(places)
    return 0


cdef Py_ssize_t encode_columns(
    KeyBatch keys, const Node* root, const ArrowArray* batch
) except -2 nogil:
    """Fill `keys`; return -1, or the number of a column with a value beyond its type."""
    cdef Py_ssize_t c
    cdef Py_ssize_t i
    cdef uint8_t** cursors
    cdef bint fits = True
    cdef KeyRows rows = KeyRows(n=keys.n, valid=keys.valid, sizes=keys.offsets + 1)
    for i in range(keys.n):
        keys.valid[i] = 1
    for c in range(root.n_children):
        mark_nulls(&root.children[c], batch.children[c], batch.offset, &rows)
    for c in range(root.n_children):
        add_sizes(&root.children[c], batch.children[c], batch.offset, &rows)
    keys.take_data()
    cursors = <uint8_t**> malloc((keys.n + 1) * sizeof(uint8_t*))
    if cursors == NULL:
        with gil:
            raise MemoryError(f"cannot allocate cursors for {keys.n} keys")
    for i in range(keys.n):
        cursors[i] = key_start(keys, i)
    for c in range(root.n_children):
        fits = put_column(&root.children[c], batch.children[c], batch.offset, &rows, cursors)
        if not fits:
            break
    free(cursors)
    if not fits:
        return c
    keys.finish()
    return -1
