"""Rows that are large beside the memory cap: written and read within it."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.lsm_store import LsmStore
from lsmstate.memory_budget import process_memory
from lsmstate.options import MIB, Options
from lsmstate.store import StreamSchema

BINARY = StreamSchema("s", pa.schema([("k", pa.int64())]), pa.schema([("t", pa.binary())]))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("cap", "part", "count"), [(16, 4, 14), (16, 6, 20), (5, 8, 60), (6, 20, 90)]
)
def test_rows_of_a_part_of_the_cap_are_stored_within_it(tmp_path, background, cap, part, count):
    """However many, by the memtable, frames and what flushes and resting merges hold of them."""
    options = Options(memory_bytes=cap * MIB, background=background, sync="never")
    chance = random.Random(5)
    size = cap * MIB // part - 100
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        for number in range(count):
            row = pa.RecordBatch.from_arrays([pa.array([chance.randbytes(size)])], ["t"])
            store.append("s", row, pa.RecordBatch.from_arrays([pa.array([number])], ["k"]))
        assert process_memory().budget.peak_bytes <= cap * MIB
        assert sum(piece.num_rows for piece in store.scan("s", 1)) == count


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("cap", [6 * MIB, 8 * MIB])
def test_rows_of_a_quarter_of_the_cap_are_read_where_some_were_retracted(
    tmp_path, cap, flushed, background
):
    """A read compares them with what was retracted, which it reads beside them."""
    options = Options(memory_bytes=cap, background=background, sync="never")
    key = pa.RecordBatch.from_arrays([pa.array([1])], ["k"])
    rows = [
        pa.RecordBatch.from_arrays([pa.array([random.Random(n).randbytes(cap // 4 - 64)])], ["t"])
        for n in range(4)
    ]
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        for row in rows:
            store.append("s", row, key)
        if flushed:
            store.flush()
        for row in rows[::2]:
            assert store.retract("s", row, key) == 1
        probe = store.probe("s", key)
        found = [
            [match.rows for match in probe.fetch(np.arange(1), MIB)],
            list(store.scan("s", MIB)),
            [piece.rows for piece in store.iterate("s", max_bytes=MIB)],
            [piece.rows for piece in store.iterate("s", max_bytes=MIB, reverse=True)],
        ]
        kept = [row.column(0)[0].as_py() for row in rows[1::2]]
        for pieces in found:
            assert [text for piece in pieces for text in piece.column(0).to_pylist()] == kept


def test_threads_with_large_rows_share_a_small_cap(tmp_path):
    cap = 8 * MIB
    options = Options(memory_bytes=cap, sync="never")

    def write(number: int, store: LsmStore) -> int:
        chance = random.Random(number)
        for _ in range(100):
            row = chance.randbytes(chance.randint(cap // 32, cap // 16))
            store.append(
                "s",
                pa.RecordBatch.from_arrays([pa.array([row])], ["t"]),
                pa.RecordBatch.from_arrays([pa.array([chance.randrange(10**6)])], ["k"]),
            )
        return sum(piece.num_rows for piece in store.scan("s", 1))

    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        stores = [
            stack.enter_context(LsmStore.open(str(tmp_path / str(n)), [BINARY], options=options))
            for n in range(2)
        ]
        assert list(pool.map(write, range(2), stores)) == [100, 100]
        assert process_memory().budget.peak_bytes <= cap
