"""A memtable of wide rows that is read piece by piece, and the memory of the process meanwhile."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.cython_ext.rows.row_codec import RowCodec

MIB = 1 << 20
LIMIT = 64 * MIB
ROWS = pa.schema(
    [
        ("number", pa.int64()),
        ("wide", pa.decimal128(38, 0)),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("list", pa.list_(pa.int32())),
    ]
)
CODEC = RowCodec(ROWS)
COUNT = 40_000


def batch_of(numbers):
    """What is stored under keys of these numbers."""
    listed = numbers.tolist()
    columns = [
        pa.array(numbers),
        pa.array(numbers).cast(pa.decimal128(38, 0)),
        pa.array([None if number % 7 == 0 else f"{number}-" * (number % 5) for number in listed]),
        pa.array([number % 3 == 0 for number in listed]),
        pa.array([[number] * (number % 3) for number in listed], pa.list_(pa.int32())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


ALL = batch_of(np.arange(COUNT))
KEYS = [b"%08d" % number for number in range(COUNT)]


def state(limit=LIMIT, codec=CODEC, rows=ALL):
    """A memtable with a row under each of the first keys."""
    budget = Budget(limit)
    table = Memtable(budget, 32 * MIB)
    keys = KeyBatch.from_bytes(KEYS[: rows.num_rows]).of_stream(0)
    assert table.append(keys, codec.encode(rows), 1, 0) == rows.num_rows
    return budget, table


def cursor_of(budget, table, start=0, codec=CODEC, count=COUNT):
    lookup = Lookup(KeyBatch.from_bytes(KEYS[:count]).of_stream(0), 0, None, codec, budget, 0)
    lookup.search_memtable(table)
    lookup.count()
    return Cursor(lookup, np.arange(start, count))


def pieces(budget, table, max_bytes=MIB, *others):
    cursor = cursor_of(budget, table, *others)
    while (piece := cursor.next_piece(max_bytes)) is not None:
        yield piece


def decode_a_huge_row():
    """Print how much the resident memory grows meanwhile, in sizes of the row."""
    size = 15 * MIB
    values = pa.array([[b"x" * 1024] * (size // 1024)])
    batch = pa.RecordBatch.from_arrays([values], ["list"])
    codec = RowCodec(batch.schema)
    budget, table = state(codec=codec, rows=batch)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    [(_, found)] = pieces(budget, table, MIB, 0, codec, 1)
    print((resident("VmHWM") - before) / size)
    assert found.equals(batch)


def resident(name):
    """Bytes of memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))
