"""Keys: bytes compare as typed values do, whatever the type, the slice and the nulls."""

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.cython_ext.errors import CorruptionError, InvalidArgumentError
from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from support.arrow_cases import COUNTED, batches
from support.examples import examples


def encode(*columns: pa.Array) -> KeyBatch:
    batch = pa.RecordBatch.from_arrays(list(columns), names=[f"c{i}" for i in range(len(columns))])
    return KeyCodec(batch.schema).encode(batch)


def one(value: Any, t: pa.DataType) -> bytes:
    (key,) = encode(pa.array([value], t)).to_pylist()
    assert key is not None
    return key


def rank(value: Any, t: pa.DataType) -> Any:
    """What the typed value sorts by, in Python's own terms: the model."""
    if pa.types.is_dictionary(t):
        return rank(value, t.value_type)
    if pa.types.is_floating(t):
        return (1, 0.0) if math.isnan(value) else (0, float(value) + 0.0)
    if pa.types.is_struct(t):
        return tuple(rank_nested(value[field.name], field.type) for field in t)
    if pa.types.is_nested(t):
        return tuple(rank_nested(item, t.value_type) for item in value)
    if isinstance(value, str):
        return value.encode()
    return tuple(value) if pa.types.is_interval(t) else value


def rank_nested(value: Any, t: pa.DataType) -> Any:
    return (0,) if value is None else (1, rank(value, t))


def as_numbers(column: pa.Array) -> list[Any]:
    """Python values; times as the integers that Arrow stores, to any depth."""
    t = column.type
    if t in COUNTED:
        return column.view(pa.int32() if t.bit_width == 32 else pa.int64()).to_pylist()
    if pa.types.is_struct(t):
        children = [as_numbers(column.field(i)) for i in range(t.num_fields)]
        return [
            {field.name: child[i] for field, child in zip(t, children, strict=True)}
            if column[i].is_valid
            else None
            for i in range(len(column))
        ]
    if pa.types.is_nested(t):
        return [as_numbers(item.values) if item.is_valid else None for item in column]
    return column.to_pylist()


@settings(deadline=None, max_examples=examples(200))
@given(batches(maps=False, columns=(1, 3)))
def test_order_and_equality_are_those_of_the_values(batch: pa.RecordBatch) -> None:
    batch.validate(full=True)
    keys = KeyCodec(batch.schema).encode(batch)
    encoded = keys.to_pylist()
    columns = [as_numbers(column) for column in batch.columns]
    ranks: list[Any] = []
    for i in range(batch.num_rows):
        row = [column[i] for column in columns]
        whole = all(value is not None for value in row)
        assert (encoded[i] is not None) == whole == bool(keys.valid[i])
        pairs = zip(row, batch.schema.types, strict=True)
        ranks.append(tuple(rank(value, t) for value, t in pairs) if whole else None)
    whole_rows = [i for i in range(batch.num_rows) if ranks[i] is not None]
    assert keys.order.tolist() == sorted(whole_rows, key=lambda i: ranks[i])
    for i in whole_rows:
        assert keys.hashes[i] == checksum(encoded[i] or b"")
        for j in whole_rows:
            assert (encoded[i] == encoded[j]) == (ranks[i] == ranks[j])
            prefixed = (encoded[j] or b"").startswith(encoded[i] or b"")
            assert encoded[i] == encoded[j] or not prefixed


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.one_of(st.none(), st.binary(max_size=12)), max_size=200), st.booleans())
def test_distinct_groups_equal_keys(found: list[bytes | None], long: bool) -> None:
    prefix = b"p" * 70 if long else b""
    found = [None if key is None else prefix + key for key in found]
    keys = KeyBatch.from_bytes(found)
    assert keys.to_pylist() == found
    valid = [i for i in range(len(found)) if found[i] is not None]
    assert keys.order.tolist() == sorted(valid, key=lambda i: found[i] or b"")
    distinct, starts = keys.distinct()
    assert distinct.to_pylist() == sorted({key for key in found if key is not None})
    assert distinct.order.tolist() == list(range(len(distinct)))
    assert starts.dtype == np.int64
    assert len(starts) == len(distinct) + 1
    for g, key in enumerate(distinct.to_pylist()):
        rows = keys.order[starts[g] : starts[g + 1]]
        assert rows.tolist() == [i for i in valid if found[i] == key]
        assert set(keys.hashes[rows]) == {distinct.hashes[g]}


