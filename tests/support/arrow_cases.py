"""Hypothesis strategies for Arrow types, values and batches (slices, nulls, nesting)."""

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
COUNTED = [  # times, given by the number that Arrow stores
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("s"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.timestamp("ns", "UTC"),
    pa.duration("ms"),
]
DECIMALS = [
    pa.decimal128(7, 2),
    pa.decimal128(9, 0),
    pa.decimal128(18, 4),
    pa.decimal128(38, 10),
    pa.decimal256(15, 3),
    pa.decimal256(30, 3),
    pa.decimal256(70, 30),
    *([pa.decimal32(6, 2), pa.decimal64(15, 5)] if hasattr(pa, "decimal32") else []),
]
TEXT = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5), pa.binary(0)]
PLAIN = [
    pa.bool_(), pa.null(), pa.month_day_nano_interval(), *INTEGERS, *UNSIGNED, *FLOATS,
    *COUNTED, *DECIMALS, *TEXT, *BYTES,
]  # fmt: skip
DICTIONARIES = [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64())]


def types(maps: bool, depth: int = 2) -> st.SearchStrategy[pa.DataType]:
    """Types, nested up to `depth` deep; dictionaries only outermost, maps if asked for."""
    inner = st.sampled_from(PLAIN)
    for _ in range(depth):
        inner = st.one_of(st.sampled_from(PLAIN), nested(inner, maps))
    return st.one_of(inner, st.sampled_from(PLAIN), st.sampled_from(DICTIONARIES))


def nested(inner: st.SearchStrategy[pa.DataType], maps: bool) -> st.SearchStrategy[pa.DataType]:
    choices = [
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(pa.large_list_view),
        st.tuples(inner, st.integers(0, 3)).map(lambda t: pa.list_(*t)),
        st.lists(inner, max_size=3).map(
            lambda found: pa.struct([pa.field(f"f{i}", t) for i, t in enumerate(found)])
        ),
    ]
    if maps:
        choices.append(inner.map(lambda t: pa.map_(pa.string(), t)))
    return st.one_of(choices)


