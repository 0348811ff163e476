"""The common type of join keys, as Spark's ``=`` coerces, and the casts to it.

Two keys are equal if they are equal after both were cast to the common type of all streams.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.rows.arrow_read import plain_column, plain_type
from lsmstate.errors import InvalidArgumentError

#: Decimal digits that hold any value of an integer type, as in Spark.
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_MAX_DIGITS = 38
_UNITS = ("s", "ms", "us", "ns")


def common_key_type(types: Sequence[pa.DataType]) -> pa.DataType:
    """The type all of ``types`` are compared in. InvalidArgumentError if there is none."""
    common = reduce(_common_of_two, [_plain(found) for found in types])
    # A key that is null in every stream matches nothing; any type serves.
    return pa.int64() if pa.types.is_null(common) else common


def keeps_differences(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether values that differ as ``narrow`` still differ as ``wide``, a common type of its."""
    narrow, wide = _plain(narrow), _plain(wide)
    if narrow == wide or pa.types.is_null(narrow):
        return True
    if pa.types.is_floating(wide):
        exact_bits = 32 if pa.types.is_integer(narrow) else 64
        return not pa.types.is_decimal(narrow) and narrow.bit_width <= exact_bits
    if pa.types.is_decimal(wide):
        digits, scale = _as_decimal(narrow)
        return bool(wide.scale >= scale and wide.precision - wide.scale >= digits - scale)
    if pa.types.is_timestamp(narrow):
        # Where clocks are set forward, local times that differ are one instant.
        return (narrow.tz is None) == (wide.tz is None)
    return True


def cast_key(column: pa.Array, target: pa.DataType) -> pa.Array:
    """The column in the common type, which ``common_key_type`` found for this column's type among
    others. Cost: one pass of Arrow's kernels, none if the type is the common one already."""
    if column.type != target and (
        pa.types.is_dictionary(column.type) or pa.types.is_nested(column.type)
    ):
        # Arrow's casts look into no dictionary inside a nested value.
        column = plain_column(column, plain_type(column.type))
    if column.type == target:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), target)
    if pa.types.is_decimal(target):
        return _to_decimal(column, target)
    if pa.types.is_decimal(column.type):
        # Arrow's own cast of a decimal to float64 can be off by one unit in the last place.
        return pc.cast(pc.cast(column, pa.string()), target)
    if pa.types.is_timestamp(target):
        return _to_timestamp(column, target)
    # An integer beyond 2**53 becomes the nearest float, as in Spark; all else casts without loss.
    return pc.cast(column, target, safe=not pa.types.is_floating(target))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: dictionary, large and view types compare by their values,
    nested ones whether they may hold nulls or not."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    return kind


def _common_of_two(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    for rule in (_common_number, _common_time, _common_list):
        common = rule(left, right)
        if common is not None:
            return common
    raise InvalidArgumentError(f"keys of types {left} and {right} cannot be compared")


def _is_number(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in kinds)


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if not (_is_number(left) and _is_number(right)):
        return None
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        widest = max(left.bit_width, right.bit_width)
        if pa.types.is_signed_integer(left) == pa.types.is_signed_integer(right):
            return left if left.bit_width == widest else right
        unsigned = right if pa.types.is_signed_integer(left) else left
        widest = max(widest, 2 * unsigned.bit_width)
        signed = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
        return signed.get(widest, pa.decimal128(_INTEGER_DIGITS[64], 0))
    return _common_decimal(_as_decimal(left), _as_decimal(right))


def _as_decimal(kind: pa.DataType) -> tuple[int, int]:
    """(digits, scale) of the decimal that holds every value of a number type."""
    if pa.types.is_integer(kind):
        return _INTEGER_DIGITS[kind.bit_width], 0
    return kind.precision, kind.scale


def _common_decimal(left: tuple[int, int], right: tuple[int, int]) -> pa.DataType:
    """As Spark: all digits of both sides; past 38 the digits before the point are kept."""
    scale = max(left[1], right[1])
    digits = max(left[0] - left[1], right[0] - right[1]) + scale
    if digits > _MAX_DIGITS:
        scale = max(0, scale - (digits - _MAX_DIGITS))
        digits = _MAX_DIGITS
    return pa.decimal128(digits, scale)


def _common_time(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    kinds = (left, right)
    if all(pa.types.is_date(kind) for kind in kinds):
        return pa.date32()
    if all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in kinds):
        stamps = [kind for kind in kinds if pa.types.is_timestamp(kind)]
        zones = [kind.tz for kind in stamps if kind.tz is not None]
        return pa.timestamp(_finest(stamps), tz=zones[0] if zones else None)
    if all(pa.types.is_time(kind) for kind in kinds):
        unit = _finest(list(kinds))
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if all(pa.types.is_duration(kind) for kind in kinds):
        return pa.duration(_finest(list(kinds)))
    return None


def _common_list(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Lists of integers of different width; other elements, and the fields of structs, have to be
    of one type, because Arrow's nested casts follow other rules than ``cast_key``."""
    if not (pa.types.is_list(left) and pa.types.is_list(right)):
        return None
    element = _common_of_two(left.value_type, right.value_type)
    kinds = (left.value_type, right.value_type, element)
    return pa.list_(element) if all(map(pa.types.is_integer, kinds)) else None


def _finest(kinds: list[pa.DataType]) -> str:
    return str(max((kind.unit for kind in kinds), key=_UNITS.index))


def _to_decimal(column: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_integer(column.type):
        digits = _INTEGER_DIGITS[column.type.bit_width]
        column = pc.cast(column, pa.decimal128(digits, 0))
    if column.type.scale > target.scale:
        column = pc.round(column, target.scale, round_mode="half_towards_infinity")
    return pc.cast(column, target)


def _to_timestamp(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast dates and time stamps: a date is the midnight that begins it, a time without a zone is
    a local time in the target's zone, as in Java and Spark.

    - A local time that occurs twice is the earlier one.
    - A local time that a zone leaves out is later by as much as the zone leaves out.
    """
    zoned = pa.types.is_timestamp(column.type) and column.type.tz is not None
    if zoned or target.tz is None:
        return pc.cast(column, target)
    local = pc.cast(column, pa.timestamp(target.unit))
    after, before = (
        pc.assume_timezone(local, target.tz, ambiguous="earliest", nonexistent=side)
        for side in ("latest", "earliest")
    )
    # Of a time that is left out, the instants at both ends of what is left out.
    is_left_out = pc.fill_null(pc.not_equal(after, before), False)
    if not pc.any(is_left_out).as_py():
        return after
    last = before.filter(is_left_out)
    offset = pc.subtract(_ticks(pc.local_timestamp(last)), _ticks(last))
    instants = pc.subtract(_ticks(local.filter(is_left_out)), offset)
    return pc.replace_with_mask(after, is_left_out, instants.cast(target))


def _ticks(times: pa.Array) -> pa.Array:
    return times.view(pa.int64())


def holds_floats(kind: pa.DataType) -> bool:
    """Whether values may be equal and have other bits: floats, also in structs and arrays. Spark
    knows no equality of maps, so in them bits count."""
    return _holds(kind, pa.types.is_floating) and not _holds(kind, pa.types.is_map)


def _holds(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    parts = (kind.field(n).type for n in range(kind.num_fields))
    return is_kind(kind) or any(_holds(part, is_kind) for part in parts)
