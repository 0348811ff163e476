"""Pieces of a probe that are decoded in several portions: columns of every kind, with nulls."""

import random
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
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
GIB = 1024 * MIB


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


def test_a_piece_is_read_beside_a_thread_that_has_the_interpreter(tmp_path):
    """Who asks for it waits until the thread gives it up, which it does once an interval. That was
    once for each portion."""
    interval, stops = 0.05, threading.Event()

    def use_the_interpreter():
        while not stops.is_set():
            sum(range(100))

    schema = StreamSchema("s", STREAM.key, pa.schema([("text", pa.string())]))
    numbers = np.arange(20_000)
    keys = pa.RecordBatch.from_arrays([pa.array(numbers)], schema=STREAM.key)
    rows = pa.RecordBatch.from_arrays([pa.array(["x" * 400] * len(numbers))], schema=schema.rows)
    options = Options(memory_bytes=256 * MIB, sync="never", background=False)
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        store.append("s", rows, keys)
        store.flush()
        probe, before = store.probe("s", keys), sys.getswitchinterval()
        thread = threading.Thread(target=use_the_interpreter, daemon=True)
        try:
            sys.setswitchinterval(interval)
            thread.start()
            began = time.perf_counter()
            pieces = list(probe.fetch(numbers, 16 * MIB))
            waits = (time.perf_counter() - began) / interval
        finally:
            stops.set()
            sys.setswitchinterval(before)
            thread.join()
    assert sum(piece.rows.num_rows for piece in pieces) == len(numbers)
    portions = sum(piece.rows.nbytes for piece in pieces) / (64 * KIB)
    assert len(pieces) == 1
    assert portions > 100
    assert waits < portions / 4


@pytest.mark.parametrize("read", ["fetch", "scan"])
def test_a_piece_is_charged_while_it_is_made_beside_another(tmp_path, read):
    """Of the batches that are made at a time one is not; the others' are smaller where memory is
    short, and there is none where there is none."""
    schema = StreamSchema("s", STREAM.key, pa.schema([("text", pa.string())]))
    numbers = np.arange(6000)
    keys = pa.RecordBatch.from_arrays([pa.array(numbers)], schema=STREAM.key)
    rows = pa.RecordBatch.from_arrays([pa.array(["x" * 400] * len(numbers))], schema=schema.rows)
    budget = process_memory().budget
    options = Options(memory_bytes=64 * MIB, sync="never", background=False)
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        store.append("s", rows, keys)
        store.flush()
        probe = store.probe("s", keys)

        def pieces():
            if read == "scan":
                return store.scan("s", 4 * MIB)
            return (piece.rows for piece in probe.fetch(numbers, 4 * MIB))

        before = budget.usage()["probe"]
        kept = pieces()
        whole = next(kept)
        assert 2 * MIB < whole.nbytes < 4 * MIB
        staged = budget.usage()["probe"] - before
        assert staged < (MIB if read == "fetch" else 4 * MIB)
        del kept
        with held_beside(budget, 5 * MIB):
            assert next(pieces()).num_rows == whole.num_rows
            assert budget.begin_free_piece()  # as another thread's
            assert not budget.begin_free_piece()
            try:
                short = list(pieces())
                assert MIB / 4 < short[0].nbytes < MIB
                assert pa.Table.from_batches(short).to_pydict()["text"] == ["x" * 400] * len(
                    numbers
                )
                used = budget.usage()["probe"]
                with (
                    held_beside(budget, 100 * KIB),
                    pytest.raises(MemoryLimitError, match="no memory to continue a read"),
                ):
                    next(pieces())
                assert budget.usage()["probe"] == used
            finally:
                budget.end_free_piece()
        assert next(pieces()).num_rows == whole.num_rows


@pytest.mark.parametrize("read", ["fetch", "scan"])
def test_a_piece_of_less_than_nothing_is_refused_and_charges_nothing(tmp_path, read):
    schema = StreamSchema("s", STREAM.key, pa.schema([("text", pa.string())]))
    keys = pa.RecordBatch.from_arrays([pa.array([1])], schema=STREAM.key)
    rows = pa.RecordBatch.from_arrays([pa.array(["x" * 400_000])], schema=schema.rows)
    budget = process_memory().budget
    options = Options(memory_bytes=64 * MIB, sync="never", background=False)
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        store.append("s", rows, keys)
        store.flush()
        probe = store.probe("s", keys)
        used = budget.usage()["probe"]
        with pytest.raises(InvalidArgumentError, match="max_bytes=-1073741824"):
            store.scan("s", -GIB) if read == "scan" else probe.fetch([0], -GIB)
        assert budget.usage()["probe"] == used


@contextmanager
def held_beside(budget, left):
    """No more than so many bytes are left to reads; an eighth of the cap is the writers'."""
    used, limit = budget.usage()["probe"], budget.limit
    half = max(0, limit // 2 - used)
    budget.hold("probe", half)
    others = limit - limit // 8 - left - budget.firm_bytes
    budget.hold("frames", others)
    try:
        yield
    finally:
        budget.hold("frames", -others)
        budget.hold("probe", -half)


def test_a_piece_that_begins_with_short_rows_has_no_more_room_than_it_takes(tmp_path):
    """Room is made for as many rows as there would be."""
    names = [f"c{number}" for number in range(100)]
    schema = StreamSchema("s", STREAM.key, pa.schema([(name, pa.string()) for name in names]))
    short, long = [""] * 1000, ["x" * 100] * 400  # 4 MB
    texts = pa.array((short + long) * 5 + short * 20)
    rows = pa.RecordBatch.from_arrays([texts] * len(names), schema=schema.rows)
    numbers = np.arange(len(texts))
    keys = pa.RecordBatch.from_arrays([pa.array(numbers)], schema=STREAM.key)
    options = Options(memory_bytes=128 * MIB, sync="never", background=False)
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        store.append("s", rows, keys)
        store.flush()
        probe = store.probe("s", keys)
        before = allocated_bytes()
        pieces = [next(probe.fetch(numbers[1400 * place :], 4 * MIB)) for place in range(5)]
        held = sum(piece.rows.nbytes for piece in pieces)
        assert held > 16 * MIB
        assert allocated_bytes() - before < 1.5 * held


def allocated_bytes():
    """Of private memory of this process, whether or not it was touched."""
    with open("/proc/self/status") as file:
        sizes = [line.split()[1] for line in file if line.startswith("VmData:")]
    return int(sizes[0]) * KIB
