"""Batches as callers have them, converted to the columns that a function expects.

- A batch is any object of the Arrow PyCapsule protocol (``__arrow_c_stream__`` or
  ``__arrow_c_array__``), a mapping of columns, or a list of dictionaries.
- Columns are matched by name, in any order.
- Types are cast where no value changes. Everything else is refused with the column, a value and
  the remedy, before the caller has done anything with the batch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.arrow_read import plain_type
from lsmstate.cython_ext.rows.restore import restored
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.exact_casts import changing_row, exact_cast, is_castable
from lsmstate.schema.python_values import as_text, is_kept
from lsmstate.store import BatchLike

_REMEDY: Final = (
    "give a pyarrow, polars or pandas table, a DuckDB relation, a mapping of columns such as "
    "{'id': [1, 2]}, or a list of dictionaries"
)
#: Errors of libraries that convert a batch to Arrow.
_REFUSALS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)
#: Columns that pandas adds for an index without a name.
_PANDAS_INDEX: Final = re.compile(r"__index_level_\d+__")


def as_batch(
    given: BatchLike,
    schema: pa.Schema,
    what: str,
    *,
    stored: pa.Schema | None = None,
    is_renamed: bool = False,
) -> pa.RecordBatch:
    """Convert a batch to the columns of a schema.

    Args:
        given: The batch.
        schema: The columns that are expected.
        what: What the batch is, for messages.
        stored: The same columns with the types in which a store keeps them. They are accepted as
            well, and columns of other types are cast to them.
        is_renamed: Whether the columns may have other names. They are then taken as they stand,
            unless all names of the schema are given.

    Returns:
        The batch, in the order of the schema.

    Raises:
        InvalidArgumentError: The object is no batch, a column is missing, unknown or given twice,
            or a value would change.

    Cost:
        One comparison of schemas if the batch has the schema. Otherwise columns are cast, and
        several chunks are copied into one.
    """
    stored = schema if stored is None else stored
    if isinstance(given, pa.RecordBatch) and _fits(given.schema, schema, stored):
        return given
    names, columns, count = _columns(given, schema, what)
    places = _places(names, schema, what, is_renamed)
    arrays, fields = [], []
    for field, kept, place in zip(schema, stored, places, strict=True):
        array = _column(columns[place], names[place], field.type, kept.type, what)
        arrays.append(array)
        fields.append(field.with_type(array.type))
    if not arrays:
        return _without_columns(count)
    _check_lengths(arrays, schema.names, what)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def arrow_batch(given: BatchLike, what: str) -> pa.RecordBatch:
    """Convert a batch whose columns may be any; Arrow chooses the types of Python's values.

    Args:
        given: The batch.
        what: What the batch is, for messages.

    Returns:
        The batch.

    Raises:
        InvalidArgumentError: The object is no batch, or a value has no type of Arrow.
    """
    if isinstance(given, pa.RecordBatch):
        return given
    names, columns, count = _columns(given, pa.schema([]), what)
    arrays = []
    for name, column in zip(names, columns, strict=True):
        where = f"{what}: column {name!r}"
        is_arrow_array = isinstance(column, pa.Array | pa.ChunkedArray)
        arrays.append(
            _one_array(column, where) if is_arrow_array else _of_values(column, None, where)
        )
    _check_lengths(arrays, names, what)
    if not arrays:
        return _without_columns(count)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def is_arrow(given: object) -> bool:
    """Test whether an object is of the Arrow PyCapsule protocol."""
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def _columns(given: object, schema: pa.Schema, what: str) -> tuple[list[str], Sequence[Any], int]:
    """Names and columns, which are Arrow arrays, chunked arrays, or Python values; and the number
    of rows, where there are no columns."""
    if isinstance(given, pa.RecordBatch | pa.Table):
        table = given
    elif is_arrow(given):
        table = _imported(given, what)
    elif isinstance(given, Mapping):
        _check_names(given, what)
        return list(given), list(given.values()), 0
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray):
        if not given:
            return schema.names, [pa.nulls(0)] * len(schema), 0
        return *_of_rows(given, what), len(given)
    else:
        raise InvalidArgumentError(f"{what}: given a {type(given).__name__}; {_REMEDY}")
    return table.schema.names, table.columns, table.num_rows


def _imported(given: Any, what: str) -> pa.Table | pa.RecordBatch:
    try:
        is_stream = hasattr(given, "__arrow_c_stream__")
        table = pa.table(given) if is_stream else pa.record_batch(given)
    except _REFUSALS as error:
        raise InvalidArgumentError(
            f"{what}: a {type(given).__name__} that is no table of columns ({error}); {_REMEDY}"
        ) from error
    index = [name for name in table.schema.names if _PANDAS_INDEX.fullmatch(name)]
    # An index without a name is no column; a reset index is.
    return table.drop_columns(index) if index else table


def _of_rows(rows: Sequence[Any], what: str) -> tuple[list[str], list[list[Any]]]:
    names: dict[str, None] = {}
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidArgumentError(
                f"{what}: row {at} is {_short(row)}, a {type(row).__name__}; {_REMEDY}"
            )
        names.update(dict.fromkeys(row))
    _check_names(names, what)
    return list(names), [[row.get(name) for row in rows] for name in names]


def _check_names(names: Iterable[object], what: str) -> None:
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError(
                f"{what}: the column name {name!r} is a {type(name).__name__}; give a text"
            )


def _places(names: Sequence[str], schema: pa.Schema, what: str, is_renamed: bool) -> Sequence[int]:
    """Where the column of each field stands."""
    wanted = schema.names
    if names == wanted:
        return range(len(wanted))
    # One name that is right says that the others are wrong: nothing is taken by its place then.
    if is_renamed and len(names) == len(wanted) and set(names).isdisjoint(wanted):
        return range(len(wanted))
    missing = [name for name in wanted if name not in names]
    unknown = [name for name in names if name not in wanted]
    twice = sorted({name for name in names if names.count(name) > 1})
    found = [
        f"{kind} {', '.join(map(repr, some))}"
        for kind, some in (("missing", missing), ("unknown", unknown), ("given twice", twice))
        if some
    ]
    if found:
        raise InvalidArgumentError(
            f"{what}: columns {'; '.join(found)}; give each of {', '.join(wanted)} once, in any "
            "order"
        )
    return [names.index(name) for name in wanted]


def selected(given: BatchLike, names: Sequence[str], what: str) -> BatchLike:
    """Return some columns of a batch, unconverted.

    Args:
        given: The batch.
        names: The columns.
        what: What the batch is, for messages.

    Returns:
        The columns, in the order of the names.

    Raises:
        InvalidArgumentError: The object is no batch, or a column is missing.
    """
    found, columns, _ = _columns(given, pa.schema([(name, pa.null()) for name in names]), what)
    for kind, wrong in (("missing", 0), ("given twice", 2)):
        some = [name for name in names if min(found.count(name), 2) == wrong]
        if some:
            raise InvalidArgumentError(
                f"{what}: columns {kind} {', '.join(map(repr, some))}; the batch has "
                f"{', '.join(found)}"
            )
    return {name: columns[found.index(name)] for name in names}


def _fits(given: pa.Schema, schema: pa.Schema, stored: pa.Schema) -> bool:
    """Test whether a batch needs no change. Whether a field may hold nulls does not matter: nothing
    relies on it."""
    if given.equals(schema):
        return True
    if given.names != schema.names:
        return False
    types = given.types
    return types == schema.types or all(
        have in (wanted, kept)
        for have, wanted, kept in zip(types, schema.types, stored.types, strict=True)
    )


def _column(given: Any, name: str, wanted: pa.DataType, stored: pa.DataType, what: str) -> pa.Array:
    """A column with one of two types."""
    where = f"{what}: column {name!r}"
    if isinstance(given, pa.Array | pa.ChunkedArray):
        array = _one_array(given, where)
    else:
        array = _of_values(given, wanted, where)
    if array.type in (wanted, stored):
        return array
    return _cast(array, wanted, stored, where)


def _one_array(given: pa.Array | pa.ChunkedArray, where: str) -> pa.Array:
    if isinstance(given, pa.Array):
        return given
    array = given.chunk(0) if given.num_chunks == 1 else given.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise InvalidArgumentError(
            f"{where}: {given.nbytes} bytes do not fit one {given.type} column; give fewer rows at "
            "a time"
        )
    return array


def _of_values(given: Any, wanted: pa.DataType | None, where: str) -> pa.Array:
    """An array of the values of a mapping's column. Without a type that is wanted, Arrow chooses
    one for Python's values."""
    try:
        if hasattr(given, "__arrow_c_stream__"):
            return _one_array(pa.chunked_array(given), where)
        if hasattr(given, "__arrow_c_array__"):
            return pa.array(given)
        if isinstance(given, np.ndarray) and given.dtype == object and given.ndim == 1:
            given = given.tolist()
        elif hasattr(given, "__array__") and np.ndim(given) == 1:
            return _one_array(pa.array(given), where)
    except _REFUSALS as error:
        raise InvalidArgumentError(
            f"{where}: a {type(given).__name__} that is no column ({error}); give a list of values"
        ) from error
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise InvalidArgumentError(
            f"{where}: {_short(given)} is a {type(given).__name__}; give a list of values, one per "
            "row"
        )
    if wanted is not None:
        return _of_python(given, wanted, where)
    try:
        return _one_array(pa.array(given), where)
    except _REFUSALS as error:
        raise InvalidArgumentError(
            f"{where}: {error}; give values of one type, or a column of Arrow"
        ) from error


