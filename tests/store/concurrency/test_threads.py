"""Threads with a store each share one budget, one block cache and the open tables."""

import dataclasses
import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.opening import open_attempt, open_store
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
THREADS = 4
#: Little room: the stores flush each other's memtables and evict each other's blocks.
OPTIONS = Options(
    memory_bytes=(4 + THREADS) << 20, compression="zstd", bottom_compression="lz4", fanout=2
)


@pytest.fixture(autouse=True)
def threads_change_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work, count=THREADS):
    """Run work(number) at once in so many threads; the first error is raised."""
    start = threading.Barrier(count)

    def begin(number):
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def keys_of(keys):
    return pa.record_batch([pa.array(keys, pa.int64())], schema=KEY)


def drive(store, seed, steps):
    """Random appends, deletions and probes, checked against a dict."""
    chance = random.Random(seed)
    model = {}
    first = 0
    for _ in range(steps):
        keys = [chance.randrange(400) for _ in range(600)]
        values = range(first, first + len(keys))
        first += len(keys)
        texts = pa.array([f"row {value} of thread {seed}" * 8 for value in values])
        store.append("s", pa.record_batch([pa.array(values), texts], schema=ROWS), keys_of(keys))
        for key, value in zip(keys, values, strict=True):
            model.setdefault(key, []).append(value)
        gone = [chance.randrange(400) for _ in range(5)]
        store.delete("s", keys_of(gone))
        for key in gone:
            model.pop(key, None)
        asked = sorted(chance.sample(range(420), 40))
        assert found(store, asked) == [value for key in asked for value in model.get(key, [])]
    return sorted(value for values in model.values() for value in values)


def found(store, keys):
    pieces = store.probe("s", keys_of(keys)).fetch(np.arange(len(keys)), 1 << 14)
    return [value for piece in pieces for value in piece.rows.column(0).to_pylist()]


def scanned(store):
    return sorted(v for piece in store.scan("s") for v in piece.column(0).to_pylist())


@pytest.mark.parametrize("background", [False, True], ids=["", "background"])
@pytest.mark.parametrize("kind", ["attempts", "standalone"])
def test_stores_of_several_threads_share_one_cap(tmp_path, kind, background):
    options = dataclasses.replace(OPTIONS, background=background)

    def work(number):
        directory = str(tmp_path / str(number))
        os.makedirs(directory)
        if kind == "standalone":
            with open_store(directory, [STREAM], options=options) as store:
                values = drive(store, number, 12)
            with open_store(directory, [STREAM], options=options) as store:
                assert scanned(store) == values
                store.check()
            return
        with open_attempt(
            directory, [STREAM], batch_id=0, attempt_id="a", options=options
        ) as store:
            values = drive(store, number, 12)
            pointer = store.commit()
        with open_attempt(
            directory, [STREAM], pointer=pointer, batch_id=1, attempt_id="a", options=options
        ) as store:
            assert scanned(store) == values
            store.check()

    in_threads(work)
    usage = process_memory().budget.usage()
    assert {name: usage[name] for name in ("memtable", "merge", "probe", "frames")} == {
        "memtable": 0,
        "merge": 0,
        "probe": 0,
        "frames": 0,
    }
    assert process_memory().budget.peak_bytes <= OPTIONS.memory_bytes


def test_threads_open_the_same_tables(tmp_path):
    """Attempts of one directory share open tables and cached blocks, whoever comes first."""
    with open_attempt(
        str(tmp_path), [STREAM], batch_id=0, attempt_id="a", options=OPTIONS
    ) as store:
        values = drive(store, 1, 20)
        pointer = store.commit()

    def work(number):
        for turn in range(8):
            with open_attempt(
                str(tmp_path),
                [STREAM],
                pointer=pointer,
                batch_id=1 + number,
                attempt_id=f"a{turn}",
                options=OPTIONS,
            ) as store:
                assert scanned(store) == values
                store.check()

    in_threads(work)
    assert process_memory().budget.usage()["merge"] == 0


def test_a_process_has_one_budget_whichever_thread_asks_first():
    assert len(set(map(id, in_threads(lambda _: process_memory(), 8)))) == 1
