"""Type trees: a schema as C structs, and conversion of batches to that schema's plain types.

Plain means: no dictionaries, no views, no extension types. Batches are converted before C code
reads them; unions and run-end-encoded columns are refused.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc, free

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray

import pyarrow as pa
from pyarrow import types as pt

from lsmstate.cython_ext.errors import InvalidArgumentError
from lsmstate.cython_ext.rows.nested import remade

cdef int DEEPEST = 64  # levels of nesting; recursion in C stays far below the stack's end


@cython.final
cdef class TypeTree:
    """The columns of a schema as nodes. ``schema`` has plain types, but keeps extension types of
    whole columns; ``storage`` has their storage types."""

    def __cinit__(self, schema, bint for_keys=False):
        if not isinstance(schema, pa.Schema):
            raise InvalidArgumentError(
                f"the schema is a {type(schema).__name__}; pass a pyarrow.Schema"
            )
        kept = []
        stored = []
        for field in schema:
            try:
                extension = isinstance(field.type, pa.BaseExtensionType)
                plain = plain_type(field.type.storage_type if extension else field.type)
                if for_keys:
                    refuse_maps(plain)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"column {field.name!r}: {error}") from None
            stored.append(field.with_type(plain))
            kept.append(field if extension else field.with_type(plain))
        self.schema = pa.schema(kept, metadata=schema.metadata)
        self.storage = pa.schema(stored, metadata=schema.metadata)
        self.types = self.storage.types
        fill_node(&self.root, pa.struct(stored), 0)

    def __init__(self, schema, bint for_keys=False):
        pass

    def __dealloc__(self):
        free_children(&self.root)

    cdef object adapt(self, object batch, bint named):
        """Return the batch with plain types; raise InvalidArgumentError if its types (and with
        ``named`` its column names) are not this tree's."""
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidArgumentError(
                f"got a {type(batch).__name__}; pass a pyarrow.RecordBatch"
            )
        if batch.schema.equals(self.storage):
            return batch
        found = batch.schema
        if len(found) != len(self.types) or (named and found.names != self.storage.names):
            raise mismatch(self.schema, found)
        if found.types == self.types:
            return batch
        columns = []
        for column, wanted in zip(batch.columns, self.types, strict=True):
            if isinstance(column, pa.ExtensionArray):
                column = column.storage
            if column.type != wanted:
                if not castable(column.type, wanted):
                    raise mismatch(self.schema, found)
                column = plain_column(column, wanted)
            columns.append(column)
        if not columns:
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=self.storage)


cdef const ArrowArray* borrowed(object capsule) except NULL:
    """Return the array in a capsule; it lives as long as the capsule."""
    return <const ArrowArray*> PyCapsule_GetPointer(capsule, "arrow_array")


def plain_column(column, wanted):
    """Convert the column to ``wanted``, its plain type."""
    if column.type == wanted:
        return column
    if pt.is_dictionary(column.type):
        values, places = column.dictionary, column.indices
        if not len(values):  # all are null, even if a null struct hides that
            return pa.nulls(len(places), wanted)
        try:
            used = values.take(places) if len(places) < len(values) else None
        except pa.ArrowNotImplementedError:  # of views
            used = None
        if used is not None:
            return plain_column(used, wanted)
        return plain_column(values, wanted).take(places)
    return remade(column, wanted, plain_column) if pt.is_nested(wanted) else column.cast(wanted)


cdef object mismatch(object wanted, object found):
    return InvalidArgumentError(
        f"the batch has the columns {described(found)}, expected {described(wanted)}; "
        "select and cast them first"
    )


def described(schema) -> str:
    return "(" + ", ".join(f"{field.name}: {field.type}" for field in schema) + ")"


def castable(found, wanted) -> bool:
    try:
        return plain_type(found) == wanted
    except InvalidArgumentError:
        return False


