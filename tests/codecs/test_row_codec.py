"""Rows: what goes in comes out, type for type; damaged bytes are an error, never a crash."""

import decimal
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.errors import CorruptionError, InvalidArgumentError
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.schema.arrow_sizes import _fixed_width
from support.arrow_cases import PLAIN, array, batches
from support.arrow_values import same_numbers, sample
from support.examples import examples


def round_trip(batch: pa.RecordBatch) -> pa.RecordBatch:
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch)
    assert len(rows) == batch.num_rows
    encoded = rows.to_pylist()
    assert rows.nbytes >= sum(map(len, encoded))
    found = codec.decode(encoded)
    found.validate(full=True)
    assert found.schema.equals(codec.schema, check_metadata=True)
    assert codec.encode(found).to_pylist() == encoded
    return found


@settings(deadline=None, max_examples=examples(300))
@given(batches(maps=True))
def test_round_trip(batch: pa.RecordBatch) -> None:
    found = round_trip(batch)
    assert found.num_rows == batch.num_rows
    for column, given_column in zip(found.columns, batch.columns, strict=True):
        assert column.null_count == given_column.null_count
        assert same_numbers(column, given_column)


@pytest.mark.parametrize("t", PLAIN, ids=str)
@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1000])
def test_every_type_over_tiles(t: pa.DataType, n: int) -> None:
    rng = random.Random(f"{t} {n}")
    for nulls in (0.0, 0.1, 1.0):
        picked = [None if rng.random() < nulls else sample(t, rng) for _ in range(n + 3)]
        column = array(picked, t).slice(3)
        batch = pa.record_batch({"a": column, "b": column, "n": pa.array(range(n))})
        found = round_trip(batch)
        for i, name in enumerate(batch.schema.names):
            assert found.schema.names[i] == name
            assert same_numbers(found.column(i), batch.column(i))


def test_the_documented_bytes() -> None:
    batch = pa.record_batch(
        {
            "a": pa.array([None, 258], pa.int32()),
            "s": pa.array(["hi", None]),
            "d": pa.array([decimal.Decimal("-0.01")] * 2, pa.decimal128(7, 2)),
            "l": pa.array([[1, None], []], pa.list_(pa.int8())),
            "b": pa.array([True, None]),
        }
    )
    assert [row.hex(" ") for row in RowCodec(batch.schema).encode(batch).to_pylist()] == [
        "01 00 00 00 00 ff ff ff ff 01 02 68 69 03 02 02 01",
        "12 02 01 00 00 ff ff ff ff 00 01 00",
    ]


def test_schema_comes_back_exactly() -> None:
    entry = pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.string())])
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"k": "v"}),
            pa.field("at", pa.timestamp("us", "Asia/Tokyo")),
            pa.field("l", pa.list_(pa.field("element", entry, nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.int32())),
            pa.field("d", pa.decimal128(20, 7)),
        ],
        metadata={"owner": "test"},
    )
    row = {"id": 1, "at": 5, "l": [{"x": 1, "y": None}], "m": [("a", None)], "d": None}
    batch = pa.RecordBatch.from_pylist([row], schema=schema)
    found = round_trip(batch)
    assert found.schema.equals(schema, check_metadata=True)
    assert found.equals(batch)
    types = pa.schema(
        {"v": pa.string_view(), "d": pa.dictionary(pa.int8(), pa.list_(pa.binary_view()))}
    )
    assert RowCodec(types).schema.types == [pa.string(), pa.list_(pa.binary())]


def test_no_columns_and_no_rows() -> None:
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    assert RowCodec(nothing.schema).encode(nothing).to_pylist() == []
    assert RowCodec(nothing.schema).decode([b"", b""]).num_rows == 2
    with pytest.raises(CorruptionError, match="row 1: bytes are left over"):
        RowCodec(nothing.schema).decode([b"", b"x"])
    assert RowCodec(pa.schema({"a": pa.list_(pa.string())})).decode([]).num_rows == 0


def test_long_values_and_many_columns() -> None:
    columns: dict[str, Any] = {f"c{i}": pa.array([i, None, -i]) for i in range(70)}
    columns["long"] = pa.array(["x" * 70_000, None, "y" * 127])
    columns["list"] = pa.array([list(range(3000)), [], None])
    batch = pa.record_batch(columns)
    assert round_trip(batch).equals(batch)


def test_extension_types_keep_their_type() -> None:
    batch = pa.record_batch({"u": pa.array([bytes(range(16)), None], pa.uuid()), "n": [1, 2]})
    found = round_trip(batch)
    assert found.schema.field("u").type == pa.uuid()
    assert found.equals(batch)


def test_equal_rows_have_equal_bytes_whatever_lies_under_a_null() -> None:
    numbers = pa.array([1, 7], pa.int64())
    _, data = numbers.buffers()
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), data])
    clean = pa.array([1, None], pa.int64())
    lying = pa.array([decimal.Decimal(2**100)], pa.decimal128(38, 0)).buffers()[1]
    narrow = pa.Array.from_buffers(pa.decimal128(5, 0), 1, [pa.py_buffer(b"\x00"), lying])
    codec = RowCodec(pa.schema({"a": pa.int64()}))
    encoded = [codec.encode(pa.record_batch({"a": a})).to_pylist() for a in (hidden, clean)]
    assert encoded[0] == encoded[1]
    codec = RowCodec(pa.schema({"d": pa.decimal128(5, 0)}))
    assert codec.encode(pa.record_batch({"d": narrow})).to_pylist() == [b"\1\0\0\0\0"]


