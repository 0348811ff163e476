"""The memory cap: counters return to zero, the peak stays below the cap, resident memory too."""

import gc
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError, LsmStateError, MemoryLimitError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, MINIMUM_MEMORY_BYTES, STORE_MEMORY_BYTES, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema
from support.paths import ROOT, TESTS
from support.sample_streams import CUSTOMERS, KEY, STREAMS, customers, fetched, keys_of, scanned
from support.sampling import each_value

RESIDENT_CHILD = """
import sys
import numpy as np, pyarrow as pa, psutil
from support.sample_streams import CUSTOMERS, KEY, STREAMS
from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
directory, cap = sys.argv[1], int(sys.argv[2])

def batch(start):
    numbers = np.arange(start, start + 5000)
    keys = numbers * 2654435761 % 100_003
    names = pa.array(np.char.add("a name that is not too short ", numbers.astype("U")))
    return (pa.RecordBatch.from_arrays([pa.array(numbers), names], schema=CUSTOMERS.rows),
            pa.RecordBatch.from_arrays([pa.array(keys), pa.array(["x"] * 5000)], schema=KEY))

def resident():
    return psutil.Process().memory_info().rss

settings = {"batch_id": 0, "attempt_id": "w", "options": Options(memory_bytes=cap)}
with LsmStore.open_attempt(directory, STREAMS, **settings) as store:
    rows, keys = batch(0)
    store.append("customers", rows, keys)
    before, worst = resident(), 0
    for start in range(5000, 500_000, 5000):
        store.append("customers", *batch(start))
        worst = max(worst, resident())
    for start in range(0, 100_000, 5000):
        rows, keys = batch(start)
        probe = store.probe("customers", keys)
        for piece in probe.fetch(np.arange(5000), 1 << 20):
            worst = max(worst, resident())
    found = sum(piece.num_rows for piece in store.scan("customers"))
    worst = max(worst, resident())
    peak = store.stats().peak_memory_bytes
    print(worst - before, found, peak, store.stats().spilled_bytes)
"""


def opened(directory, number=0, **options):
    return LsmStore.open_attempt(
        str(directory), STREAMS, batch_id=number, attempt_id="a", options=Options(**options)
    )


def batch(numbers, keys, width):
    rows = pa.RecordBatch.from_arrays(
        [pa.array(numbers), pa.array(["v" * width] * len(numbers))], schema=CUSTOMERS.rows
    )
    return rows, pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(["k"] * len(keys))], schema=KEY
    )


@pytest.fixture(autouse=True)
def begin_empty():
    gc.collect()
    memory = process_memory()
    memory.cache.clear()
    yield
    gc.collect()
    usage = memory.budget.usage()
    # The cache and open tables outlive the stores; nothing else may.
    assert {name: usage[name] for name in ("memtable", "merge", "probe", "frames")} == {
        "memtable": 0,
        "merge": 0,
        "probe": 0,
        "frames": 0,
    }
    assert memory.budget.firm_bytes == usage["tables"]


@each_value(kind=["random keys", "one hot key", "wide rows"], cap=[5 * MIB, 16 * MIB])
def test_the_peak_stays_below_the_cap(tmp_path, cap, kind):
    chance = random.Random(4)
    width = 20_000 if kind == "wide rows" else 100
    count = 50 if kind == "wide rows" else 2000
    with opened(tmp_path, memory_bytes=cap) as store:
        for start in range(0, 16 * count, count):
            numbers = list(range(start, start + count))
            keys = [7 if kind == "one hot key" else chance.randrange(10**6) for _ in numbers]
            store.append("customers", *batch(numbers, keys, width))
        wanted = keys_of(*[(key, "k") for key in keys])
        probe = store.probe("customers", wanted, np.arange(0, len(keys), 3))
        positions = np.flatnonzero(probe.counts)[:40]
        fetched = sum(piece.rows.num_rows for piece in probe.fetch(positions, 64 * KIB))
        assert fetched == probe.counts[positions].sum() > 0
        assert sum(piece.num_rows for piece in store.scan("customers", 64 * KIB)) == 16 * count
        store.commit()
        stats = store.stats()
        assert stats.spilled_bytes > 0
        assert stats.peak_memory_bytes <= cap


