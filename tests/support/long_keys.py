"""Keys of kilobytes in several shapes, and the stream whose rows lie under them."""

import random

import pyarrow as pa

from lsmstate import StreamSchema

KEY = pa.schema([("k", pa.binary())])
ROWS = pa.schema([("v", pa.int64())])
STREAM = StreamSchema("s", KEY, ROWS)


def keys_like(shape, size, count, chance):
    """Distinct keys of so many bytes."""
    if shape == "random":
        return [chance.randbytes(size) for _ in range(count)]
    if shape == "alike":  # all but the end
        return [b"x" * (size - 12) + chance.randbytes(12) for _ in range(count)]
    if shape == "pairs":  # two and two, all but the end
        fronts = [chance.randbytes(size - 1) for _ in range((count + 1) // 2)]
        return [front + end for front in fronts for end in (b"a", b"b")][:count]
    half = size // 2
    return [b"x" * half + chance.randbytes(size - half) for _ in range(count)]


def batches(shape, size, total, per):
    chance = random.Random(7)
    for _ in range(total // (size * per)):
        yield keys_like(shape, size, per, chance)


def rows_and_keys(keys):
    rows = pa.RecordBatch.from_arrays([pa.array(range(len(keys)), pa.int64())], schema=ROWS)
    return rows, pa.RecordBatch.from_arrays([pa.array(keys, pa.binary())], schema=KEY)