@pytest.mark.parametrize("precision", [5, 15])
@pytest.mark.parametrize("value", [2**31, 2**63, 2**64, 2**100, -(2**63) - 1])
def test_a_decimal_beyond_its_precision_is_refused(precision: int, value: int) -> None:
    wide = pa.array([decimal.Decimal(value)], pa.decimal128(38, 0))
    lying = pa.Array.from_buffers(pa.decimal128(precision, 0), 1, wide.buffers())
    codec = RowCodec(pa.schema({"d": lying.type, "l": pa.list_(lying.type)}))
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), lying)
    empty = pa.array([[]], lists.type)
    zero = pa.array([decimal.Decimal(0)], lying.type)
    fits = precision == 15 and value == 2**31
    for d, items in ((lying, empty), (zero, lists)):
        batch = pa.record_batch({"d": d, "l": items})
        if fits:
            assert codec.encode(batch).to_pylist()
        else:
            with pytest.raises(InvalidArgumentError, match=r"does not fit .*decimal128"):
                codec.encode(batch)


def test_wide_fixed_size_binary() -> None:
    """2^31 bits and more."""
    for width in (1 << 28, 1 << 29):
        schema = pa.schema({"b": pa.binary(width), "i": pa.int32()})
        assert _fixed_width(pa.binary(width)) == 1 + width
        with pytest.raises(CorruptionError, match="row 0: shorter than its fixed part"):
            RowCodec(schema).decode([bytes(100)])


def test_refused_types_and_batches() -> None:
    for t in (
        pa.sparse_union([pa.field("x", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.list_(pa.uuid()),
    ):
        with pytest.raises(InvalidArgumentError, match="column 'u'"):
            RowCodec(pa.schema({"u": t}))
    codec = RowCodec(pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    with pytest.raises(InvalidArgumentError, match=r"\(b: int64\), expected \(a: int64\)"):
        codec.encode(pa.record_batch({"b": [1]}))
    with pytest.raises(InvalidArgumentError, match=r"a: string"):
        codec.encode(pa.record_batch({"a": ["1"]}))
    with pytest.raises(InvalidArgumentError, match=r"'a' is not nullable but holds 1 nulls"):
        codec.encode(pa.record_batch({"a": [1, None]}))
    with pytest.raises(CorruptionError, match="not nullable"):
        codec.decode([b"\1" + bytes(8)])


DAMAGED = pa.record_batch(
    {
        "i": pa.array([1, None, 3]),
        "b": pa.array([True, False, None]),
        "s": pa.array(["abc", "", None]),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int16())),
        "t": pa.array([{"x": "q", "y": [[None, True]]}, None, {"x": None, "y": None}]),
        "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8())),
        "n": pa.nulls(3),
        "f": pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int8(), 2)),
        "e": pa.array([[{}], None, []], pa.list_(pa.struct([]))),
    }
)


def test_every_truncation_is_an_error() -> None:
    codec = RowCodec(DAMAGED.schema)
    for row in codec.encode(DAMAGED).to_pylist():
        for size in range(len(row)):
            with pytest.raises(CorruptionError, match="row 0"):
                codec.decode([row[:size]])
        with pytest.raises(CorruptionError, match="row 1"):
            codec.decode([row, row + b"\0"])


@settings(deadline=None, max_examples=examples(400))
@given(st.data(), batches(maps=True, columns=(1, 6), most=4))
@example(data=None, batch=DAMAGED)
def test_flipped_bytes_decode_or_raise(data: Any, batch: pa.RecordBatch) -> None:
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch).to_pylist()
    rng = random.Random(0 if data is None else data.draw(st.integers(0, 2**32)))
    for _ in range(examples(3000) if data is None else 20):
        damaged = [bytearray(row) for row in rows]
        for _ in range(rng.randrange(1, 4)):
            row = rng.choice(damaged) if damaged else bytearray()
            if row:
                row[rng.randrange(len(row))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        try:
            found = codec.decode([bytes(row) for row in damaged])
        except CorruptionError:
            continue
        assert found.num_rows == len(rows)
        found.to_pydict() if not has_times(batch.schema) and utf8(found) else found.nbytes


def has_times(schema: pa.Schema) -> bool:
    """Whether damaged numbers may be no Python date, which is not ours to check."""
    return any(name in str(schema) for name in ("date", "time", "duration", "interval", "decimal"))


def utf8(batch: pa.RecordBatch) -> bool:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        complaint = str(error)
    else:
        return True
    assert "UTF8" in complaint or "null" in complaint or "ecimal" in complaint, complaint
    return False


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=examples(300))
def test_random_bytes_decode_or_raise(row: bytes) -> None:
    codec = RowCodec(DAMAGED.schema)
    for found in (row, bytes(2) + row, bytes([0x40, 0]) + row):
        try:
            decoded = codec.decode([found])
        except CorruptionError:
            continue
        assert decoded.num_rows == 1


def test_absurd_lengths_allocate_nothing() -> None:
    huge = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
    for t in (pa.string(), pa.large_binary(), pa.list_(pa.null()), pa.large_list(pa.int64())):
        codec = RowCodec(pa.schema({"c": t}))
        nested = (b"\0\x09" + huge, b"\0\x0b\xff\xff\x03" + b"\xff" * 8)
        for row in (b"\0" + huge, *nested[: 2 if pa.types.is_nested(t) else 0], b"\0\x80\0"):
            with pytest.raises(CorruptionError):
                codec.decode([row])


def test_many_rows_keep_their_order() -> None:
    rng = np.random.default_rng(5)
    n = 10_000
    batch = pa.record_batch(
        {
            "i": pa.array(rng.integers(-9, 9, n), mask=rng.random(n) < 0.1),
            "s": pa.array([f"{k}" * (k % 7) if k % 5 else None for k in range(n)]),
        }
    )
    assert round_trip(batch).equals(batch)