@given(st.lists(st.none() | st.binary(max_size=4), max_size=30), st.data())
def test_taken_keys_are_as_if_encoded_alone(found: list[bytes | None], data: st.DataObject) -> None:
    places = sorted(data.draw(st.sets(st.sampled_from(range(len(found))))) if found else ())
    keys = KeyBatch.from_bytes(found)
    taken = keys.take(np.array(places, np.int64))
    alone = KeyBatch.from_bytes([found[i] for i in places])
    assert taken.to_pylist() == alone.to_pylist()
    assert taken.order.tolist() == alone.order.tolist()
    assert taken.hashes.tolist() == alone.hashes.tolist()
    assert taken.valid.tolist() == alone.valid.tolist()
    assert taken.n_valid == alone.n_valid


@pytest.mark.parametrize("places", [[3], [-1], [1, 0], [1, 1]])
def test_positions_to_take_must_ascend_within_the_batch(places: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="ascending positions from 0 to 2"):
        KeyBatch.from_bytes([b"a", b"b", b"c"]).take(np.array(places, np.int64))


def test_keys_that_bear_a_stream_s_number_keep_it() -> None:
    """Another thread may be walking them; the number of a new batch is the first one's."""
    keys = KeyBatch.from_bytes([b"b", None, b"a" * 100])
    assert keys.of_stream(1) is keys
    assert keys.of_stream(1) is keys
    other = keys.of_stream(2)
    third = other.of_stream(3)
    assert len({id(batch) for batch in (keys, other, third)}) == 3
    assert keys.of_stream(1) is keys
    expected = keys.to_pylist(), keys.order.tolist(), keys.hashes.tolist(), keys.nbytes
    del keys, other
    assert (
        third.to_pylist(),
        third.order.tolist(),
        third.hashes.tolist(),
        third.nbytes,
    ) == expected
    with pytest.raises(InvalidArgumentError, match="65536"):
        third.of_stream(1 << 16)


def test_sizes_of_keys() -> None:
    keys = KeyBatch.from_bytes([b"bc", None, b"", b"a" * 100])
    assert keys.sizes.tolist() == [2, 0, 0, 100]
    assert KeyBatch.from_bytes([]).sizes.tolist() == []


@pytest.mark.parametrize("n", [10, 47, 48, 1000, 5000])
@pytest.mark.parametrize("high", [3, 2**62])
def test_large_batches_sort_stably(n: int, high: int) -> None:
    rng = np.random.default_rng(n)
    columns = [rng.integers(-high, high, n), rng.integers(0, 3, n)]
    keys = encode(*(pa.array(column) for column in columns))
    assert keys.order.tolist() == np.lexsort(columns[::-1]).tolist()


@pytest.mark.parametrize("shared", [0, 7, 8, 60, 64, 65, 200])
def test_long_common_prefixes(shared: int) -> None:
    rng = np.random.default_rng(shared)
    found = ["x" * shared + str(number) for number in rng.integers(0, 500, 1000)]
    keys = encode(pa.array(found))
    assert keys.order.tolist() == sorted(range(1000), key=lambda i: found[i])


def test_integer_limits_are_ordered() -> None:
    for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        high = 2 ** (t.bit_width - 1)
        found = [one(value, t) for value in (-high, -high + 1, -1, 0, 1, high - 1)]
        assert found == sorted(found)
        assert len(set(found)) == 6
    assert one(-1, pa.int64()) == bytes.fromhex("7fffffffffffffff")
    assert one(258, pa.uint16()) == bytes.fromhex("0102")