def _of_python(values: Sequence[Any], wanted: pa.DataType, where: str) -> pa.Array:
    """An array of Python values; floats may be rounded, since Python has one type of them."""
    # pyarrow cannot make dictionaries of times, views or nested values.
    kind = wanted if isinstance(wanted, pa.BaseExtensionType) else plain_type(wanted)
    try:
        made = _one_array(pa.array(values, kind), where)
        made.validate()  # a set may make a fixed-size list with too few values
    except _REFUSALS as error:
        _refuse_value(values, kind, where, error)
    for at, (value, found) in enumerate(zip(values, _shown(made), strict=True)):
        if type(value) is type(found) and value == found:
            continue
        if not is_kept(value, made[at]):
            raise InvalidArgumentError(
                f"{where}, row {at}: {_short(value)} would become {as_text(made[at])[:80]} as "
                f"{wanted}; give values of {wanted}"
            )
    return restored(made, wanted) if kind != wanted else made


def _shown(made: pa.Array) -> Sequence[Any]:
    """The values in Python, where they can be compared with ``==``; None elsewhere."""
    if made.type.num_fields or isinstance(made.type, pa.BaseExtensionType):
        return [None] * len(made)
    try:
        return list(made.to_pylist())
    except (ValueError, OverflowError):  # times that Python has no value for
        return [None] * len(made)


