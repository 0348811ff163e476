"""Gather: rows of several batches side by side, picked by position, as the results of joins.

One call makes a whole result of all columns. pyarrow's take needs a call per column and a check per
value, which takes about three times as long for rows of 89 columns (bench/README.md).
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.arrow_read cimport (
    KIND_BOOL,
    KIND_BYTES,
    KIND_FIXED,
    KIND_FIXED_LIST,
    KIND_LARGE_BYTES,
    KIND_LIST,
    KIND_NULL,
    KIND_STRUCT,
    Node,
    TypeTree,
    bit_at,
    borrowed,
    bytes_at,
    has_nulls,
    list_at,
)
from lsmstate.cython_ext.base.coding cimport reserve
from lsmstate.cython_ext.rows.row_builder cimport (
    Builder,
    close_builder,
    export_builder,
    grow_bytes,
    open_builder,
    push_offset,
)
from lsmstate.cython_ext.rows.row_layout cimport copy_bytes

import pyarrow as pa

from lsmstate.cython_ext.errors import InvalidArgumentError
from lsmstate.cython_ext.rows.restore import restored


# Positions of rows; the value of one lies at `base` and the position in an array's buffers.
cdef struct Rows:
    const int64_t* at
    int64_t n
    int64_t base

cdef struct Wide:  # a decimal, or an interval
    uint64_t low
    uint64_t high

ctypedef fused cell:
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    Wide


@cython.final
cdef class Gatherer:
    """Makes batches of ``schema``, whose columns are those of ``sides``, side after side."""

    cdef TypeTree tree
    cdef list sides
    cdef object schema
    cdef list unplain  # columns that are to be made what they are in `schema`

    def __init__(self, sides, schema):
        self.tree = TypeTree(schema)
        self.sides = [TypeTree(side) for side in sides]
        self.schema = schema
        found = [kind for side in self.sides for kind in (<TypeTree> side).types]
        if found != self.tree.types:
            raise InvalidArgumentError(
                f"the sides' columns, {', '.join(map(str, found)) or 'none'}, are not those of the "
                f"schema, {', '.join(map(str, self.tree.types)) or 'none'}"
            )
        self.unplain = [
            c for c, kind in enumerate(self.tree.types) if schema.field(c).type != kind
        ]

    def sources(self, batches):
        """Return the source of rows: one batch per side. InvalidArgumentError for other types."""
        return Sources(self, batches)

    cdef object as_wanted(self, object batch):
        """Convert the batch to the types of `schema`."""
        columns = batch.columns
        for c in self.unplain:
            columns[c] = restored(columns[c], self.schema.field(c).type)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@cython.final
cdef class Sources:
    """The batches from which rows are picked; they live as long as this object."""

    cdef Gatherer gatherer
    cdef list capsules
    cdef const ArrowArray** arrays  # of the batches
    cdef Py_ssize_t n

    def __cinit__(self, Gatherer gatherer not None, batches):
        self.gatherer = gatherer
        self.capsules = []
        self.arrays = <const ArrowArray**> calloc(len(batches) + 1, sizeof(void*))
        if self.arrays == NULL:
            raise MemoryError(f"cannot allocate {len(batches)} sources")
        if len(batches) != len(gatherer.sides):
            raise InvalidArgumentError(
                f"{len(batches)} batches for {len(gatherer.sides)} sides; give one for each"
            )
        for tree, batch in zip(gatherer.sides, batches, strict=True):
            _, capsule = (<TypeTree> tree).adapt(batch, False).__arrow_c_array__()
            self.capsules.append(capsule)
            self.arrays[self.n] = borrowed(capsule)
            self.n += 1

    def __init__(self, gatherer, batches):
        pass

    def __dealloc__(self):
        free(self.arrays)

    def gather(self, places):
        """Make a batch: row i has row ``places[s][i]`` of each side s.

        IndexError for a place that does not exist. Cost: one pass per column, about 2 ns per value.
        """
        cdef Builder builder
        cdef ArrowArray array
        cdef Rows* rows
        cdef const int64_t[::1] found
        cdef Py_ssize_t side
        if len(places) != self.n:
            raise InvalidArgumentError(f"places of {len(places)} sides, not of {self.n}")
        rows = <Rows*> calloc(self.n + 1, sizeof(Rows))
        if rows == NULL:
            raise MemoryError(f"cannot allocate {self.n} sides")
        memset(&builder, 0, sizeof(Builder))
        memset(&array, 0, sizeof(ArrowArray))
        try:
            for side in range(self.n):
                found = places[side]
                rows[side].n = found.shape[0]
                rows[side].at = &found[0] if rows[side].n else NULL
                self.check(rows, side)
            with nogil:
                open_builder(&builder, &self.gatherer.tree.root, NULL)
                self.fill(&builder, rows)
                export_builder(&builder, &array)
            batch = pa.RecordBatch._import_from_c(<uintptr_t> &array, self.gatherer.tree.storage)
        finally:
            free(rows)
            close_builder(&builder)
            if array.release != NULL:
                array.release(&array)
        return self.gatherer.as_wanted(batch) if self.gatherer.unplain else batch

    cdef int check(self, const Rows* rows, Py_ssize_t side) except -1:
        cdef uint64_t length = <uint64_t> self.arrays[side].length
        cdef uint64_t highest = 0  # of a negative place too
        cdef int64_t i
        if rows[side].n != rows[0].n:
            raise InvalidArgumentError(
                f"{rows[0].n} places in side 0, {rows[side].n} in side {side}"
            )
        for i in range(rows[side].n):
            highest = max(highest, <uint64_t> rows[side].at[i])
        if rows[side].n and highest >= length:
            raise IndexError(f"side {side}: place {<int64_t> highest} of {length} rows")
        return 0

    cdef int fill(self, Builder* builder, Rows* rows) except -1 nogil:
        cdef const ArrowArray* batch
        cdef Py_ssize_t side, c, column = 0
        for side in range(self.n):
            batch = self.arrays[side]
            for c in range(batch.n_children):
                rows[side].base = batch.offset + batch.children[c].offset
                gather_column(&builder.children[column], batch.children[c], &rows[side])
                column += 1
        builder.length = rows[0].n if self.n else 0
        return 0


cdef int gather_column(Builder* builder, const ArrowArray* array, const Rows* rows) except -1 nogil:
    """Fill an empty builder."""
    cdef const Node* node = builder.node
    cdef int64_t valid = rows.n
    cdef int64_t c
    cdef Rows inside
    builder.length = rows.n
    if node.kind == KIND_NULL:
        return 0
    if has_nulls(array):
        reserve(&builder.validity, (rows.n + 7) >> 3)
        valid = gather_bits(builder.validity.data, <const uint8_t*> array.buffers[0], rows)
        builder.null_count = rows.n - valid
    if node.kind == KIND_FIXED:
        reserve(&builder.values, rows.n * node.width)
        gather_fixed(builder.values.data, array, node.width, rows)
    elif node.kind == KIND_BOOL:
        reserve(&builder.values, (rows.n + 7) >> 3)
        gather_bits(builder.values.data, <const uint8_t*> array.buffers[1], rows)
    elif node.kind == KIND_BYTES or node.kind == KIND_LARGE_BYTES:
        gather_bytes(builder, array, rows)
    elif node.kind == KIND_STRUCT:
        inside = rows[0]
        for c in range(node.n_children):
            inside.base = rows.base + array.children[c].offset
            gather_column(&builder.children[c], array.children[c], &inside)
    else:
        gather_lists(builder, array, rows)
    return 0


cdef int64_t gather_bits(uint8_t* target, const uint8_t* bits, const Rows* rows) noexcept nogil:
    """Return how many of them are set."""
    cdef int64_t i, k
    cdef int64_t found = 0
    cdef uint32_t bit, byte
    for i in range(0, rows.n, 8):
        byte = 0
        for k in range(min(<int64_t> 8, rows.n - i)):
            bit = bit_at(bits, rows.base + rows.at[i + k])
            byte |= bit << k
            found += bit
        target[i >> 3] = <uint8_t> byte
    return found


cdef void gather_fixed(
    uint8_t* target, const ArrowArray* array, int64_t width, const Rows* rows
) noexcept nogil:
    cdef const uint8_t* source = <const uint8_t*> array.buffers[1] + rows.base * width
    cdef int64_t i
    if width == 8:
        gather_cells(<uint64_t*> target, <const uint64_t*> source, rows)
    elif width == 16:
        gather_cells(<Wide*> target, <const Wide*> source, rows)
    elif width == 4:
        gather_cells(<uint32_t*> target, <const uint32_t*> source, rows)
    elif width == 2:
        gather_cells(<uint16_t*> target, <const uint16_t*> source, rows)
    elif width == 1:
        gather_cells(target, source, rows)
    elif width:
        for i in range(rows.n):
            memcpy(target + i * width, source + rows.at[i] * width, width)


cdef void gather_cells(cell* target, const cell* source, const Rows* rows) noexcept nogil:
    cdef int64_t i
    for i in range(rows.n):
        target[i] = source[rows.at[i]]


cdef bint is_null(const Builder* builder, int64_t i) noexcept nogil:
    """Test a gathered value."""
    return builder.null_count and not bit_at(builder.validity.data, i)


cdef int gather_bytes(Builder* builder, const ArrowArray* array, const Rows* rows) except -1 nogil:
    cdef int64_t i
    cdef int64_t size = 0
    cdef int64_t total = 0
    cdef uint8_t* target
    cdef const uint8_t* source
    for i in range(rows.n):
        bytes_at(builder.node, array, rows.base + rows.at[i], &size)
        total += 0 if is_null(builder, i) else size
    grow_bytes(builder, total)
    reserve(&builder.offsets, rows.n * (4 if builder.node.kind == KIND_BYTES else 8))
    target = builder.values.data
    for i in range(rows.n):
        source = bytes_at(builder.node, array, rows.base + rows.at[i], &size)
        if not is_null(builder, i):
            copy_bytes(target, source, size)
            target += size
        if builder.node.kind == KIND_BYTES:
            (<int32_t*> builder.offsets.data)[i + 1] = <int32_t> (target - builder.values.data)
        else:
            (<int64_t*> builder.offsets.data)[i + 1] = target - builder.values.data
    builder.values.size = total
    return 0


cdef int gather_lists(Builder* builder, const ArrowArray* array, const Rows* rows) except -1 nogil:
    cdef const Node* node = builder.node
    cdef Rows inside
    cdef int64_t* at
    cdef int64_t i, k, size
    cdef int64_t start = 0
    inside.n = inside.base = 0
    for i in range(rows.n):
        size = list_at(node, array, rows.base + rows.at[i], &start)
        if node.kind != KIND_FIXED_LIST:
            inside.n += 0 if is_null(builder, i) else size
            push_offset(builder, inside.n)
        else:
            inside.n += size
    at = <int64_t*> malloc(inside.n * sizeof(int64_t) + 1)
    if at == NULL:
        with gil:
            raise MemoryError(f"cannot allocate the places of {inside.n} list elements")
    inside.at = at
    inside.n = 0
    for i in range(rows.n):
        size = list_at(node, array, rows.base + rows.at[i], &start)
        if node.kind != KIND_FIXED_LIST and is_null(builder, i):
            continue
        for k in range(size):
            at[inside.n + k] = start + k
        inside.n += size
    try:
        gather_column(builder.children, array.children[0], &inside)
    finally:
        free(at)
    return 0
