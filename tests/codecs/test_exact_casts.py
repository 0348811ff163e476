"""Columns are cast where no value changes, and refused where one does."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.schema.exact_casts import changing_row, exact_cast, is_castable

DAY = dt.datetime(2026, 1, 1)
NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(38, 0)),
]


def numbers(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        low = -(1 << (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        high = (1 << (kind.bit_width - pa.types.is_signed_integer(kind))) - 1
        near = [n for n in (0, 1, 2**24 + 1, 2**53 + 1, 2**60, low, high) if low <= n <= high]
        return st.integers(low, high) | st.sampled_from(near)
    if pa.types.is_decimal(kind):
        return st.decimals(min_value=-999, max_value=999, places=kind.scale, allow_nan=False).map(
            lambda value: value.quantize(Decimal(1).scaleb(-kind.scale))
        )
    return st.floats(width=kind.bit_width) | st.sampled_from([0.0, 1.0, 2.0**60, 2.0**63])


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_numbers_keep_their_value_or_are_refused(data: st.DataObject) -> None:
    """Beside Python's numbers, which compare without rounding."""
    have, wanted = (data.draw(st.sampled_from(NUMBERS)) for _ in range(2))
    values = data.draw(st.lists(st.none() | numbers(have), min_size=1, max_size=4))
    column = pa.array(values, have)
    if not is_castable(have, wanted):
        assert pa.types.is_floating(have) != pa.types.is_floating(wanted)
        assert pa.types.is_decimal(have) != pa.types.is_decimal(wanted)
        return
    try:
        made = exact_cast(column, wanted)
    except pa.ArrowInvalid:
        at = changing_row(column, wanted)
        assert all(is_held(value, wanted) for value in column.slice(0, at).to_pylist())
        assert not is_held(column[at].as_py(), wanted)
        return
    assert made.type == wanted
    assert [repr_of(value) for value in made.to_pylist()] == [
        repr_of(value) for value in column.to_pylist()
    ]


def repr_of(value: Any) -> Any:
    return "nan" if value is not None and math.isnan(value) else value


def is_held(value: Any, kind: pa.DataType) -> bool:
    """Whether a type has exactly this number."""
    if value is None:
        return True
    if not math.isfinite(value):
        return bool(pa.types.is_floating(kind))
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            nearest = np.float32(value) if kind.bit_width == 32 else np.float64(value)
        return bool(math.isfinite(nearest) and float(nearest) == value)
    if value != int(value) and not pa.types.is_decimal(kind):
        return False
    if pa.types.is_decimal(kind):
        exact = Decimal(value)
        digits = exact.scaleb(kind.scale)
        return digits == int(digits) and abs(int(digits)) < 10**kind.precision
    signed = pa.types.is_signed_integer(kind)
    high = 1 << (kind.bit_width - signed)
    return (-high if signed else 0) <= int(value) < high


KEPT = [
    (pa.array(["a", None]), pa.large_string()),
    (pa.array(["a", None], pa.string_view()), pa.string()),
    (pa.array(["a", "b", "a"]).dictionary_encode(), pa.large_string()),
    (pa.array([b"ab", None]), pa.binary(2)),
    (pa.array([b"ab"], pa.binary(2)), pa.large_binary()),
    (pa.array([DAY, None]), pa.timestamp("ns")),
    (pa.array([DAY], pa.timestamp("ns", "UTC")), pa.timestamp("s", "Europe/Berlin")),
    (pa.array([1500], pa.duration("ms")), pa.duration("us")),
    (pa.array([dt.time(1, 2, 3)], pa.time32("s")), pa.time64("ns")),
    (pa.array([None, None]), pa.struct([("a", pa.list_(pa.int8()))])),
    (
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        pa.map_(pa.string(), pa.int8()),
    ),
]