def _refuse_value(
    values: Sequence[Any], kind: pa.DataType, where: str, error: Exception
) -> NoReturn:
    """Raise InvalidArgumentError, which names the first value that is no value of the type."""
    for at, value in enumerate(values):
        try:
            pa.array([value], kind).validate()
        except _REFUSALS as found:
            raise InvalidArgumentError(
                f"{where}, row {at}: {_short(value)} is not of the type {kind} "
                f"({str(found)[:200]}); give values of {kind}"
            ) from found
    raise InvalidArgumentError(f"{where}: {error}; give values of {kind}") from error


def _cast(array: pa.Array, wanted: pa.DataType, stored: pa.DataType, where: str) -> pa.Array:
    is_extension = isinstance(wanted, pa.BaseExtensionType)
    kind = plain_type(wanted.storage_type if is_extension else wanted)
    if not is_castable(array.type, kind):
        valid = next((as_text(value) for value in array if value.is_valid), "no value")
        raise InvalidArgumentError(
            f"{where}: expected {wanted}, given {array.type}, such as {valid[:80]}; cast the "
            f"column to {wanted} first"
        )
    try:
        made = exact_cast(array, kind)
    except pa.ArrowInvalid as error:
        at = changing_row(array, kind)
        raise InvalidArgumentError(
            f"{where}, row {at}: {as_text(array[at])[:80]} of {array.type} would change as "
            f"{wanted} ({error}); give values that {wanted} holds, or cast the column first"
        ) from error
    return made if kind == stored else restored(made, wanted)


def _without_columns(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(count)], names=["rows"]).select([])


def _check_lengths(arrays: Sequence[pa.Array], names: Sequence[str], what: str) -> None:
    if len({len(array) for array in arrays}) > 1:
        listed = ", ".join(f"{n} {len(a)}" for n, a in zip(names, arrays, strict=True))
        raise InvalidArgumentError(
            f"{what}: columns of different lengths: {listed}; give each one value per row"
        )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."