def values(t: pa.DataType, nulls: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type as `array` takes them; times are plain integers."""
    found = not_null(t)
    return st.one_of(st.none(), found) if nulls else found


def not_null(t: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_null(t):
        return st.none()
    if pa.types.is_boolean(t):
        return st.booleans()
    if pa.types.is_dictionary(t):
        return not_null(t.value_type)
    if pa.types.is_integer(t):
        bits, signed = t.bit_width, pa.types.is_signed_integer(t)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, 1]))
    if pa.types.is_floating(t):
        return st.floats(width=t.bit_width)
    if pa.types.is_decimal(t):
        limit = 10**t.precision - 1
        return st.integers(-limit, limit).map(lambda n: unscaled(n, t.scale))
    if pa.types.is_interval(t):
        ints = st.integers(-(2**31), 2**31 - 1)
        return st.tuples(ints, ints, st.integers(-(2**63), 2**63 - 1)).map(pa.MonthDayNano)
    if pa.types.is_date64(t):
        return st.integers(-30_000, 30_000).map(lambda day: day * 86_400_000)
    if pa.types.is_time(t):
        return st.integers(0, 86_399)
    if t in COUNTED:
        return st.integers(-(2**31), 2**31 - 1)
    if t in TEXT:
        return st.text(alphabet="\0\1a\u00ff\U0001f600", max_size=20)
    if pa.types.is_fixed_size_binary(t):
        return st.binary(min_size=t.byte_width, max_size=t.byte_width)
    if t in BYTES:
        return st.one_of(st.binary(max_size=20), st.lists(st.sampled_from([0, 1, 255])).map(bytes))
    return not_null_nested(t)


def not_null_nested(t: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(t):
        return st.fixed_dictionaries({field.name: values(field.type) for field in t})
    if pa.types.is_map(t):
        return st.lists(st.tuples(st.text("ab", max_size=2), values(t.item_type)), max_size=3)
    size = t.list_size if pa.types.is_fixed_size_list(t) else None
    return st.lists(values(t.value_type), min_size=size or 0, max_size=4 if size is None else size)


def unscaled(number: int, scale: int) -> decimal.Decimal:
    digits = decimal.Decimal(abs(number)).as_tuple().digits
    return decimal.Decimal((int(number < 0), digits, -scale))


def array(found: list[Any], t: pa.DataType) -> pa.Array:
    """pa.array, also for the types that it does not build from these Python values itself."""
    mask = np.array([value is None for value in found], dtype=bool)
    if t in COUNTED:
        width = np.int32 if t.bit_width == 32 else np.int64
        numbers = np.array([value or 0 for value in found], width)
        return pa.array(numbers, mask=mask).view(t)
    if pa.types.is_floating(t):
        dtype = {16: np.float16, 32: np.float32, 64: np.float64}[t.bit_width]
        return pa.array(np.array([value or 0 for value in found], dtype), t, mask=mask)
    if pa.types.is_dictionary(t):
        return pa.array(found, t.value_type).dictionary_encode().cast(t)
    if pa.types.is_nested(t) and t.num_fields:
        return nested_array(found, t, pa.array(mask))
    return pa.array(found, t)


def nested_array(found: list[Any], t: pa.DataType, mask: pa.Array) -> pa.Array:
    if pa.types.is_struct(t):
        children = [
            array([None if value is None else value[field.name] for value in found], field.type)
            for field in t
        ]
        return pa.StructArray.from_arrays(children, fields=list(t), mask=mask)
    if pa.types.is_fixed_size_list(t):
        filled = [[None] * t.list_size if value is None else value for value in found]
        child = array([item for value in filled for item in value], t.value_type)
        if not t.list_size:
            return pa.array(found, t)
        return pa.FixedSizeListArray.from_arrays(child, type=t, mask=mask)
    items = [item for value in found for item in value or ()]
    if pa.types.is_list_view(t) or pa.types.is_large_list_view(t):
        return list_views(found, array(items, t.value_type), t)
    wide = pa.types.is_large_list(t)
    offsets = list_offsets(found, pa.int64() if wide else pa.int32())
    if pa.types.is_map(t):
        keys = pa.array([key for key, _ in items], t.key_type)
        values = array([value for _, value in items], t.item_type)
        return pa.MapArray.from_arrays(offsets, keys, values)
    kind = pa.LargeListArray if wide else pa.ListArray
    return kind.from_arrays(offsets, array(items, t.value_type))


def list_views(found: list[Any], items: pa.Array, t: pa.DataType) -> pa.Array:
    """Views of the items, one after the other."""
    large = pa.types.is_large_list_view(t)
    views = pa.LargeListViewArray if large else pa.ListViewArray
    sizes = [len(value or ()) for value in found]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    offsets = [None if value is None else start for value, start in zip(found, starts, strict=True)]
    width = pa.int64() if large else pa.int32()
    return views.from_arrays(pa.array(offsets, width), pa.array(sizes, width), items)


def list_offsets(found: list[Any], t: pa.DataType) -> pa.Array:
    """Offsets of a list array; a null entry makes the list that starts there null."""
    offsets: list[int | None] = []
    total = 0
    for value in found:
        offsets.append(None if value is None else total)
        total += len(value or ())
    return pa.array([*offsets, total], t)


@st.composite
def batches(
    draw: st.DrawFn, maps: bool, columns: tuple[int, int] = (0, 5), most: int = 12
) -> pa.RecordBatch:
    """A batch of random types, each column a slice of something longer."""
    found = draw(st.lists(types(maps), min_size=columns[0], max_size=columns[1]))
    n = draw(st.integers(0, most))
    arrays = []
    for t in found:
        before, after = draw(st.integers(0, 3)), draw(st.integers(0, 2))
        nulls = draw(st.booleans())
        size = before + n + after
        column = draw(st.lists(values(t, nulls), min_size=size, max_size=size))
        arrays.append(array(column, t).slice(before, n))
    batch = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(found))])
    return batch.slice(draw(st.integers(0, n))) if found and draw(st.booleans()) else batch
