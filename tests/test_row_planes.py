"""Transposed rows give the batch that the rows themselves give, in whatever portions they come."""

import random
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from arrow_cases import PLAIN, array, batches
from hypothesis import given, settings
from hypothesis import strategies as st
from test_row_codec import same_numbers, sample

from cython_ext.errors import CorruptionError
from cython_ext.row_codec import RowCodec, decode_portions
from lsmstate import StreamSchema, open_store

KEY = pa.schema({"k": pa.int64()})
#: Rows of a block: those of 8 and 16 KiB have 32 and 64.
STRIDES = (1, 7, 16, 32, 33, 64)


def portions_of(rows: list[bytes], rng: random.Random) -> list[tuple[list[bytes], int, int, bool]]:
    """Neighbours of one width are blocks, read in parts from the first row to the last."""
    found = []
    for _, group in groupby(rows, len):
        alike = list(group)
        while alike:
            stride = rng.choice(STRIDES)
            block, alike = alike[:stride], alike[stride:]
            first = 0
            while first < len(block):
                count = rng.randrange(1, len(block) - first + 1)
                is_transposed = len(block[0]) > 0 and rng.random() < 0.7
                found.append((block, first, count, is_transposed))
                first += count
    return found


def assert_same(found: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    assert found.schema == expected.schema
    assert found.num_rows == expected.num_rows
    for column, other in zip(found.columns, expected.columns, strict=True):
        assert column.null_count == other.null_count
        assert same_numbers(column, other)


def is_text(t: pa.DataType) -> bool:
    return t in (pa.string(), pa.large_string(), pa.string_view())


def is_variable(t: pa.DataType) -> bool:
    return is_text(t) or t in (pa.binary(), pa.large_binary(), pa.binary_view())


@pytest.mark.parametrize("t", PLAIN, ids=str)
@pytest.mark.parametrize("nulls", [0.0, 0.1, 1.0])
def test_every_type(t: pa.DataType, nulls: float) -> None:
    rng = random.Random(f"{t} {nulls}")
    for size in (0, 1, 3, 4, 7, 8, 9, 16, 23, 127) if is_variable(t) else (0,):
        drawn: list[Any] = []
        for _ in range(500):
            text = rng.randbytes(size).hex()[:size]
            value = sample(t, rng) if not is_variable(t) else text if is_text(t) else text.encode()
            drawn.append(None if rng.random() < nulls else value)
        # Others before and behind it, for what is written too far.
        others = {f"n{i}": pa.array(range(500), pa.int16()) for i in range(9)}
        batch = pa.record_batch({**others, "a": array(drawn, t), "flag": [True, None] * 250})
        codec = RowCodec(batch.schema)
        rows = codec.encode(batch).to_pylist()
        portions = portions_of(rows, rng)
        found, taken = decode_portions(codec, portions)
        found.validate(full=True)
        assert_same(found, codec.decode(rows))
        if not (is_variable(t) and 0 < nulls < 1):
            assert taken == [transposed for *_, transposed in portions]


@settings(deadline=None, max_examples=300)
@given(batches(maps=True, most=40), st.integers(0, 2**32))
def test_every_batch(batch: pa.RecordBatch, seed: int) -> None:
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch).to_pylist()
    found, _ = decode_portions(codec, portions_of(rows, random.Random(seed)))
    found.validate(full=True)
    assert_same(found, codec.decode(rows))
    assert codec.encode(found).to_pylist() == rows


@settings(deadline=None, max_examples=300)
@given(batches(maps=True, columns=(1, 6), most=40), st.integers(0, 2**32))
def test_damage_is_found_as_in_rows(batch: pa.RecordBatch, seed: int) -> None:
    codec = RowCodec(batch.schema)
    rng = random.Random(seed)
    for _ in range(20):
        rows = [bytearray(row) for row in codec.encode(batch).to_pylist()]
        for _ in range(rng.randrange(1, 4)):
            row = rng.choice(rows) if rows else bytearray()
            if row:
                row[rng.randrange(len(row))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        damaged = [bytes(row) for row in rows]
        portions = portions_of(damaged, rng)
        try:
            expected = codec.decode(damaged)
        except CorruptionError:
            with pytest.raises(CorruptionError):
                decode_portions(codec, portions)
            continue
        found, _ = decode_portions(codec, portions)
        assert_same(found, expected)


DAMAGED = pa.record_batch(
    {
        "flag": pa.array([True] * 40),
        "none": pa.nulls(40),
        "text": pa.array(["abc"] * 40),
        "number": pa.array(range(40)),
    }
)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 0x12),  # a null bit behind the last column
        (0, 0),  # a value in a column of nulls
        (0, 6),  # a null among strings: its length is left over
        (1, 2),  # no boolean
        (10, 4),  # a length that passes the end
        (10, 2),  # one that leaves something over
        (10, 0x83),  # one that goes on
    ],
)
def test_what_rows_must_be_is_asked_of_planes(place: int, value: int) -> None:
    codec = RowCodec(DAMAGED.schema)
    rows = codec.encode(DAMAGED).to_pylist()
    assert decode_portions(codec, [(rows, 0, 40, True)])[1] == [True]
    assert rows[0][0] == 2
    assert rows[0][10] == 3
    for damaged in (0, 17, 39):
        changed = bytearray(rows[damaged])
        changed[place] = value
        block = [*rows[:damaged], bytes(changed), *rows[damaged + 1 :]]
        with pytest.raises(CorruptionError):
            decode_portions(codec, [(block, 0, 40, True)])
        for first, count in ((0, damaged), (damaged + 1, 39 - damaged)):
            if count:
                assert decode_portions(codec, [(block, first, count, True)])[1] == [True]
    block = [row[:place] + bytes([value]) + row[place + 1 :] for row in rows]
    with pytest.raises(CorruptionError):
        decode_portions(codec, [(block, 0, 40, True)])


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_hot_key_read_from_files(tmp_path, is_alike):
    """Rows of one width: all of one shape, or of two, which are set upright."""
    n = 20_000
    lengths = [(3, 5) if is_alike or i % 50 else (5, 3) for i in range(n)]
    rows = pa.record_batch(
        {
            "i": pa.array(range(n)),
            "a": pa.array(["x" * a for a, _ in lengths]),
            "b": pa.array([f"{i % 1000:03}zz"[:b] for i, (_, b) in enumerate(lengths)]),
            "d": pa.array([i % 7 == 0 for i in range(n)]),
        }
    )
    keys = pa.record_batch({"k": pa.array([i % 10 if i % 3 else 5 for i in range(n)])})
    with open_store(tmp_path, [StreamSchema("s", KEY, rows.schema)]) as store:
        store.append("s", rows, keys)
        store.flush()
        store.append("s", rows.slice(0, 100), keys.slice(0, 100))
        store.commit()
    expected: dict[int, list[int]] = {}
    for number in [*range(n), *range(100)]:
        expected.setdefault(keys["k"][number].as_py(), []).append(number)
    with open_store(tmp_path, [StreamSchema("s", KEY, rows.schema)]) as store:
        asked = pa.record_batch({"k": list(range(11))})
        probe = store.probe("s", asked)
        for max_bytes in (1 << 20, 40_000, 1_000):
            found: dict[int, list[int]] = {}
            for positions, piece in probe.fetch(range(11), max_bytes):
                piece.validate(full=True)
                assert piece.drop_columns(["i"]).equals(rows.take(piece["i"]).drop_columns(["i"]))
                for position, number in zip(positions, piece["i"].to_pylist(), strict=True):
                    found.setdefault(int(position), []).append(number)
            assert found == expected
