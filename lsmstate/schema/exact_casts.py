"""Casts of Arrow columns in which no value changes.

- Numbers become other numbers of the same value: an integer any number that holds it, a decimal one
  with other digits or an integer, a float another float or an integer.
- Text and bytes change their width of offsets. Dictionaries and views become their values.
- Times keep the moment: other units, dates as midnights, and a zone as another zone. A time with a
  zone and one without are never cast to each other, because that needs a decision.
- Lists, structs and maps are cast if their parts are.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from lsmstate.cython_ext.rows.arrow_read import plain_column, plain_type
from lsmstate.cython_ext.rows.nested import remade
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.python_values import as_text

#: Digits that hold any integer.
_WHOLE: Final = pa.decimal128(20, 0)


def is_castable(have: pa.DataType, wanted: pa.DataType) -> bool:
    """Test whether values of a type may be cast to another, plain one, as far as they fit it."""
    try:
        return _is_castable(plain_type(have), wanted)
    except InvalidArgumentError:  # no type of a stored column
        return False


def exact_cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast a column to a plain type for which ``is_castable``.

    Raises:
        pa.ArrowInvalid: A value would change.

    Cost:
        One pass of Arrow's kernels; two where Arrow does not check by itself.
    """
    try:
        return _exact(plain_column(column, plain_type(column.type)), wanted)
    except pa.ArrowNotImplementedError as error:
        raise pa.ArrowInvalid(str(error)) from error


def changing_row(column: pa.Array, wanted: pa.DataType) -> int:
    """Return the first row that ``exact_cast`` refuses. It refuses the column."""
    first, last = 0, len(column)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            exact_cast(column.slice(first, middle - first), wanted)
        except pa.ArrowInvalid:
            last = middle
        else:
            first = middle
    return first


def _is_castable(have: pa.DataType, wanted: pa.DataType) -> bool:
    if have == wanted or pt.is_null(have):
        return True
    if _is_list(wanted):
        return _is_list(have) and _is_castable(have.value_type, wanted.value_type)
    if pt.is_map(wanted):
        return bool(
            pt.is_map(have)
            and _is_castable(have.key_type, wanted.key_type)
            and _is_castable(have.item_type, wanted.item_type)
        )
    if pt.is_struct(wanted):
        names = _names(wanted)
        return (
            pt.is_struct(have)
            and sorted(_names(have)) == sorted(names)
            and len(set(names)) == len(names)
            and all(_is_castable(have.field(f.name).type, f.type) for f in wanted)
        )
    return _is_leaf_castable(have, wanted)


def _is_leaf_castable(have: pa.DataType, wanted: pa.DataType) -> bool:
    if pt.is_integer(have):
        return bool(pt.is_integer(wanted) or pt.is_floating(wanted) or pt.is_decimal(wanted))
    if pt.is_decimal(have):
        return bool(pt.is_decimal(wanted) or pt.is_integer(wanted))
    if pt.is_timestamp(have) and pt.is_timestamp(wanted):
        return (have.tz is None) == (wanted.tz is None)
    if pt.is_timestamp(have) or pt.is_timestamp(wanted):
        return (pt.is_date(have) or pt.is_date(wanted)) and _zone(have) is _zone(wanted) is None
    if _is_bytes(have):
        return _is_bytes(wanted)
    if pt.is_floating(have):
        return bool(pt.is_floating(wanted) or pt.is_integer(wanted))
    kinds = (_is_text, pt.is_date, pt.is_time, pt.is_duration)
    return any(is_kind(have) and is_kind(wanted) for is_kind in kinds)


def _exact(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    have = column.type
    if have == wanted:
        return column
    if pt.is_null(have):
        return pa.nulls(len(column), wanted)
    if _is_list(wanted):
        column = _relisted(column, wanted)
        return column if column.type == wanted else remade(column, wanted, _exact)
    if pt.is_map(wanted):
        return remade(column, wanted, _exact)
    if pt.is_struct(wanted):
        return _restructured(column, wanted)
    if pt.is_decimal(wanted) and pt.is_integer(have):
        return column.cast(_WHOLE).cast(wanted)
    if pt.is_floating(wanted):
        return _to_floats(column, wanted)
    if pt.is_integer(wanted) and pt.is_float16(have):
        column = column.cast(pa.float64())  # Arrow does not read it as a number here
    made = column.cast(wanted)
    if pt.is_date(wanted) and pt.is_timestamp(have):
        _check_same(column, made.cast(have))
    return made


def _to_floats(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    made = column.cast(wanted, safe=False)
    if pt.is_integer(column.type):
        # Arrow's own check refuses whole numbers beyond 2**53 that a float holds.
        back = _whole_floats(made, column.type)
    else:
        back = made.cast(column.type)
    _check_same(column, back)
    return made


def _whole_floats(floats: pa.Array, wanted: pa.DataType) -> pa.Array:
    wide = floats.cast(pa.float64())
    limit = 2.0 ** (wanted.bit_width - pt.is_signed_integer(wanted))
    if pc.any(pc.greater_equal(wide, limit)).as_py():
        raise pa.ArrowInvalid(f"the float that is nearest to it is beyond {wanted}")
    return wide.cast(wanted, safe=False)


def _check_same(column: pa.Array, back: pa.Array) -> None:
    """Raise pa.ArrowInvalid unless values that were cast come back; a NaN does."""
    same = pc.equal(column, back)
    if pt.is_floating(column.type):
        same = pc.or_(same, pc.and_(pc.is_nan(column), pc.is_nan(back)))
    if not pc.all(same).as_py() and pc.any(pc.invert(same)).as_py():
        at = pc.index(same, False).as_py()
        raise pa.ArrowInvalid(f"it would become {as_text(back[at])}")


def _relisted(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Lists of the same values, in the kind of list that is wanted."""
    have = column.type
    if pt.is_fixed_size_list(wanted):
        if pt.is_fixed_size_list(have) and have.list_size == wanted.list_size:
            return column
        lengths = pc.list_value_length(column)
        if pc.any(pc.not_equal(lengths, wanted.list_size)).as_py():
            raise pa.ArrowInvalid(f"a list has not {wanted.list_size} values")
        return _fixed(column, pa.list_(have.value_field, wanted.list_size))
    is_large = pt.is_large_list(wanted)
    if (pt.is_large_list if is_large else pt.is_list)(have):
        return column
    kind = (pa.large_list if is_large else pa.list_)(have.value_field)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if not is_large and ends[-1] > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(f"{ends[-1]} values are more than a {kind} counts")
    offsets = pa.array(ends.astype(np.int64 if is_large else np.int32))
    of_kind = pa.LargeListArray if is_large else pa.ListArray
    mask = column.is_null() if column.null_count else None
    return of_kind.from_arrays(offsets, column.flatten(), type=kind, mask=mask)


def _fixed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not column.null_count:
        return pa.FixedSizeListArray.from_arrays(column.flatten(), type=kind)
    # A null list takes the place of a whole one.
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    number = np.cumsum(valid) - 1
    places = (number[:, None] * kind.list_size + np.arange(kind.list_size)).ravel()
    places = pa.array(places, mask=np.repeat(~valid, kind.list_size))
    values = column.flatten().take(places)
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=column.is_null())


def _restructured(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    names = _names(column.type)
    # Nulls of the struct hide whatever its fields hold there.
    parts: Sequence[pa.Array] = column.flatten()
    arrays = [_exact(parts[names.index(field.name)], field.type) for field in wanted]
    if not arrays:
        return column
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=mask)


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind]


def _zone(kind: pa.DataType) -> str | None:
    return kind.tz if pt.is_timestamp(kind) else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))
