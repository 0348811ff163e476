"""Rows that are large beside the memory cap: written and read within it."""

import gc
import os
import random
import shutil
import signal
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.memory.budget import Holding
from lsmstate.errors import MemoryLimitError, StoreClosedError
from lsmstate.lsm.compaction_picker import Task
from lsmstate.lsm.jobs import EVERYTHING
from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema
from support.sampling import each_value

BINARY = StreamSchema("s", pa.schema([("k", pa.int64())]), pa.schema([("t", pa.binary())]))


@each_value(sizes=[(16, 4, 14), (16, 6, 20), (5, 8, 60), (6, 20, 90)], background=[False, True])
def test_rows_of_a_part_of_the_cap_are_stored_within_it(tmp_path, sizes, background):
    """However many, by the memtable, frames and what flushes and resting merges hold of them."""
    cap, part, count = sizes
    options = Options(memory_bytes=cap * MIB, background=background, sync="never")
    chance = random.Random(5)
    size = cap * MIB // part - 100
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        for number in range(count):
            row = pa.RecordBatch.from_arrays([pa.array([chance.randbytes(size)])], ["t"])
            store.append("s", row, pa.RecordBatch.from_arrays([pa.array([number])], ["k"]))
        assert process_memory().budget.peak_bytes <= cap * MIB
        assert sum(piece.num_rows for piece in store.scan("s", 1)) == count


@each_value(times=2, cap=[6 * MIB, 8 * MIB], flushed=[False, True], background=[False, True])
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


def keys_of(*numbers):
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], ["k"])


def rows_of(*texts):
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], ["t"])