@pytest.mark.parametrize(("column", "wanted"), KEPT, ids=str)
def test_other_types_of_the_same_values(column: pa.Array, wanted: pa.DataType) -> None:
    assert is_castable(column.type, wanted)
    for part in (column, column.slice(1), column.slice(0, 0)):
        made = exact_cast(part, wanted)
        made.validate(full=True)
        assert made.type == wanted
        assert made.to_pylist() == part.to_pylist()


def test_days_and_midnights_are_one() -> None:
    days = pa.array([DAY.date(), None])
    assert exact_cast(days, pa.timestamp("us")).to_pylist() == [DAY, None]
    assert exact_cast(pa.array([DAY, None]), pa.date32()).equals(days)
    assert exact_cast(days.cast(pa.date64()), pa.date32()).equals(days)


LISTS = [[1, 2], None, [3, 4], [5, None]]
LIST_KINDS = [
    pa.list_(pa.int64()),
    pa.large_list(pa.int64()),
    pa.list_(pa.int64(), 2),
    pa.list_view(pa.int64()),
]


@pytest.mark.parametrize("have", LIST_KINDS, ids=str)
@pytest.mark.parametrize(
    "wanted", [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)], ids=str
)
def test_lists_of_every_kind(have: pa.DataType, wanted: pa.DataType) -> None:
    column = pa.array(LISTS, have)
    assert is_castable(have, wanted)
    for start in range(5):
        for length in range(5 - start):
            part = column.slice(start, length)
            made = exact_cast(part, wanted)
            made.validate(full=True)
            assert made.to_pylist() == part.to_pylist()
            assert made.type == wanted
    with pytest.raises(pa.ArrowInvalid):
        exact_cast(pa.array([[1, 2], [3, 1000]], have), wanted)


def test_structs_by_the_names_of_their_fields() -> None:
    column = pa.array([{"a": 1, "b": "x"}, None, {"a": 3, "b": None}])
    wanted = pa.struct([("b", pa.large_string()), ("a", pa.int8())])
    for part in (column, column.slice(1)):
        assert exact_cast(part, wanted).to_pylist() == part.to_pylist()
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, 1000])], names=["a"], mask=pa.array([False, True])
    )
    assert exact_cast(hidden, pa.struct([("a", pa.int8())])).to_pylist() == [{"a": 1}, None]
    assert not is_castable(column.type, pa.struct([("a", pa.int64())]))


CHANGED = [
    (pa.array([DAY.replace(hour=1)]), pa.date32()),
    (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([10**17], pa.timestamp("s")), pa.timestamp("ns")),
    (pa.array([1501], pa.duration("ms")), pa.duration("s")),
    (pa.array([dt.date(2500, 1, 1)]), pa.timestamp("ns")),
    (pa.array([b"abc"]), pa.binary(2)),
    (pa.array([[1]]), pa.list_(pa.int64(), 2)),
    (pa.array([{"a": 1.5}]), pa.struct([("a", pa.int64())])),
]


@pytest.mark.parametrize(("column", "wanted"), CHANGED, ids=str)
def test_values_that_would_change_are_refused(column: pa.Array, wanted: pa.DataType) -> None:
    kept = pa.concat_arrays([pa.nulls(2, column.type), column, pa.nulls(3, column.type)])
    with pytest.raises(pa.ArrowInvalid):
        exact_cast(kept, wanted)
    assert changing_row(kept, wanted) == 2


@pytest.mark.parametrize(
    ("have", "wanted"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.bool_(), pa.int64()),
        (pa.int64(), pa.bool_()),
        (pa.string(), pa.binary()),
        (pa.float64(), pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), pa.float64()),
        (pa.int64(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.date32()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.time64("us")),
        (pa.int64(), pa.list_(pa.int64())),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.dense_union([pa.field("a", pa.int64())]), pa.int64()),
    ],
    ids=str,
)
def test_types_of_other_values_are_not_cast(have: pa.DataType, wanted: pa.DataType) -> None:
    assert not is_castable(have, wanted)
