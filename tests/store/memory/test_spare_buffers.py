"""Buffers of batches that were let go, in the next ones: whose they are, and what they cost."""

import gc
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.iterators.scanner import Scanner
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.cython_ext.sstable.block_cache import BlockCache
from lsmstate.spark_integration.metrics.worker_memory import ENVIRONMENT
from support.examples import examples
from support.faults import in_use, opened, write_sst
from support.paths import ROOT, TESTS
from support.spare_buffer_cases import (
    ALL,
    CODEC,
    COUNT,
    KEYS,
    LIMIT,
    MIB,
    batch_of,
    cursor_of,
    pieces,
    resident,
    state,
)

#: Of the cap, at most.
ROOM = LIMIT // 16


def read_all(budget, table, *others):
    """Dropping one piece after the other."""
    for _ in pieces(budget, table, *others):
        assert budget.spare_buffers[1] <= budget.usage()["spare"] <= budget.limit // 16


def addresses(batch):
    """Of buffers that are large enough to be kept."""
    return {
        buffer.address
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size >= 1 << 14
    }


@pytest.mark.parametrize("read", ["fetch", "scan"])
def test_a_batch_has_the_buffers_of_one_that_was_let_go(read):
    budget, table = state()
    if read == "fetch":
        batches = (rows for _, rows in pieces(budget, table, MIB // 8))
    else:
        scanner = Scanner(table.source(), b"\0\0", b"\0\1", CODEC, budget)
        batches = iter(lambda: scanner.next_piece(MIB // 8), None)
    earlier, reused, seen = set(), 0, 0
    for rows in batches:
        assert rows.equals(batch_of(rows.column(0).to_numpy()))
        found = addresses(rows)
        seen += len(found)
        reused += len(found & earlier)
        earlier |= found
        assert budget.spare_buffers[1] <= budget.usage()["spare"] <= ROOM
    assert seen > 20
    assert reused > seen // 2
    assert budget.usage()["spare"] > MIB // 16


def test_what_is_held_is_not_given_to_another():
    budget, table = state()
    held = []
    for number, (_, rows) in enumerate(pieces(budget, table, MIB // 4)):
        if number % 3 == 0:
            held.append(rows)
        elif number % 3 == 1:
            held.append(rows.select(["text", "number"]).slice(5))  # columns outlive their batch
    again = sum(rows.num_rows for _, rows in pieces(budget, table, MIB // 4))
    assert again == COUNT
    assert len(held) > 4
    for rows in held:
        rows.validate(full=True)
        assert rows.equals(batch_of(rows.column("number").to_numpy()).select(rows.schema.names))


def test_room_is_that_of_a_batch_and_stays_charged_while_its_buffers_are_out():
    budget, table = state()
    before = budget.usage()
    assert before["spare"] == 0
    rows = next(pieces(budget, table, MIB))[1]
    room = budget.usage()["spare"]
    assert rows.nbytes * 0.9 <= room <= rows.nbytes * 1.2
    assert budget.spare_buffers == (0, 0)
    del rows
    assert budget.usage()["spare"] == budget.spare_buffers[1] == room
    again = next(pieces(budget, table, MIB))[1]
    assert budget.usage()["spare"] == room
    assert budget.spare_buffers[1] < room // 2
    assert again.nbytes >= room * 0.8
    del again
    read_all(budget, table, 16 * MIB)
    assert budget.usage() | {"spare": 0} == before


def test_room_is_given_up_for_what_fits_nowhere_else():
    budget, table = state()
    rows = next(pieces(budget, table, MIB))[1]
    del rows
    room = budget.usage()["spare"]
    assert room > MIB // 2
    left = LIMIT - budget.total_bytes
    assert budget.try_hold("frames", left)
    assert budget.usage()["spare"] == room
    assert budget.spare_buffers[1] == room
    assert budget.try_hold("frames", 1)
    assert budget.usage()["spare"] == 0
    assert budget.spare_buffers == (0, 0)
    assert not budget.try_hold("frames", room)
    assert budget.total_bytes == sum(budget.usage().values())
    # There is none to be had again before there is memory.
    rows = next(pieces(budget, table, MIB // 4))[1]
    assert budget.usage()["spare"] in range(MIB)
    budget.hold("frames", -left - 1)
    assert next(pieces(budget, table, MIB))[1].num_rows > rows.num_rows
    assert budget.usage()["spare"] > MIB // 2


def test_a_smaller_cap_has_less_room():
    budget, table = state()
    read_all(budget, table, 16 * MIB)
    assert budget.usage()["spare"] > MIB
    budget.limit = 16 * MIB
    assert budget.spare_buffers[1] <= budget.usage()["spare"] == MIB
    read_all(budget, table, 16 * MIB)
    assert budget.usage()["spare"] <= MIB


def test_room_becomes_less_when_batches_are_small_for_a_while():
    budget, table = state()
    read_all(budget, table, MIB)
    assert budget.usage()["spare"] > MIB // 2
    read_all(budget, table, MIB // 64)
    assert budget.spare_buffers[1] <= budget.usage()["spare"] < MIB // 16
    read_all(budget, table, MIB)
    assert budget.usage()["spare"] > MIB // 2


def test_room_becomes_that_of_the_largest_of_the_small_batches():
    budget, table = state()
    read_all(budget, table, MIB)
    whole = budget.usage()["spare"]
    for number in range(69):
        next(pieces(budget, table, MIB // 256 if number % 10 else MIB // 4))
    assert MIB // 16 < budget.usage()["spare"] < whole // 2


@pytest.mark.parametrize("rows", ["many narrow columns", "rows of more than the room"])
def test_no_room_is_charged_for_what_would_not_be_kept(rows):
    if rows == "many narrow columns":
        column = pa.array(range(2000), pa.int32())
        batch = pa.RecordBatch.from_arrays([column] * 300, [f"c{number}" for number in range(300)])
    else:
        batch = pa.RecordBatch.from_pydict({"text": ["x" * 5 * MIB] * 3})
    codec = RowCodec(batch.schema)
    budget, table = state(codec=codec, rows=batch)
    found = pieces(budget, table, 4 * MIB, 0, codec, batch.num_rows)
    assert sum(piece.num_rows for _, piece in found) == batch.num_rows
    assert budget.usage()["spare"] == 0


def test_a_huge_nested_row_is_not_in_memory_twice_while_it_is_decoded():
    """With thresholds of Spark's workers: whether a large buffer is moved or copied when it grows
    would depend on what the process has freed before."""
    process = subprocess.run(
        [sys.executable, "-c", "import support.spare_buffer_cases as it; it.decode_a_huge_row()"],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    # As staged, and as a batch.
    assert float(process.stdout) < 2.3


def test_cached_blocks_make_way_for_room_once(tmp_path):
    budget, table = state(16 * MIB)
    path = str(tmp_path / "sst")
    write_sst(path, budget, table.source(), codec="none", block_bytes=4096)
    table.clear()
    cache = BlockCache(budget)
    sst = opened(path, cache)
    used = budget.total_bytes
    budget.hold("frames", budget.limit // 4)

    def read_run():
        lookup = Lookup(KeyBatch.from_bytes(KEYS).of_stream(0), 0, None, CODEC, budget, 1)
        lookup.search_run([sst])
        lookup.count()
        cursor = Cursor(lookup, np.arange(COUNT))
        count = 0
        while (piece := cursor.next_piece(MIB // 2)) is not None:
            count += piece[1].num_rows
        return count

    rooms = []
    for _ in range(4):
        assert read_run() == COUNT
        rooms.append(budget.usage()["spare"])
        assert budget.total_bytes <= budget.limit
    assert used < budget.total_bytes
    assert 0 < rooms[0] <= MIB
    assert rooms[1:] == rooms[1:2] * 3
    assert rooms[1] < rooms[0] * 1.1


def test_no_block_is_evicted_for_room_that_would_not_fit_without_any(tmp_path):
    budget, table = state()
    path = str(tmp_path / "sst")
    write_sst(path, budget, table.source(), codec="none", block_bytes=4096)
    cache = BlockCache(budget)
    sst = opened(path, cache)
    lookup = Lookup(KeyBatch.from_bytes(KEYS[:9000]).of_stream(0), 0, None, CODEC, budget, 1)
    lookup.search_run([sst])
    del lookup
    cached = budget.usage()["cache"]
    assert cached > MIB // 16
    short, ample = cursor_of(budget, table), cursor_of(budget, table)
    budget.hold("frames", budget.limit - budget.firm_bytes - cached - 600 * 1024)
    assert short.next_piece(MIB)[1].nbytes > 900_000
    assert budget.usage()["cache"] == cached
    assert budget.usage()["spare"] == 0
    budget.hold("frames", -MIB)
    assert ample.next_piece(MIB)[1].nbytes > 900_000
    assert budget.usage()["spare"] > MIB // 2


def test_a_batch_outlives_its_budget():
    budget, table = state()
    first = next(pieces(budget, table, MIB))[1]
    kept = next(pieces(budget, table, MIB))[1]
    del first
    assert in_use(budget).keys() == {"memtable"}
    del budget, table
    gc.collect()
    assert kept.equals(batch_of(kept.column(0).to_numpy()))
    del kept
    gc.collect()
    budget, table = state()
    assert sum(rows.num_rows for _, rows in pieces(budget, table)) == COUNT


def test_spare_buffers_go_with_their_budget():
    """Also where a small batch is still held."""

    def use_up():
        budget, table = state()
        held = [rows for _, rows in pieces(budget, table)]
        small = next(pieces(budget, table, MIB // 256))[1]
        del held
        assert budget.spare_buffers[1] > MIB // 2
        return small

    held = [use_up()]
    gc.collect()
    before = resident("VmRSS")
    held += [use_up() for _ in range(40)]
    gc.collect()
    assert resident("VmRSS") - before < 16 * MIB
    assert all(small.equals(held[0]) for small in held)


def test_room_that_a_thread_takes_and_gives_up_keeps_nothing_from_what_fits():
    """One reader: what it takes at most is seen within a second of reading the same again."""
    budget, table = state()
    stop, refused = threading.Event(), 0

    def read():
        while not stop.is_set():
            read_all(budget, table)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=read)
    try:
        thread.start()
        firm = 0
        for _ in moments(1):
            firm = max(firm, budget.firm_bytes)
        asked = budget.limit - firm - MIB // 4
        for _ in moments(3):
            if budget.try_hold("frames", asked):
                assert budget.total_bytes <= budget.limit
                budget.hold("frames", -asked)
            else:
                refused += 1
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert refused == 0
    assert budget.total_bytes == sum(budget.usage().values())
    assert budget.spare_buffers[1] <= budget.usage()["spare"]


def moments(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield


def test_threads_read_and_let_go_what_others_read():
    budget, table = state()
    lock, shelf, wrong = threading.Lock(), [], []

    def work(number):
        chance = random.Random(number)
        for _ in range(4):
            start = chance.randrange(COUNT // 2)
            for _, rows in pieces(budget, table, chance.choice([MIB // 8, MIB // 3]), start):
                expected = ALL.slice(rows.column(0)[0].as_py(), rows.num_rows)
                with lock:
                    shelf.append((rows, expected))
                    chance.shuffle(shelf)
                    del shelf[8:]
                    other, expected = shelf[0]
                if not other.equals(expected):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < budget.usage()["spare"] <= ROOM
    shelf.clear()
    assert in_use(budget).keys() == {"memtable"}


def test_a_forked_child_lets_go_and_reads():
    budget, table = state()
    batch = next(pieces(budget, table))[1]
    child = os.fork()
    if child == 0:
        expected = ALL.slice(0, batch.num_rows)
        right = batch.equals(expected)
        del batch
        right = right and next(pieces(budget, table))[1].equals(expected)
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert batch.equals(ALL.slice(0, batch.num_rows))


@pytest.fixture(scope="module")
def shared():
    return state()


@settings(max_examples=examples(60), deadline=None)
@given(
    reads=st.lists(
        st.tuples(st.integers(0, COUNT - 1), st.integers(1, 3 * MIB), st.integers(0, 5)),
        min_size=1,
        max_size=12,
    )
)
def test_any_order_of_reading_and_letting_go(shared, reads):
    """Each read takes a few pieces, and lets go one batch of those it has, or all at the end."""
    budget, table = shared
    held = []
    for start, max_bytes, place in reads:
        taken = zip(range(4), pieces(budget, table, max_bytes, start), strict=False)
        for _, (positions, rows) in taken:
            held.append((int(positions[0]), rows))
            if place < len(held):
                del held[place]
    for start, rows in held:
        assert rows.equals(ALL.slice(start, rows.num_rows))
    assert budget.usage()["spare"] <= ROOM
