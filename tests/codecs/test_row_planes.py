"""Transposed rows give the batch that the rows themselves give, in whatever portions they come."""

import random
import subprocess
import sys
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate import Options, StreamSchema, open_store
from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.cython_ext.errors import CorruptionError
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.rows.row_codec import RowCodec, decode_portions
from lsmstate.lsm import reader as lsm_reader
from support.arrow_cases import PLAIN, array, batches
from support.arrow_values import same_numbers, sample
from support.examples import examples

KEY = pa.schema({"k": pa.int64()})
#: Rows of a block: those of 8 and 16 KiB have 32 and 64.
STRIDES = (1, 7, 16, 32, 33, 64)
#: Of a piece, that are staged before it is known how large it will be.
PORTION_BYTES = 64 << 10


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


@settings(deadline=None, max_examples=examples(300))
@given(batches(maps=True, most=40), st.integers(0, 2**32))
def test_every_batch(batch: pa.RecordBatch, seed: int) -> None:
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch).to_pylist()
    found, _ = decode_portions(codec, portions_of(rows, random.Random(seed)))
    found.validate(full=True)
    assert_same(found, codec.decode(rows))
    assert codec.encode(found).to_pylist() == rows


@settings(deadline=None, max_examples=examples(300))
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


@pytest.mark.parametrize("max_bytes", [1 << 20, 200_000, 100_000, 40_000, 1_000])
@pytest.mark.parametrize("is_alike", [True, False])
def test_a_hot_key_read_from_files(tmp_path, monkeypatch, is_alike, max_bytes):
    """Rows of one width: all of one shape, or of two, which are set upright."""
    cursors: list[Cursor] = []

    def noted(*arguments: Any) -> Cursor:
        cursors.append(Cursor(*arguments))
        return cursors[-1]

    monkeypatch.setattr(lsm_reader, "Cursor", noted)
    n = 20_000
    lengths = [(3, 5) if is_alike or i % 17 else (5, 3) for i in range(n)]
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
    found: dict[int, list[int]] = {}
    with open_store(tmp_path, [StreamSchema("s", KEY, rows.schema)]) as store:
        probe = store.probe("s", pa.record_batch({"k": list(range(11))}))
        for positions, piece in probe.fetch(range(11), max_bytes):
            piece.validate(full=True)
            assert piece.nbytes < 2 * max_bytes
            assert piece.drop_columns(["i"]).equals(rows.take(piece["i"]).drop_columns(["i"]))
            for position, number in zip(positions, piece["i"].to_pylist(), strict=True):
                found.setdefault(int(position), []).append(number)
    assert found == expected
    (cursor,) = cursors
    # Not those of a piece's first portion.
    share = cursor.rows_of_planes / n
    assert share > 0.2 if is_alike and max_bytes > 3 * PORTION_BYTES else share < 0.1


def test_blocks_of_a_hot_key_are_read_together(tmp_path):
    n = 20_000
    rows = pa.record_batch({f"i{c}": pa.array(range(c, n + c)) for c in range(10)})
    stream = StreamSchema("s", KEY, rows.schema)
    with open_store(tmp_path, [stream]) as store:
        store.append("s", rows, pa.record_batch({"k": pa.array([i % 2 for i in range(n)])}))
        store.commit()
    reads = []

    def note(operation, path, offset, size):
        if operation == "read" and path.startswith(str(tmp_path)):
            reads.append(size)

    with open_store(tmp_path, [stream]) as store:
        probe = store.probe("s", pa.record_batch({"k": [0, 1]}))
        set_fault_hook(note)
        try:
            found = sum(piece.num_rows for _, piece in probe.fetch(range(2), 1 << 20))
        finally:
            set_fault_hook(None)
        block_rows = 96  # a row has 82 bytes, a row block 8 KiB
        assert found == n
        assert len(reads) < n / block_rows / 4
        largest_block = Options().block_limit_bytes // 2
        assert max(reads) < 9 * largest_block, "no more than is worth a buffer"


GROWTH = """
import sys
import pyarrow as pa
from lsmstate import MemoryLimitError, Options, StreamSchema, open_store

def memory(what):
    return int(open("/proc/self/status").read().split(what)[1].split()[0]) << 10

n, columns = 20_000, 400
stream = StreamSchema(
    "s", pa.schema({"k": pa.int64()}), pa.schema({f"c{i}": pa.string() for i in range(columns)})
)
rows = pa.record_batch([pa.nulls(n, pa.string())] * columns, schema=stream.rows)
keys = pa.record_batch({"k": pa.array(range(n)) if sys.argv[2] == "many" else pa.array([0] * n)})
asked = keys.slice(0, n if sys.argv[2] == "many" else 1)
with open_store(sys.argv[1], [stream], options=Options(memory_bytes=16 << 20)) as store:
    for start in range(0, n, 500):
        store.append("s", rows.slice(start, 500), keys.slice(start, 500))
    store.commit()
    with open("/proc/self/clear_refs", "w") as peaks:
        peaks.write("5")
    before = memory("VmRSS:")
    try:
        next(store.probe("s", asked).fetch(range(asked.num_rows), 1 << 20))
    except MemoryLimitError:
        print("refused", memory("VmHWM:") - before)
    else:
        print("read", memory("VmHWM:") - before)
"""


@pytest.mark.parametrize("keys", ["many", "one"])
def test_a_batch_much_larger_than_its_rows_is_refused_before_it_is_there(tmp_path, keys):
    """400 nulls take 50 bytes in a row, and 1,600 in columns: 28 MB in a piece of 1 MiB."""
    command = [sys.executable, "-c", GROWTH, str(tmp_path), keys]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answer, growth = done.stdout.split()
    assert answer == "refused"
    assert int(growth) < 24_000_000
