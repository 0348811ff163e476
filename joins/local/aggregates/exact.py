"""Whole numbers that never overflow: arrays of int64 where that suffices, else of 76 digits.

Decimals are whole numbers too, by their unscaled values. What they add up to is turned back into
the type of the result at the end.
"""

from decimal import Context, Decimal
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.decimal_words import MOST, decimals_of, fitting_words, words_of

WIDE: Final = pa.decimal256(76, 0)
#: Two factors whose product has 76 digits.
_FACTORS: Final = (pa.decimal256(45, 0), pa.decimal256(30, 0))
_CONTEXT: Final = Context(prec=80)
#: More parts than these are not needed: any state and so many greatest values overflow.
_MOST_PARTS: Final = 4


def whole(values: pa.Array) -> pa.Array:
    """Whole numbers as they are, decimals by their unscaled values."""
    kind = values.type
    words = fitting_words(values)
    if words is not None:
        return pa.array(words, mask=_nulls(values))
    wide = values.cast(pa.decimal256(kind.precision, kind.scale))
    return pa.Array.from_buffers(WIDE, len(wide), wide.buffers(), offset=wide.offset)


def addable(values: pa.Array) -> pa.Array:
    """The values in a type in which no sum of them overflows."""
    return values if greatest(values) * len(values) <= MOST else widened(values)


def multiplied(values: pa.Array, times: pa.Array) -> pa.Array:
    """The products of values and of how often they count."""
    is_narrow_both = values.type != WIDE and times.type != WIDE
    if is_narrow_both and greatest(values) * greatest(times) <= MOST:
        return pc.multiply(values, times)
    try:
        factors = [
            widened(factor).cast(kind)
            for factor, kind in zip((values, times), _FACTORS, strict=True)
        ]
    except pa.ArrowInvalid:
        raise InvalidArgumentError(
            "a group has more results than can be counted; filter or aggregate the inputs of the "
            "join"
        ) from None
    return pc.multiply(*factors)


def widened(values: pa.Array) -> pa.Array:
    return values if values.type == WIDE else values.cast(WIDE)


def together(arrays: list[pa.Array]) -> pa.Array:
    """The arrays one after the other."""
    kinds = {array.type for array in arrays}
    return pa.concat_arrays(arrays if len(kinds) == 1 else [widened(array) for array in arrays])


class More(NamedTuple):
    """A further part of a value: it is to be added to that of a row."""

    row: int
    part: int


def as_type(values: pa.Array, kind: pa.DataType, *, wraps: bool) -> tuple[pa.Array, list[More]]:
    """The values in the type in which they are handed out, and what did not fit into it.
    ``wraps``: a BIGINT wraps around instead; no other type does."""
    if pa.types.is_floating(kind):
        return values.cast(kind, safe=False), []
    if values.type == pa.int64():
        return (
            values if kind == pa.int64() else decimals_of(words_of(values), _nulls(values), kind)
        ), []
    limit = MOST if kind == pa.int64() else 10**kind.precision - 1
    firsts: list[int | None] = []
    more: list[More] = []
    for row, value in enumerate(values.to_pylist()):
        if value is None:
            firsts.append(None)
            continue
        first, *rest = _parts(int(value), limit, wraps=wraps and kind == pa.int64())
        firsts.append(first)
        more += [More(row, part) for part in rest]
    return parts_array(firsts, kind), more


def parts_array(parts: list[int | None], kind: pa.DataType) -> pa.Array:
    """Whole numbers in the type of a result."""
    if kind == pa.int64():
        return pa.array(parts, kind)
    scaled = [None if p is None else _CONTEXT.scaleb(Decimal(p), -kind.scale) for p in parts]
    return pa.array(scaled, kind)


def _parts(value: int, limit: int, *, wraps: bool) -> list[int]:
    """Numbers of at most ``limit`` that add up to the value, or overflow as it does."""
    if wraps:
        return [(value + MOST + 1) % (2 * MOST + 2) - MOST - 1]
    if abs(value) > _MOST_PARTS * limit:
        return [limit if value > 0 else -limit] * _MOST_PARTS
    parts = []
    while abs(value) > limit:
        parts.append(limit if value > 0 else -limit)
        value -= parts[-1]
    return [*parts, value]


def greatest(values: pa.Array) -> int:
    """The greatest absolute value; of wide numbers one that fits nowhere."""
    if values.type == WIDE:
        return MOST + 1
    found = pc.min_max(values).as_py()
    return 0 if found["min"] is None else max(abs(found["min"]), abs(found["max"]))


def _nulls(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))