def test_floats_as_spark_compares_them() -> None:
    for t in (pa.float32(), pa.float64()):
        assert one(-0.0, t) == one(0.0, t)
        found = [one(value, t) for value in (-math.inf, -1.5, 0.0, 1.5, math.inf, math.nan)]
        assert found == sorted(found)
        assert len(set(found)) == 6
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000001, 0x7FF0000000000001], np.uint64)
    assert len(set(encode(pa.array(bits.view(np.float64))).to_pylist())) == 1
    t = pa.list_(pa.float64())
    assert one([math.nan, -0.0], t) == one([math.nan, 0.0], t)


def test_nul_bytes_and_terminators() -> None:
    assert one(b"a\0b", pa.binary()) == b"a\0\xffb\0\1"
    assert one("", pa.string()) == b"\0\1"
    assert one(b"\xff\xfe\0\xc3", pa.binary()) == b"\xff\xfe\0\xff\xc3\0\1"
    pairs = [("a", "b\0"), ("a\0", "b"), ("a", "b"), ("", "ab"), ("ab", "")]
    keys = encode(*(pa.array(column) for column in zip(*pairs, strict=True)))
    assert keys.order.tolist() == sorted(range(5), key=lambda i: pairs[i])
    assert len(set(keys.to_pylist())) == 5


def test_huge_keys() -> None:
    found = [b"\0" * 70_000, b"x" * 70_000, b"x" * 70_000 + b"\0", b"x" * 69_999]
    keys = encode(pa.array(found))
    assert [len(key or b"") for key in keys.to_pylist()] == [140_002, 70_002, 70_004, 70_001]
    assert keys.order.tolist() == sorted(range(4), key=lambda i: found[i])


def test_nested_bytes_are_the_documented_ones() -> None:
    t = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8()))])
    assert one({"a": None, "b": [1, None]}, t) == bytes.fromhex("01 02 0281 01 00")


def test_decimals_are_keys_of_their_value_not_their_width() -> None:
    value = decimal.Decimal("-12345.67")
    expected = (2**63 - 1234567).to_bytes(8, "big")
    for t in (pa.decimal128(7, 2), pa.decimal128(18, 2), pa.decimal256(18, 2)):
        assert one(value, t) == expected
    assert len(one(value, pa.decimal128(19, 2))) == 16


def test_a_decimal_beyond_its_precision_is_refused() -> None:
    wide = pa.array([None, decimal.Decimal(2**70)], pa.decimal128(38, 0))
    lying = pa.Array.from_buffers(pa.decimal128(7, 0), 2, wide.buffers())
    with pytest.raises(InvalidArgumentError, match=r"c0.*decimal128\(7, 0\)"):
        encode(lying)


def test_nulls_and_empty_batches() -> None:
    keys = encode(pa.array([1, None, 3]), pa.array(["a", "b", None]))
    assert (len(keys), keys.n_valid, keys.valid.tolist()) == (3, 1, [True, False, False])
    assert keys.hashes[1:].tolist() == [0, 0]
    assert encode(pa.nulls(3)).to_pylist() == [None, None, None]
    assert encode(pa.array([None, None], pa.string())).n_valid == 0
    empty = encode(pa.array([], pa.string()))
    assert (len(empty), empty.to_pylist(), empty.order.tolist()) == (0, [], [])
    distinct, starts = empty.distinct()
    assert (len(distinct), starts.tolist()) == (0, [0])