def test_the_peak_stays_below_the_cap_while_snapshots_are_read(tmp_path):
    chance = random.Random(9)
    readers = []
    with opened(tmp_path, memory_bytes=6 * MIB) as store:
        for start in range(0, 60_000, 2000):
            numbers = list(range(start, start + 2000))
            store.append("customers", *batch(numbers, chance.sample(range(10**6), 2000), 100))
            for reader in readers:
                piece = next(reader[2], None)
                reader[1] += piece.rows.num_rows if piece else 0
            if start % 10_000 == 0:
                snapshot = store.snapshot()
                pieces = snapshot.iterate("customers", max_bytes=64 * KIB, reverse=len(readers) % 2)
                readers.append([snapshot, 0, pieces, start + 2000])
        for snapshot, seen, pieces, rows in readers:
            assert seen + sum(piece.rows.num_rows for piece in pieces) == rows
            snapshot.close()
        assert store.stats().peak_memory_bytes <= 6 * MIB


def test_the_peak_of_several_stores_stays_below_the_cap(tmp_path):
    stores = [opened(tmp_path, i, memory_bytes=8 * MIB) for i in range(4)]
    for start in range(0, 40_000, 1000):
        numbers = list(range(start, start + 1000))
        for store in stores:
            store.append("customers", *batch(numbers, numbers, 100))
    for store in stores:
        assert store.stats().peak_memory_bytes <= 8 * MIB
        assert sum(piece.num_rows for piece in store.scan("customers")) == 40_000
        store.close()


def test_huge_rows_in_many_runs_are_not_held_at_a_time(tmp_path):
    """Scanning, merging and fetching hold a block of a source only while it has rows to give."""
    width = 1200 * KIB
    with opened(tmp_path, memory_bytes=5 * MIB, fanout=16, max_runs=32) as store:
        for number in range(14):
            store.append("customers", *batch([number], [number % 3], width))
            store.flush()
        assert store.stats().counters["runs"] == 14
        assert [p.num_rows for p in store.scan("customers", 64 * KIB)] == [1] * 14
        probe = store.probe("customers", batch([0, 1, 2], [0, 1, 2], 1)[1])
        assert [p.rows.num_rows for p in probe.fetch(np.arange(3), 64 * KIB)] == [1] * 14
        for number in range(14, 20):
            store.append("customers", *batch([number], [number], width))
            store.flush()
        stats = store.stats()
        assert stats.counters["merges"] == 1
        assert stats.peak_memory_bytes <= 5 * MIB
        store.check()


