"""Pieces of a probe that are decoded in several portions: columns of every kind, with nulls."""

import random
from collections import defaultdict
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.lsm_store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.store import StreamSchema

PAIR = pa.struct([("x", pa.int32()), ("y", pa.bool_())])
ROWS = pa.schema(
    [
        ("number", pa.int64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("amount", pa.decimal128(7, 2)),
        ("pairs", pa.list_(PAIR)),
        ("three", pa.list_(pa.bool_(), 3)),
        ("bytes", pa.large_binary()),
        ("small", pa.int16()),
        ("nothing", pa.null()),
    ]
)
STREAM = StreamSchema("s", pa.schema([("k", pa.int64())]), ROWS)
KEYS = 700


def row(chance, number):
    def sometimes(value):
        return None if chance.random() < 0.2 else value

    return {
        "number": number,
        "flag": sometimes(bool(number % 3)),
        "text": sometimes("x" * chance.randrange(40)),
        "amount": sometimes(Decimal(number % 1000)),
        "pairs": sometimes([{"x": number, "y": True}] * (number % 4)),
        "three": sometimes([True, None, False]),
        "bytes": sometimes(b"y" * chance.randrange(30)),
        "small": number % 100,
        "nothing": None,
    }


@pytest.mark.parametrize("max_bytes", [1, 70_000, 300_000, 4 * MIB])
def test_pieces_hold_the_rows_whatever_portions_they_are_decoded_in(tmp_path, max_bytes):
    chance = random.Random(max_bytes)
    options = Options(memory_bytes=64 * MIB, sync="never", background=False)
    expected = defaultdict(list)
    with LsmStore.open(str(tmp_path), [STREAM], options=options) as store:
        for part in range(4):
            rows = [row(chance, 3000 * part + number) for number in range(3000)]
            keys = [min(KEYS - 1, int(chance.expovariate(1 / 150))) for _ in rows]
            for key, each in zip(keys, rows, strict=True):
                expected[key].append(each)
            store.append(
                "s",
                pa.RecordBatch.from_pylist(rows, schema=ROWS),
                pa.RecordBatch.from_arrays([pa.array(keys)], schema=STREAM.key),
            )
            if part < 3:
                store.flush()
        asked = pa.RecordBatch.from_arrays([pa.array(range(KEYS))], schema=STREAM.key)
        positions, found = [], []
        for piece in store.probe("s", asked).fetch(np.arange(KEYS), max_bytes):
            piece.rows.validate(full=True)
            assert max_bytes == 1 or piece.rows.nbytes < 4 * max_bytes
            positions += piece.positions.tolist()
            found += piece.rows.to_pylist()
    assert positions == [key for key in range(KEYS) for _ in expected[key]]
    assert found == [each for key in range(KEYS) for each in expected[key]]
