"""Keys and bounds that are given as Python values."""

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.arrow_read import plain_type
from lsmstate.cython_ext.rows.restore import restored
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.python_values import as_text, is_kept, is_list_like, shown
from lsmstate.store import KeyValues, StreamSchema

#: Sequences that are single values: text, bytes and scalars.
_SINGLE = (str, bytes, bytearray, memoryview, pa.Scalar)
#: Time units that numpy and Arrow share.
_ARROW_UNITS = [(unit, 1) for unit in ("s", "ms", "us", "ns")]


def key_values(stream: StreamSchema, name: str, given: KeyValues) -> tuple[Any, ...]:
    """Return the values of key columns. A single key column's value needs no tuple; a list column's
    value is a list. Raise InvalidArgumentError for something else, or for more values than columns.
    """
    if len(stream.key) == 1 and _is_value(given, _plain_type(stream.key.types[0])):
        return (given,)
    if isinstance(given, np.ndarray):
        given = list(given) if given.ndim else given[()]
    if isinstance(given, Sequence | pa.Array) and not isinstance(given, _SINGLE):
        if len(given) <= len(stream.key):
            return tuple(given)
    elif len(stream.key) == 1 and not isinstance(given, set | frozenset):
        return (given,)
    raise InvalidArgumentError(
        f"{name}={shown(given)} of stream {stream.name!r}: give a tuple with values of the first "
        f"of the key columns {', '.join(stream.key.names)}"
    )


def _is_value(given: Any, kind: pa.DataType) -> bool:
    """Test whether a sequence is the value of the only key column, not a tuple of columns."""
    if isinstance(given, pa.MonthDayNano):
        return True
    if not is_list_like(kind) or not isinstance(given, list | np.ndarray | pa.Array):
        return False
    # A list in a list is a tuple of columns if the column's lists do not hold lists.
    is_around = len(given) == 1 and isinstance(
        given[0], list | np.ndarray | pa.Array | pa.ListScalar
    )
    return not is_around or is_list_like(kind.field(0).type)


def one_key(stream: StreamSchema, key: KeyValues) -> pa.RecordBatch:
    """Convert a key of Python values to a batch; raise InvalidArgumentError unless it has all key
    columns."""
    values = key_values(stream, "key", key)
    if len(values) != len(stream.key):
        raise InvalidArgumentError(
            f"key {shown(key)} of stream {stream.name!r}: give one value for each of the columns "
            f"{stream.key.names}"
        )
    return key_batch(stream, values)


def key_batch(stream: StreamSchema, values: Sequence[Any]) -> pa.RecordBatch:
    """Convert the values of the first key columns to a batch of one row.

    Raise InvalidArgumentError if a value does not fit its column's type, or would be rounded, which
    would make it another key.
    """
    columns = list(stream.key)[: len(values)]
    named = f"key {shown(tuple(values))} of stream {stream.name!r}"
    arrays = []
    for field, given in zip(columns, values, strict=True):
        try:
            # pyarrow cannot make dictionaries of times, views or nested values.
            kind = _plain_type(field.type)
            value = _plain(given, kind)
            array = (
                pa.array([value], value.type).cast(kind)
                if isinstance(value, pa.Scalar)
                else pa.array([value], kind)
            )
            array.validate()  # a set may make a fixed-size list with too few values
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"{named}: {shown(given)} is not of the type {field.type} of column {field.name!r} "
                f"({_cause(error)})"
            ) from error
        if _loses_its_zone(value, kind) or not (
            isinstance(value, pa.Scalar) or is_kept(value, array[0])
        ):
            raise InvalidArgumentError(
                f"{named}: {shown(given)} would become {as_text(array[0])} in column "
                f"{field.name!r} of type {field.type}; give a value that the column keeps"
                f"{_zone(field.type)}"
            )
        arrays.append(restored(array, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(columns))


def _cause(error: Exception) -> str:
    """Return Arrow's sentence, which may repeat the value."""
    text = str(error)
    return text if len(text) <= 300 else f"{text[:100]}...{text[-160:]}"


def _loses_its_zone(value: Any, kind: pa.DataType) -> bool:
    """Test whether this is an Arrow time with a zone for a column without one."""
    return (
        isinstance(value, pa.Scalar)
        and pa.types.is_timestamp(value.type)
        and pa.types.is_timestamp(kind)
        and value.type.tz is not None
        and kind.tz is None
    )


def _zone(kind: pa.DataType) -> str:
    has_none = pa.types.is_time(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    return ", such as a time without a time zone" if has_none else ""


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries and views, as keys are stored. An extension type of a
    whole column stays."""
    return kind if isinstance(kind, pa.BaseExtensionType) else plain_type(kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Convert a numpy or Arrow scalar to a Python value. An Arrow time of a time column stays,
    since Python's times have no nanoseconds."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.datetime_data(value.dtype) not in _ARROW_UNITS:
            return _python_time(value, kind)
        value = pa.scalar(value)
    elif isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, pa.Scalar):
        return value
    if pa.types.is_temporal(kind) and value.type.id == kind.id:
        return value
    return value.as_py()


def _python_time(value: np.datetime64 | np.timedelta64, kind: pa.DataType) -> Any:
    """Convert a numpy time, of a unit that Arrow lacks, to a Python value; a day is the midnight at
    its start. Raise ValueError outside the range of Python's times."""
    found: Any = value.item()
    if isinstance(found, int):
        raise ValueError("as such a unit it has to lie in the years 1 to 9999")
    if pa.types.is_timestamp(kind) and type(found) is datetime.date:
        return datetime.datetime.combine(found, datetime.time())
    return found