def test_huge_rows_side_by_side_are_not_read_ahead(tmp_path):
    """Small blocks that lie together are read at once; eight of these would be 24 MiB."""
    cap = 16 * MIB
    count = 24
    bits = random.Random(5)
    with opened(tmp_path, memory_bytes=cap) as store:
        for number in range(count):
            rows, keys = batch([number], [number], 0)
            name = bits.randbytes(3 * MIB // 2).hex()
            rows = pa.RecordBatch.from_arrays([rows[0], pa.array([name])], schema=CUSTOMERS.rows)
            store.append("customers", rows, keys)
        store.compact()
        _, keys = batch(list(range(count)), list(range(count)), 0)
        probe = store.probe("customers", keys)
        worst = found = 0
        for piece in probe.fetch(np.arange(count), MIB):
            found += piece.rows.num_rows
            worst = max(worst, process_memory().budget.total_bytes)
        assert found == count
        assert worst <= cap
        assert store.stats().peak_memory_bytes <= cap


@pytest.mark.parametrize(("cap", "block"), [(5 * MIB, 40 * KIB), (32 * MIB, 256 * KIB)])
def test_merging_many_runs_of_large_blocks_keeps_the_cap(tmp_path, cap, block):
    options = {"memory_bytes": cap, "block_bytes": block, "fanout": 16, "max_runs": 32}
    with opened(tmp_path, **options) as store:
        chance = random.Random(6)
        for start in range(0, 40 * 1000, 1000):
            keys = [chance.randrange(10**6) for _ in range(1000)]
            store.append("customers", *batch(list(range(start, start + 1000)), keys, 500))
            store.flush()
        stats = store.stats()
        assert stats.counters["merges"] > 0
        assert stats.peak_memory_bytes <= cap
    with pytest.raises(InvalidArgumentError, match="block_bytes"):
        Options(memory_bytes=5 * MIB, block_bytes=256 * KIB, max_runs=32)


def test_too_many_stores_for_the_cap_are_refused(tmp_path):
    stores = [opened(tmp_path, i, memory_bytes=6 * MIB) for i in range(2)]
    with pytest.raises(MemoryLimitError, match="3 open stores need"):
        opened(tmp_path, 3, memory_bytes=6 * MIB)
    larger = opened(tmp_path, 3, memory_bytes=7 * MIB)
    for store in (*stores, larger):
        store.close()
    with opened(tmp_path, 4, memory_bytes=5 * MIB):
        assert process_memory().budget.limit == 5 * MIB


def test_a_store_nobody_holds_counts_no_longer(tmp_path):
    for number in range(5):
        opened(tmp_path, number, memory_bytes=5 * MIB).append("customers", customers(1), keys_of(1))
        gc.collect()
    assert process_memory().budget.usage()["memtable"] == 0


def test_the_peak_begins_anew_with_a_smaller_cap(tmp_path):
    with opened(tmp_path, memory_bytes=32 * MIB) as store:
        numbers = list(range(1000))
        for _ in range(12):
            store.append("customers", *batch(numbers, numbers, 1000))
        store.flush()
        probe = store.probe("customers", batch(numbers, numbers, 1)[1])
        for _ in range(2):  # rows are kept in the cache from the second time on
            assert sum(p.rows.num_rows for p in probe.fetch(np.arange(1000), MIB)) == 12_000
    assert process_memory().budget.total_bytes > 1 * MIB
    with opened(tmp_path, 1, memory_bytes=5 * MIB) as store:
        assert store.stats().peak_memory_bytes <= 5 * MIB


def test_what_is_large_and_reserved_follows_a_smaller_cap_at_once(tmp_path):
    budget = process_memory().budget
    seen = []
    for number, cap in enumerate([64 * MIB, 16 * MIB, 8 * MIB, 64 * MIB]):
        with opened(tmp_path / str(number), memory_bytes=cap):
            seen.append((budget.limit, budget.large_bytes, budget.reserve))
    assert seen == [(cap * MIB, cap * MIB // 16, MIB) for cap in (64, 16, 8, 64)]


def test_a_row_over_a_quarter_of_the_cap_is_refused_and_its_batch_with_it(tmp_path):
    with opened(tmp_path, memory_bytes=5 * MIB) as store:
        store.append("customers", *batch([1], [1], 10))
        for width in (2 * MIB, 1280 * KIB + 1):
            rows = pa.RecordBatch.from_pylist(
                [{"id": 1, "name": "small"}] * 3 + [{"id": 1, "name": "x" * width}],
                schema=CUSTOMERS.rows,
            )
            with pytest.raises(MemoryLimitError, match="quarter"):
                store.append("customers", rows, keys_of(1, 2, 3, 4))
        assert len(scanned(store, "customers")) == 1
        store.append("customers", *batch([2], [1], 1200 * KIB))  # just below
        assert len(scanned(store, "customers")) == 2
        assert store.stats().peak_memory_bytes <= 5 * MIB


@each_value(
    rows=[
        pa.RecordBatch.from_arrays([pa.array(np.zeros(400_000, np.int8))], ["v"]),
        pa.RecordBatch.from_struct_array(pa.array([{}] * 400_000, pa.struct([]))),
    ],
    encoded=[False, True],
)
def test_narrow_rows_are_written_in_parts_by_what_they_take_inside(tmp_path, rows, encoded):
    """Some bytes in Arrow, and several times as many with key, places and hash."""
    stream = StreamSchema("s", pa.schema({"k": pa.int64()}), rows.schema)
    keys = pa.RecordBatch.from_arrays([pa.array(np.arange(400_000))], schema=stream.key)
    if encoded:
        keys = KeyCodec(stream.key).encode(keys)
    options = Options(memory_bytes=8 * MIB)
    settings = {"batch_id": 0, "attempt_id": "a", "options": options}
    with LsmStore.open_attempt(str(tmp_path), (stream,), **settings) as store:
        assert store.append("s", rows, keys) == 400_000
        store.delete("s", keys)
        assert store.retract("s", rows, keys) == 400_000
        assert store.stats().peak_memory_bytes <= 8 * MIB
        assert sum(piece.num_rows for piece in store.scan("s")) == 0


def test_many_rows_of_one_large_value_are_written_in_parts(tmp_path):
    """Such a dictionary is small in Arrow."""
    stream = StreamSchema("s", KEY, pa.schema({"v": pa.dictionary(pa.int8(), pa.string())}))
    values = pa.array(["x" * 500_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int8()), values)
    rows = pa.RecordBatch.from_arrays([column], schema=stream.rows)
    with LsmStore.open_attempt(
        str(tmp_path), (stream,), batch_id=0, attempt_id="a", options=Options(memory_bytes=8 * MIB)
    ) as store:
        assert store.append("s", rows, keys_of(*range(40))) == 40
        assert store.stats().peak_memory_bytes <= 8 * MIB
        assert store.probe("s", keys_of(*range(40))).counts.tolist() == [1] * 40


def test_a_batch_refused_in_a_later_part_is_refused_in_whole(tmp_path):
    """Rows that are small in Arrow and large when encoded: booleans are bits in lists."""
    bits = StreamSchema("bits", KEY, pa.schema([("b", pa.list_(pa.bool_()))]))
    required = StreamSchema(
        "required", KEY, pa.schema([pa.field("n", pa.string(), nullable=False)])
    )
    with LsmStore.open_attempt(
        str(tmp_path),
        (bits, required),
        batch_id=0,
        attempt_id="a",
        options=Options(memory_bytes=5 * MIB),
    ) as store:
        huge = pa.array([[True] * 1000, *[[True] * 1_000_000] * 2, [True] * 2_000_000])
        rows = pa.RecordBatch.from_arrays([huge], schema=bits.rows)
        with pytest.raises(MemoryLimitError, match="quarter"):
            store.append("bits", rows, keys_of(1, 2, 3, 4))
        assert scanned(store, "bits") == []
        names = pa.array(["x" * 1000] * 999 + [None])
        rows = pa.RecordBatch.from_arrays([names], schema=pa.schema([("n", pa.string())]))
        with pytest.raises(InvalidArgumentError, match="nullable"):
            store.append("required", rows, keys_of(*range(1000)))
        assert scanned(store, "required") == []


@pytest.mark.parametrize("retracting", [False, True])
def test_flushes_and_merges_find_room_where_all_else_is_taken(tmp_path, retracting):
    budget = process_memory().budget
    with opened(tmp_path, memory_bytes=8 * MIB, background=False, max_runs=4) as store:
        numbers = list(range(2000))
        for _ in range(5):
            store.append("customers", *batch(numbers, numbers, 400))
            if retracting:
                store.retract("customers", *batch(numbers[::2], numbers[::2], 400))
            taken = budget.limit - budget.reserve - budget.firm_bytes
            assert budget.try_hold("frames", taken)
            assert not budget.try_hold("frames", 1)
            store.flush()
            budget.hold("frames", -taken)
        assert store.stats().counters["merges"]
        assert budget.peak_bytes <= budget.limit
        assert len(scanned(store, "customers")) == 5 * len(numbers[1::2] if retracting else numbers)


@pytest.mark.parametrize(
    ("stores", "cap"),
    [
        (1, 5),
        (8, 12),
        *(pytest.param(*each, marks=pytest.mark.stress) for each in ((4, 8), (8, 16))),
    ],
)
def test_rows_of_a_quarter_of_the_cap_however_many_stores(tmp_path, stores, cap):
    with ExitStack() as stack:
        opened_stores = [
            stack.enter_context(opened(tmp_path / str(n), memory_bytes=cap * MIB))
            for n in range(stores)
        ]
        for store in opened_stores:
            store.append("customers", *batch([1], [1], cap * MIB // 4 - 8 * KIB))
        assert process_memory().budget.reserve <= max(MIB, cap * MIB // 8)
        assert [len(scanned(store, "customers")) for store in opened_stores] == [1] * stores


@pytest.mark.parametrize(("stores", "cap"), [(1, 5), (8, 12)])
def test_writers_go_on_beside_reads_that_hold_half_of_the_cap(tmp_path, stores, cap):
    budget = process_memory().budget
    with ExitStack() as stack:
        opened_stores = [
            stack.enter_context(opened(tmp_path / str(n), memory_bytes=cap * MIB))
            for n in range(stores)
        ]
        budget.hold("probe", cap * MIB // 2)
        try:
            for store in opened_stores:
                for start in range(0, 3000, 1000):
                    numbers = list(range(start, start + 1000))
                    store.append("customers", *batch(numbers, numbers, 100))
        finally:
            budget.hold("probe", -cap * MIB // 2)
        assert [len(scanned(store, "customers")) for store in opened_stores] == [3000] * stores


@pytest.mark.parametrize("background", [pytest.param(False, marks=pytest.mark.stress), True])
def test_writers_in_threads_of_their_own_share_the_least_cap(tmp_path, background):
    """Each with a store of its own, whose memtables the others have flushed when they need room."""
    stores, rounds = 4, 25
    cap = MINIMUM_MEMORY_BYTES + stores * STORE_MEMORY_BYTES

    def write(number: int, store: LsmStore) -> list[int]:
        chance = random.Random(number)
        kept: list[int] = []
        for start in range(0, rounds * 1000, 1000):
            numbers = list(range(start, start + 1000))
            store.append("customers", *batch(numbers, numbers, chance.choice([10, 400])))
            kept += numbers
            gone = chance.choice(kept)
            store.delete("customers", keys_of((gone, "k")))
            kept.remove(gone)
            asked = chance.sample(kept, 100)
            probe = store.probe("customers", keys_of(*[(key, "k") for key in sorted(asked)]))
            assert probe.counts.tolist() == [1] * 100
        return kept

    with ExitStack() as stack:
        opened_stores = [
            stack.enter_context(opened(tmp_path / str(n), memory_bytes=cap, background=background))
            for n in range(stores)
        ]
        budget = process_memory().budget
        assert budget.limit == cap
        with ThreadPoolExecutor(stores) as pool:
            kept = list(pool.map(write, range(stores), opened_stores))
        assert budget.peak_bytes <= cap
        for store, numbers in zip(opened_stores, kept, strict=True):
            assert sorted(row["id"] for row in scanned(store, "customers")) == numbers


def test_no_room_for_a_row_is_an_error_and_ends(tmp_path):
    """The memtables of other stores are flushed first; what nobody can give back is an error."""
    stores = [opened(tmp_path, i, memory_bytes=8 * MIB) for i in range(4)]
    numbers = list(range(500))
    for store in stores[1:]:
        store.append("customers", *batch(numbers, numbers, 400))
    budget = process_memory().budget
    taken = budget.limit - budget.reserve - budget.firm_bytes - 300 * KIB
    budget.hold("frames", taken)
    try:
        # Makes room by flushing the others.
        stores[0].append("customers", *batch([1], [1], 300 * KIB))
        budget.hold("frames", 700 * KIB)
        taken += 700 * KIB
        with pytest.raises(MemoryLimitError, match="no room"):
            stores[0].append("customers", *batch([1], [1], 1900 * KIB))
    finally:
        budget.hold("frames", -taken)
    assert any(store.stats().counters["flushes"] for store in stores[1:])
    for store in stores:
        store.close()


def test_a_store_that_is_being_read_is_not_flushed_for_another_one(tmp_path):
    """What a read has begun with stays, until the store itself is written to."""
    numbers = [*range(100)]
    with opened(tmp_path, 0, memory_bytes=8 * MIB) as one, opened(tmp_path, 1) as two:
        one.append("customers", customers(*numbers), keys_of(*numbers))
        probe = one.probe("customers", keys_of(*numbers))
        scan = one.scan("customers", 100)
        next(scan)
        assert not process_memory().relieve(two)
        assert len(fetched(probe, np.arange(100))) == 100
        del probe
        assert not process_memory().relieve(two)
        assert sum(piece.num_rows for piece in scan) < 100
        assert process_memory().relieve(two)
        probe = one.probe("customers", keys_of(*numbers))
        one.append("customers", customers(100), keys_of(100))
        with pytest.raises(LsmStateError, match="written to or flushed"):
            list(probe.fetch(np.arange(100), MIB))
        assert process_memory().relieve(two)  # that probe is of no use any more


def test_what_other_stores_read_is_named_where_there_is_no_room(tmp_path):
    with opened(tmp_path, 0, memory_bytes=8 * MIB) as one, opened(tmp_path, 1) as two:
        numbers = [*range(100)]
        one.append("customers", customers(*numbers), keys_of(*numbers))
        probe = one.probe("customers", keys_of(*numbers))
        budget = process_memory().budget
        taken = budget.limit - budget.firm_bytes - 100 * KIB
        budget.hold("frames", taken)
        try:
            with pytest.raises(MemoryLimitError, match=r"memtables of other stores hold \d+ bytes"):
                two.append("customers", *batch([1], [1], 300 * KIB))
            del probe
            budget.hold("frames", -700 * KIB)
            taken -= 700 * KIB
            two.append("customers", *batch([1], [1], 300 * KIB))
        finally:
            budget.hold("frames", -taken)
        assert len(scanned(two, "customers")) == 1


def test_resident_memory_of_a_process_stays_near_the_cap(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"}
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT_CHILD, str(tmp_path), str(16 * MIB)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown, found, peak, spilled = map(int, done.stdout.split())
    assert found == 500_000
    assert spilled > 16 * MIB
    assert peak <= 16 * MIB
    assert grown <= (16 + 64) * MIB