@settings(deadline=None, max_examples=examples(50))
@given(batches(maps=False, columns=(1, 1)))
def test_a_sliced_child_of_a_struct(batch: pa.RecordBatch) -> None:
    child = batch.column(0)
    assume(len(child) > 1 and not pa.types.is_dictionary(child.type))
    sliced = pa.StructArray.from_arrays([child.slice(1)], names=["f"])
    encoded = encode(pa.StructArray.from_arrays([child], names=["f"])).to_pylist()
    assert encode(sliced).to_pylist() == encoded[1:]
    assert encode(sliced.slice(1)).to_pylist() == encoded[2:]


def test_types_that_cannot_be_keys() -> None:
    for t in (pa.map_(pa.string(), pa.int32()), pa.list_(pa.map_(pa.string(), pa.int32()))):
        with pytest.raises(InvalidArgumentError, match=r"'m'.*maps have no order"):
            KeyCodec(pa.schema({"m": t}))
    with pytest.raises(InvalidArgumentError, match=r"'u'.*cast"):
        KeyCodec(pa.schema({"u": pa.sparse_union([pa.field("x", pa.int8())])}))
    with pytest.raises(InvalidArgumentError, match="no columns"):
        KeyCodec(pa.schema([]))
    deep = pa.int8()
    for _ in range(70):
        deep = pa.list_(deep)
    with pytest.raises(InvalidArgumentError, match="nest at most"):
        KeyCodec(pa.schema({"d": deep}))


def test_other_types_are_refused_and_names_ignored() -> None:
    codec = KeyCodec(pa.schema({"k": pa.int64()}))
    assert codec.encode(pa.record_batch({"other": pa.array([5])})).n_valid == 1
    with pytest.raises(InvalidArgumentError, match=r"x: int32.*k: int64"):
        codec.encode(pa.record_batch({"x": pa.array([5], pa.int32())}))
    with pytest.raises(InvalidArgumentError, match="Table"):
        codec.encode(pa.table({"k": [5]}))


@settings(deadline=None, max_examples=examples(200))
@given(batches(maps=False, columns=(1, 3)))
def test_decoding_is_the_inverse_of_encoding(batch: pa.RecordBatch) -> None:
    keys = KeyCodec(batch.schema).encode(batch)
    whole = [key for key in keys.to_pylist() if key is not None]
    decoder = KeyDecoder(batch.schema)
    found = decoder.decode(whole)
    found.validate(full=True)
    assert found.schema == decoder.schema
    assert KeyCodec(found.schema).encode(found).to_pylist() == whole
    for column, kept in zip(batch.columns, found.columns, strict=True):
        given = [
            value for value, valid in zip(as_numbers(column), keys.valid, strict=True) if valid
        ]
        assert same_values(given, as_numbers(kept))


def same_values(given: Any, found: Any) -> bool:
    """Equal, where all NaNs are one and the sign of a zero is none."""
    if isinstance(given, float):
        return given == found or (math.isnan(given) and math.isnan(found))
    if isinstance(given, dict):
        return given.keys() == found.keys() and same_values(
            list(given.values()), list(found.values())
        )
    if isinstance(given, list):
        return len(given) == len(found) and all(map(same_values, given, found))
    return bool(given == found)


@pytest.mark.parametrize(
    ("t", "damaged"),
    [
        (pa.int64(), ["", "80" * 7, "80" * 9]),
        (pa.bool_(), ["02"]),
        (pa.string(), ["", "61", "6100", "610002", "6100016200"]),
        (pa.list_(pa.int8()), ["", "0281", "03", "0281010203", "02"]),
        (pa.list_(pa.int8(), 2), ["028100", "02810281028100"]),
        (pa.struct([("a", pa.int8()), ("b", pa.null())]), ["0281", "028102", "0100"]),
        (pa.list_(pa.string()), ["026100", "02610001", "0261000102"]),
    ],
)
def test_damaged_keys_are_refused(t: pa.DataType, damaged: list[str]) -> None:
    decoder = KeyDecoder(pa.schema({"k": t}))
    for key in damaged:
        with pytest.raises(CorruptionError, match="stored key"):
            decoder.decode([bytes.fromhex(key)])