def plain_type(t):
    """Return the type without dictionaries and views, at any depth."""
    if pt.is_dictionary(t):
        return plain_type(t.value_type)
    if pt.is_string_view(t):
        return pa.string()
    if pt.is_binary_view(t):
        return pa.binary()
    if pt.is_map(t):
        return pa.map_(
            t.key_field.with_type(plain_type(t.key_type)),
            t.item_field.with_type(plain_type(t.item_type)),
            keys_sorted=t.keys_sorted,
        )
    if pt.is_struct(t):
        return pa.struct([field.with_type(plain_type(field.type)) for field in t])
    if pt.is_list(t) or pt.is_list_view(t):
        return pa.list_(t.value_field.with_type(plain_type(t.value_type)))
    if pt.is_large_list(t) or pt.is_large_list_view(t):
        return pa.large_list(t.value_field.with_type(plain_type(t.value_type)))
    if pt.is_fixed_size_list(t):
        return pa.list_(t.value_field.with_type(plain_type(t.value_type)), t.list_size)
    if isinstance(t, pa.BaseExtensionType):
        raise InvalidArgumentError(
            f"{t} cannot be stored inside a nested type; cast it to {t.storage_type}"
        )
    if pt.is_union(t) or pt.is_run_end_encoded(t):
        raise InvalidArgumentError(f"{t} cannot be stored; cast the column to a plain type")
    return t


def refuse_maps(t) -> None:
    """Raise for maps: they have no order and no equality to join by."""
    if pt.is_map(t):
        raise InvalidArgumentError(
            f"{t} cannot be a key, maps have no order; use a list of sorted entries"
        )
    for i in range(t.num_fields):
        refuse_maps(t.field(i).type)


cdef int fill_node(Node* node, object t, int depth) except -1:
    if depth > DEEPEST:
        raise InvalidArgumentError(f"types nest at most {DEEPEST} deep; flatten the column")
    node.order = ORDER_RAW
    if pt.is_null(t):
        node.kind = KIND_NULL
    elif pt.is_boolean(t):
        node.kind = KIND_BOOL
        node.row_width = node.key_width = 1
    elif pt.is_struct(t):
        node.kind = KIND_STRUCT
        return fill_children(node, [field.type for field in t], depth)
    elif pt.is_map(t):
        node.kind = KIND_LIST
        entries = pa.struct([t.key_field, t.item_field])
        fill_children(node, [entries], depth)
        node.children.required = node.children.children.required = True
    elif pt.is_list(t) or pt.is_large_list(t):
        node.kind = KIND_LIST if pt.is_list(t) else KIND_LARGE_LIST
        return fill_children(node, [t.value_type], depth)
    elif pt.is_fixed_size_list(t):
        node.kind = KIND_FIXED_LIST
        node.width = t.list_size
        return fill_children(node, [t.value_type], depth)
    elif pt.is_string(t) or pt.is_binary(t):
        node.kind = KIND_BYTES
    elif pt.is_large_string(t) or pt.is_large_binary(t):
        node.kind = KIND_LARGE_BYTES
    else:
        fill_fixed(node, t)
    return 0


cdef int fill_fixed(Node* node, object t) except -1:
    """Describe a type of fixed width: numbers, times, decimals, fixed-size binary."""
    try:
        # Their bits are counted in 32 bits.
        node.width = t.byte_width if pt.is_fixed_size_binary(t) else t.bit_width // 8
    except ValueError:
        raise InvalidArgumentError(f"{t} cannot be stored; cast the column") from None
    node.kind = KIND_FIXED
    node.row_width = node.key_width = node.width
    if pt.is_decimal(t):
        node.order = ORDER_DECIMAL
        node.row_width = narrowed(t.precision)
        node.key_width = max(8, node.row_width)
    elif pt.is_unsigned_integer(t):
        node.order = ORDER_UNSIGNED
    elif pt.is_floating(t):
        node.order = ORDER_FLOAT
    elif pt.is_interval(t):
        node.order = ORDER_INTERVAL
    elif pt.is_signed_integer(t) or pt.is_temporal(t):
        node.order = ORDER_SIGNED
    elif not pt.is_fixed_size_binary(t):
        raise InvalidArgumentError(f"{t} cannot be stored; cast the column")
    return 0


def narrowed(precision: int) -> int:
    """Return the bytes that hold any decimal of this precision."""
    if precision <= 9:
        return 4
    if precision <= 18:
        return 8
    return 16 if precision <= 38 else 32


cdef int fill_children(Node* node, list types, int depth) except -1:
    cdef Py_ssize_t i
    if not types:
        return 0
    node.children = <Node*> calloc(len(types), sizeof(Node))
    if node.children == NULL:
        raise MemoryError(f"cannot allocate {len(types)} type nodes")
    node.n_children = len(types)
    for i in range(len(types)):
        fill_node(&node.children[i], types[i], depth + 1)
    return 0


cdef void free_children(Node* node) noexcept:
    cdef Py_ssize_t i
    for i in range(node.n_children):
        free_children(&node.children[i])
    free(node.children)
    node.children = NULL
    node.n_children = 0