class Worker:
    """Random operations on one store, each read compared with a model."""

    def __init__(self, number, store, cap):
        self.chance = random.Random(number)
        self.store = store
        self.cap = cap
        self.has_large = number % 2 == 0
        self.rows = defaultdict(list)

    def row(self):
        size = self.chance.randint(0, 3000)
        if self.has_large and self.chance.random() < 0.6:
            size = self.chance.randint(self.cap // 40, self.cap // 4 - 100)
        return self.chance.randbytes(size // 2).ljust(size, b"x")

    def work(self, operations):
        for _ in range(operations):
            total = sum(map(len, self.rows.values()))
            name = self.chance.choices(
                ["append", "put", "retract", "delete", "flush", "compact", "probe", "scan"],
                [12, 2, 3, 2, 1, 1, 5, 1],
            )[0]
            if total > 200:
                self.store.delete_range("s")
                self.rows.clear()
            elif name in ("append", "put", "flush", "compact"):
                getattr(self, name)()
            elif self.rows:
                getattr(self, name)(self.chance.choice(list(self.rows)))
        self.scan(None)

    def append(self):
        count = self.chance.randint(1, 3 if self.has_large else 100)
        keys = [self.chance.randrange(50) for _ in range(count)]
        rows = [self.row() for _ in keys]
        assert self.store.append("s", rows_of(*rows), keys_of(*keys)) == count
        for key, row in zip(keys, rows, strict=True):
            self.rows[key].append(row)

    def put(self):
        key, row = self.chance.randrange(50), self.row()
        self.store.put("s", rows_of(row), keys_of(key))
        self.rows[key] = [row]

    def retract(self, key):
        row = self.chance.choice(self.rows[key])
        assert self.store.retract("s", rows_of(row), keys_of(key)) == 1
        self.rows[key].remove(row)
        if not self.rows[key]:
            del self.rows[key]

    def delete(self, key):
        self.store.delete("s", keys_of(key))
        del self.rows[key]

    def flush(self):
        self.store.flush()

    def compact(self):
        self.store.compact(due_only=self.chance.random() < 0.5)

    def probe(self, key):
        found = [
            text
            for piece in self.store.probe("s", keys_of(key)).fetch(np.arange(1), MIB // 4)
            for text in piece.rows.column(0).to_pylist()
        ]
        assert Counter(found) == Counter(self.rows[key])

    def scan(self, _key):
        """In a snapshot, from the back or from the front."""
        reverse = self.chance.random() < 0.5
        found = defaultdict(Counter)
        with self.store.snapshot() as snapshot:
            for piece in snapshot.iterate("s", max_bytes=MIB // 4, reverse=reverse):
                for key, text in zip(
                    piece.keys.column(0).to_pylist(), piece.rows.column(0).to_pylist(), strict=True
                ):
                    found[key][text] += 1
        assert found == {key: Counter(rows) for key, rows in self.rows.items()}


@pytest.mark.parametrize(
    "operations", [60, pytest.param(1500, marks=[pytest.mark.stress, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize(
    ("stores", "cap"),
    [(4, 16), *(pytest.param(*each, marks=pytest.mark.stress) for each in ((2, 8), (8, 14)))],
)
def test_threads_with_rows_up_to_a_quarter_of_a_small_cap_share_it(
    tmp_path, stores, cap, operations
):
    """Nothing is refused, and the cap holds: they take turns."""
    with ExitStack() as stack, ThreadPoolExecutor(stores) as pool:
        workers = [
            Worker(
                number,
                stack.enter_context(
                    LsmStore.open(
                        str(tmp_path / str(number)),
                        [BINARY],
                        options=Options(
                            memory_bytes=cap * MIB, sync="never", background=number % 3 != 2
                        ),
                    )
                ),
                cap * MIB,
            )
            for number in range(stores)
        ]
        budget = process_memory().budget
        assert not budget.has_large_rows
        list(pool.map(Worker.work, workers, [operations] * stores))
        assert budget.has_large_rows
        assert budget.peak_bytes <= budget.limit
        for worker in workers:
            worker.store.check()
    assert {budget.usage()[name] for name in ("memtable", "merge", "probe", "frames")} == {0}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_reader_holds_no_large_row_from_piece_to_piece(tmp_path, reverse):
    """Neither the next one nor a buffer for one; rows of several sizes, in files."""
    cap, large = 8 * MIB, 2 * MIB - 100
    options = Options(memory_bytes=cap, background=False, sync="never")
    sizes = [large, 10, large, large, 1000, cap // 17, 300 * KIB, 0, large]
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        chance = random.Random(9)
        rows = [chance.randbytes(size) for size in sizes]
        for row in rows:
            store.append("s", rows_of(row), keys_of(1))
        for row in reversed(rows):
            store.append("s", rows_of(row), keys_of(2))
        store.flush()
        budget = process_memory().budget
        entries = store.iterate("s", max_bytes=MIB, reverse=reverse)
        fetched = store.probe("s", keys_of(1, 2)).fetch(np.arange(2), MIB)
        for keys, pieces in (([2, 1] if reverse else [1, 2], entries), ([1, 2], fetched)):
            before, found = budget.usage()["probe"], []
            for piece in pieces:
                found += piece.rows.column(0).to_pylist()
                assert budget.usage()["probe"] - before <= cap // 8 + 64 * KIB
            assert found == [
                *(rows if keys == [1, 2] else rows[::-1]),
                *(rows[::-1] if keys == [1, 2] else rows),
            ]


def test_of_a_large_row_one_copy_at_a_time_is_paid_for(tmp_path):
    """That of its block, then the staged one, then the batch's; two of them are there at a time."""
    options, large = Options(memory_bytes=16 * MIB, background=False), 4 * MIB - 100
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        store.append("s", rows_of(bytes(large)), keys_of(1))  # small on disk
        store.flush()
        process_memory().cache.clear()  # also what other tests left
        process_memory().budget.reset_peak()
        (piece,) = store.probe("s", keys_of(1)).fetch(np.arange(1), MIB // 4)
        assert len(piece.rows["t"][0].as_py()) == large
        assert process_memory().budget.peak_bytes < 1.2 * large


def test_a_merge_holds_two_copies_of_a_large_row_and_none_between_slices(tmp_path):
    cap = 16 * MIB
    options = Options(memory_bytes=cap, background=False, sync="never", max_runs=8, fanout=8)
    chance = random.Random(3)
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        for number in range(6):
            store.append("s", rows_of(chance.randbytes(cap // 4 - 100)), keys_of(number % 3))
        store.flush()
        budget = process_memory().budget
        process_memory().cache.clear()
        budget.reset_peak()
        runs = store._runs
        runs._begin(Task(0, len(runs.version.runs), 1), EVERYTHING)
        merge = runs._merge
        at_rest = []
        while not merge.step(1):
            at_rest.append(budget.usage()["merge"])
        assert len(at_rest) >= 3
        assert max(at_rest) <= MIB
        assert budget.peak_bytes <= 2 * (cap // 4) + MIB
        runs._step(1)
        store.check()


def test_a_read_that_was_refused_memory_can_be_dropped(tmp_path):
    """Its buffers were freed, and then once more: the process was aborted."""
    cap = 8 * MIB
    options = Options(memory_bytes=cap, background=False, sync="never")
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        store.append(
            "s", rows_of(*[bytes([n % 256]) * 100 for n in range(2000)]), keys_of(*range(2000))
        )
        store.append("s", rows_of(random.Random(1).randbytes(MIB)), keys_of(1999))
        store.flush()
        budget = process_memory().budget
        pieces = store.probe("s", keys_of(*range(2000))).fetch(np.arange(2000), 20_000)
        for _ in range(3):
            assert next(pieces).rows.num_rows  # blocks are read past the cache
        taken = {"probe": cap // 2, "frames": budget.limit - budget.firm_bytes - cap // 2}
        for component, size in taken.items():
            budget.hold(component, size)
        try:
            with pytest.raises(MemoryLimitError, match="no memory to continue a read"):
                list(pieces)
        finally:
            for component, size in taken.items():
                budget.hold(component, -size)
        del pieces
        gc.collect()
        assert sum(piece.num_rows for piece in store.scan("s")) == 2001


@pytest.mark.parametrize("waits_itself", [False, True])
def test_a_write_waits_for_a_thread_in_the_middle_of_a_call(tmp_path, waits_itself):
    """Which gives memory back at its end; but not for one that waits itself, or they would wait for
    each other."""
    options = Options(memory_bytes=8 * MIB, background=False, sync="never")
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        one, two = (
            stack.enter_context(LsmStore.open(str(tmp_path / str(n)), [BINARY], options=options))
            for n in range(2)
        )
        memory = process_memory()
        taken = memory.budget.limit - memory.budget.firm_bytes - 50 * KIB
        memory.budget.hold("frames", taken)
        ended = threading.Event()
        try:
            with one._guard.lock:
                if waits_itself:
                    memory._waiting.add(one)
                appended = pool.submit(two.append, "s", rows_of(b"x" * 200_000), keys_of(1))
                if waits_itself:
                    with pytest.raises(MemoryLimitError, match="no room"):
                        appended.result(60)
                    return
                while two not in memory._waiting:
                    assert not appended.done()
                    ended.wait(0.001)
                memory.budget.hold("frames", -taken)
                taken = 0
            assert appended.result(60) == 1
            assert not memory._waiting
        finally:
            memory.budget.hold("frames", -taken)
            memory.end_waiting(one)


def test_a_forked_child_is_refused_at_once_whoever_had_the_turn(tmp_path):
    """Locks that another thread of the parent had are never given back in a child."""
    options = Options(memory_bytes=8 * MIB, sync="never")
    ended = threading.Event()
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        store.append("s", rows_of(b"x" * MIB), keys_of(1))
        snapshot = store.snapshot()
        calls = [
            lambda: store.probe("s", keys_of(1)),
            lambda: store.append("s", rows_of(b"x"), keys_of(1)),
            store.snapshot,
            lambda: list(snapshot.scan("s")),
        ]

        def use(store_or_snapshot):
            while not ended.is_set():
                list(store_or_snapshot.scan("s"))

        others = [threading.Thread(target=use, args=(used,)) for used in (store, snapshot)]
        for other in others:
            other.start()
        try:
            for call in calls * 2:
                child = os.fork()
                if child == 0:
                    signal.alarm(30)
                    try:
                        call()
                    except StoreClosedError:
                        os._exit(0)
                    os._exit(1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            ended.set()
            for other in others:
                other.join()
        snapshot.close()


def test_replayed_large_rows_leave_no_more_than_their_share_in_memtables(tmp_path):
    options = Options(memory_bytes=8 * MIB, background=False, sync="never")
    rows = [random.Random(n).randbytes(300 * KIB) for n in range(3)]
    with LsmStore.open(str(tmp_path / "log"), [BINARY], options=options) as store:
        for row in rows:
            store.append("s", rows_of(row), keys_of(1))
        assert not store.stats().counters["flushes"], "all is in the log"
        shutil.copytree(tmp_path / "log", tmp_path / "killed")
    with ExitStack() as stack:
        for other in "abc":
            stack.enter_context(LsmStore.open(str(tmp_path / other), [BINARY], options=options))
        store = stack.enter_context(
            LsmStore.open(str(tmp_path / "killed"), [BINARY], options=options)
        )
        assert store.memtable_bytes <= store._memtables.limit_bytes
        assert [row for piece in store.scan("s") for row in piece.column(0).to_pylist()] == rows


def test_many_small_rows_at_a_time_are_no_large_ones(tmp_path):
    options = Options(memory_bytes=16 * MIB)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(
                LsmStore.open_attempt(
                    str(tmp_path / str(n)), [BINARY], batch_id=0, attempt_id="a", options=options
                )
            )
            for n in range(8)
        ]
        numbers = range(40_000)
        for store in stores:
            store.append("s", rows_of(*[b"x" * 100] * len(numbers)), keys_of(*numbers))
            assert store.stats().counters["runs"], "it was more than a memtable takes"
            store.commit()
        assert not process_memory().budget.has_large_rows


def test_what_is_left_of_a_grant_stays_with_the_whole_write(tmp_path, monkeypatch):
    """Of several parts the first meets a budget that another thread has filled since the write was
    admitted, and is granted all that was reserved. The parts after it need what it left."""
    options = Options(memory_bytes=8 * MIB, background=False, sync="never")
    left = []
    with LsmStore.open(str(tmp_path), [BINARY], options=options) as store:
        budget, reserved = process_memory().budget, store._writes._reservations
        log = store._owner.log

        def log_and_fill(writes):
            log(writes)
            left.append(reserved.outmost.memtable.nbytes)
            if len(left) == 1:
                filling.grow(max(0, budget.limit - budget.total_bytes))

        with Holding(budget, "frames") as filling:
            monkeypatch.setattr(store._owner, "log", log_and_fill)
            rows = [b"x" * 300_000, *(bytes([n]) * 50_000 for n in range(20))]
            assert store.append("s", rows_of(*rows), keys_of(*range(21))) == 21
        assert reserved.inmost is None
        assert len(left) >= 3
        assert left[1] > 0
        assert sum(piece.num_rows for piece in store.scan("s")) == 21
