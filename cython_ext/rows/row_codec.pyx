"""Arrow batches <-> rows, the form in which the store keeps them.

The encoding (a disk format; numbers are little-endian). A row is

    null bitmap | fixed part | variable tail

null bitmap      a bit per column, 1 for null, lowest bit first; ceil(columns / 8) bytes, the
                 bits behind the last column are 0
fixed part       the fixed-width columns in order, without padding; a null is zeros
variable tail    for each variable column in order that is not null: varint length, bytes

=============================== =================================================================
boolean                         1 byte, 0 or 1
number, date, time, timestamp,  its bytes as Arrow has them
duration, interval, fixed-size
binary
decimal                         unscaled value in 4 bytes up to precision 9, 8 up to 18, 16 up to
                                38, else 32, whatever width Arrow uses
null type                       no byte; its bit is 1
string, binary                  variable: its bytes, not validated again
list, map, struct, fixed-size   variable: a *nested value*
list
=============================== =================================================================

A nested value is written recursively: a struct is a null bitmap over its children, then those
that are not null; a list is a varint count, a null bitmap over its elements, then those that are
not null; a map is a list of structs (key, value); a fixed-size list has no count. Inside, a
fixed-width value is as above, a string is a varint length and its bytes. Varints (7 bits a byte,
low first) are as short as possible. So equal rows have equal bytes (floats by their bits), and a
row needs its schema to be read.

Dictionary, string-view and binary-view columns are stored, and come back, as their plain type:
``RowCodec(schema).schema`` is what decoding returns. Extension types of whole columns are stored as
their storage and wrapped again. List views are refused.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport KIND_BYTES, KIND_LARGE_BYTES, TypeTree, borrowed
from lsmstate.cython_ext.memory.budget cimport Budget
from lsmstate.cython_ext.rows.row_builder cimport (
    Builder,
    builder_bytes,
    close_builder,
    export_builder,
    open_builder,
)
from lsmstate.cython_ext.rows.row_decode cimport read_rows
from lsmstate.cython_ext.rows.row_encode cimport measure_rows, write_rows
from lsmstate.cython_ext.rows.row_layout cimport SPARE_ROWS, WIDEST_TRANSPOSED, Place, is_fixed
from lsmstate.cython_ext.rows.row_planes cimport SLACK_BYTES, Planes, are_alike, read_planes

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.errors import CorruptionError, InvalidArgumentError


@cython.final
cdef class RowBatch:
    """Encoded rows; see row_codec.pxd for the fields."""

    def __dealloc__(self):
        free(self.data)
        free(self.offsets)

    def __len__(self):
        return self.n

    @property
    def nbytes(self):
        """Bytes of memory of this batch."""
        return self.offsets[self.n] + (self.n + 1) * 8 if self.offsets else 0

    def sizes(self):
        """Return the bytes of each row; an int64 array."""
        found = np.empty(self.n, dtype=np.int64)
        cdef int64_t[::1] view = found
        cdef Py_ssize_t i
        for i in range(self.n):
            view[i] = <int64_t> (self.offsets[i + 1] - self.offsets[i])
        return found

    def to_pylist(self):
        cdef Py_ssize_t i
        return [
            <bytes> self.data[self.offsets[i]:self.offsets[i + 1]] for i in range(self.n)
        ]


@cython.final
cdef class RowCodec:
    """Encodes and decodes rows of one schema. Types that cannot be stored (unions, run-end encoded,
    extensions inside nested types) raise InvalidArgumentError."""

    def __cinit__(self, schema):
        cdef Py_ssize_t c
        cdef Py_ssize_t n
        self.tree = TypeTree(schema)
        n = self.tree.root.n_children
        self.layout.root = &self.tree.root
        self.layout.places = <int64_t*> calloc(n + 1, sizeof(int64_t))
        if self.layout.places == NULL:
            raise MemoryError(f"cannot allocate the layout of {n} columns")
        self.layout.bitmap = (n + 7) >> 3
        self.layout.header = self.layout.bitmap
        for c in range(n):
            self.layout.places[c] = self.layout.header
            if is_fixed(&self.tree.root.children[c]):
                self.layout.header += self.tree.root.children[c].row_width
        self.layout.is_planar = self.layout.header <= WIDEST_TRANSPOSED
        for c in range(n):
            self.layout.is_planar = self.layout.is_planar and (
                is_fixed(&self.tree.root.children[c])
                or self.tree.root.children[c].kind == KIND_BYTES
                or self.tree.root.children[c].kind == KIND_LARGE_BYTES
            )
        kept = self.tree.schema
        self.required = [c for c in range(n) if not kept.field(c).nullable]
        self.extensions = [
            c for c in range(n) if isinstance(kept.field(c).type, pa.BaseExtensionType)
        ]

    def __init__(self, schema):
        pass

    def __dealloc__(self):
        free(self.layout.places)

    @property
    def schema(self):
        """Return the schema of decoded rows: the schema with plain types."""
        return self.tree.schema

    def encode(self, batch):
        """Encode the rows of a batch with the schema's column names and types.

        InvalidArgumentError: other columns, a null in a column that is not nullable, or a decimal
        beyond its precision. Cost: one pass to measure, one to write.
        """
        return self.encode_c(batch)

    def plain(self, batch):
        """Return the batch as it will be decoded, with the types of ``schema``. It is checked as by
        ``encode``, except for decimals. Cost: none if the types are plain."""
        batch = checked(self, batch)
        return self.wrapped(batch) if self.extensions else batch

    def decode(self, list rows):
        """Decode the rows to one RecordBatch; damaged bytes raise CorruptionError."""
        cdef bytes data = b"".join(rows)
        cdef Py_ssize_t i
        cdef uint64_t* offsets = <uint64_t*> malloc((len(rows) + 1) * sizeof(uint64_t))
        if offsets == NULL:
            raise MemoryError(f"cannot allocate the offsets of {len(rows)} rows")
        offsets[0] = 0
        try:
            for i in range(len(rows)):
                offsets[i + 1] = offsets[i] + <uint64_t> len(rows[i])
            return self.decode_c(<const uint8_t*> <const char*> data, offsets, len(rows), None)
        finally:
            free(offsets)

    cdef RowBatch encode_c(self, object batch):
        cdef RowBatch rows = RowBatch.__new__(RowBatch)
        cdef const ArrowArray* array
        cdef Py_ssize_t column = -1
        cdef Py_ssize_t i
        _, capsule = checked(self, batch).__arrow_c_array__()
        array = borrowed(capsule)
        rows.n = array.length
        rows.offsets = <uint64_t*> calloc(rows.n + 1, sizeof(uint64_t))
        if rows.offsets == NULL:
            raise MemoryError(f"cannot allocate the offsets of {rows.n} rows")
        with nogil:
            measure_rows(&self.layout, array, rows.offsets)
            for i in range(rows.n):
                rows.offsets[i + 1] += rows.offsets[i]
            rows.data = <uint8_t*> malloc(rows.offsets[rows.n] + 1)
            if rows.data != NULL:
                column = write_rows(&self.layout, array, rows.offsets, rows.data)
        if rows.data == NULL:
            raise MemoryError(f"cannot allocate {rows.offsets[rows.n]} bytes of rows")
        if column >= 0:
            field = self.tree.schema.field(column)
            raise InvalidArgumentError(
                f"column {field.name!r}: a value does not fit {field.type}; cast it to more digits"
            )
        return rows

    cdef object decode_c(
        self, const uint8_t* data, const uint64_t* offsets, Py_ssize_t n, Budget budget
    ):
        cdef BatchBuilder batch = BatchBuilder(self, budget)
        try:
            with nogil:
                batch.add(data, offsets, n, n)
        except CorruptionError as error:
            raise batch.located(error) from None
        return batch.finished()

    cdef object located(self, object error, int64_t row, Py_ssize_t column):
        name = f", column {self.tree.schema.field(column).name!r}" if column >= 0 else ""
        return CorruptionError(
            f"row {row}{name}: {error}; the stored row is damaged or of another schema, "
            "restore an earlier checkpoint"
        )

    cdef object wrapped(self, object batch):
        columns = batch.columns
        for c in self.extensions:
            columns[c] = pa.ExtensionArray.from_storage(self.schema.field(c).type, columns[c])
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class BatchBuilder:
    """See row_codec.pxd."""

    def __cinit__(self, RowCodec codec not None, Budget budget=None):
        self.codec = codec
        self.budget = budget
        memset(&self.builder, 0, sizeof(Builder))
        self.place = Place(row=0, column=-1)
        open_builder(
            &self.builder, &codec.tree.root, NULL if budget is None else budget.buffers
        )
        self.builder.spare_rows = SPARE_ROWS if codec.layout.is_planar else 0

    def __dealloc__(self):
        close_builder(&self.builder)

    cdef int add(
        self, const uint8_t* data, const uint64_t* offsets, Py_ssize_t n, Py_ssize_t expected
    ) except -1 nogil:
        self.is_adding = True
        read_rows(&self.codec.layout, data, offsets, n, expected, &self.builder, &self.place)
        self.is_adding = False
        return 0

    cdef int add_planes(self, const Planes* planes, int64_t expected) except -1 nogil:
        return read_planes(&self.codec.layout, planes, expected, &self.builder)

    cdef object located(self, object error):
        return self.codec.located(error, self.place.row, self.place.column)

    cdef int64_t nbytes(self) noexcept nogil:
        return builder_bytes(&self.builder)

    cdef object finished(self):
        cdef ArrowArray array
        for c in self.codec.required:
            if self.builder.children[<Py_ssize_t> c].null_count:
                error = CorruptionError("a null in a column that is not nullable")
                raise self.codec.located(error, self.place.row, c)
        memset(&array, 0, sizeof(ArrowArray))
        try:
            export_builder(&self.builder, &array)
            if self.budget is not None:
                self.budget.allow_buffers(&array)
            batch = pa.RecordBatch._import_from_c(<uintptr_t> &array, self.codec.tree.storage)
        finally:
            if array.release != NULL:
                array.release(&array)
        return self.codec.wrapped(batch) if self.codec.extensions else batch


cdef object checked(RowCodec codec, object batch):
    """Return the batch with plain types, as encoding takes it."""
    batch = codec.tree.adapt(batch, True)
    for c in codec.required:
        if batch.column(c).null_count:
            raise InvalidArgumentError(
                f"column {codec.schema.field(c).name!r} is not nullable but holds "
                f"{batch.column(c).null_count} nulls; drop them or make the field nullable"
            )
    return batch


def decode_portions(RowCodec codec not None, list portions) -> tuple:
    """Decode as a read does, for tests.

    Each portion is (rows, first, count, transposed), of which rows[first:first + count] are
    decoded. `transposed`: they have one width and are transposed as in a block. Return the batch,
    and for each portion whether its rows were read from their planes.
    """
    cdef BatchBuilder batch = BatchBuilder(codec)
    cdef Planes planes
    cdef bytes data
    cdef uint64_t[::1] offsets
    cdef list taken = []
    for rows, first, count, transposed in portions:
        if not 0 <= first <= first + count <= len(rows):
            raise ValueError(f"rows {first} to {first + count} of {len(rows)}")
        if transposed and rows:
            planes.width = <size_t> len(rows[0])
            data = b"".join(bytes(plane) for plane in zip(*rows, strict=True)) + bytes(SLACK_BYTES)
            planes.data = <const uint8_t*> <const char*> data + <Py_ssize_t> first
            planes.stride = <size_t> len(rows)
            planes.n = count
            if are_alike(&codec.layout, &planes):
                batch.add_planes(&planes, 0)
                taken.append(True)
                continue
        data = b"".join(rows[first:first + count])
        offsets = np.cumsum([0, *map(len, rows[first:first + count])], dtype=np.uint64)
        batch.add(<const uint8_t*> <const char*> data, &offsets[0], count, 0)
        taken.append(False)
    return batch.finished(), taken
