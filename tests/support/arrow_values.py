"""Random values of an Arrow type, and equality of arrays to any depth."""

import decimal
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def plain(column: pa.Array, t: pa.DataType) -> pa.Array:
    """What is not nested is cast: Arrow casts list views, and lists of nulls, to wrong lists."""
    return column if column.type == t or pa.types.is_nested(t) else column.cast(t)


def same_numbers(found: pa.Array, expected: pa.Array) -> bool:
    """Equality to any depth, floats by their bits (NaN is NaN, -0.0 is not 0.0); of views, as of
    what they view."""
    t = found.type
    expected = plain(expected, t)
    if found.is_null().to_pylist() != expected.is_null().to_pylist():
        return False
    if pa.types.is_floating(t):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[t.bit_width]
        return bool(found.view(bits).equals(expected.view(bits)))
    if pa.types.is_struct(t):
        pairs = zip(found.flatten(), expected.flatten(), strict=True)
        return all(same_numbers(a, b) for a, b in pairs)
    if pa.types.is_map(t):
        return all(
            same_numbers(a.values, b.values)
            for a, b in zip(found, expected, strict=True)
            if a.is_valid
        )
    if pa.types.is_nested(t):
        lengths = (pc.list_value_length(lists).to_pylist() for lists in (found, expected))
        return len(set(map(tuple, lengths))) == 1 and same_numbers(
            found.flatten(), expected.flatten()
        )
    return bool(found.equals(expected))


def sample(t: pa.DataType, rng: random.Random) -> Any:
    if pa.types.is_null(t):
        return None
    if pa.types.is_interval(t):
        return pa.MonthDayNano([rng.randrange(-9, 9), rng.randrange(-9, 9), rng.randrange(1 << 40)])
    if pa.types.is_decimal(t):
        digits = tuple(rng.randrange(10) for _ in range(t.precision))
        return decimal.Decimal((rng.randrange(2), digits, -t.scale))
    if pa.types.is_fixed_size_binary(t):
        return rng.randbytes(t.byte_width)
    if pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t):
        return rng.randbytes(rng.choice([0, 1, 3, 7, 15, 16, 17, 40, 130]))
    if t in (pa.string(), pa.large_string(), pa.string_view()):
        return "\u00e4" * rng.randrange(12)
    if pa.types.is_floating(t):
        return rng.choice([0.5, -0.0, float("nan"), float("inf"), 1.0])
    if pa.types.is_boolean(t):
        return rng.random() < 0.5
    return rng.randrange(0, 100) * (86_400_000 if pa.types.is_date64(t) else 1)
