"""What probes and iterators hold of the memory cap, and what they are refused."""

import gc

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import MemoryLimitError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import Mutation, StreamSchema

KEY = pa.schema([("k", pa.int64())])
STREAM = StreamSchema("s", KEY, pa.schema([("t", pa.string())]))
CAP = 16 * MIB


def keys_of(numbers):
    return pa.RecordBatch.from_arrays([pa.array(np.asarray(numbers, np.int64))], schema=KEY)


def texts(numbers, width=400):
    array = pa.array([str(number).zfill(width) for number in numbers])
    return pa.RecordBatch.from_arrays([array], schema=STREAM.rows)


@pytest.fixture
def store(tmp_path):
    options = Options(memory_bytes=CAP, sync="never")
    with LsmStore.open(str(tmp_path), [STREAM], options=options) as opened:
        yield opened


def filled(store, count=40_000):
    for start in range(0, count, 5000):
        numbers = range(start, start + 5000)
        store.append("s", texts(numbers), keys_of(numbers))
    store.flush()
    return store


def open_until_refused(reader, iterators):
    while len(iterators) < 100:
        pieces = reader.iterate("s")
        next(pieces)
        iterators.append(pieces)


def probed_bytes():
    return process_memory().budget.usage()["probe"]


@pytest.mark.parametrize("kind", ["fetch", "iterate", "reverse", "scan"])
def test_a_piece_takes_a_share_of_the_cap_whatever_is_asked_for(store, kind):
    filled(store)
    asked = 1 << 26
    if kind == "fetch":
        probe = store.probe("s", keys_of(range(40_000)))
        pieces = probe.fetch(np.arange(40_000), asked)
    elif kind == "scan":
        pieces = ((rows, rows) for rows in store.scan("s", asked))
    else:
        pieces = store.iterate("s", max_bytes=asked, reverse=kind == "reverse")
    process_memory().cache.clear()
    process_memory().budget.reset_peak()
    before = process_memory().budget.total_bytes
    sizes = [rows.nbytes for _, rows in pieces]
    assert len(sizes) > 10
    assert max(sizes) <= CAP // 16 + 64 * 1024
    assert process_memory().budget.peak_bytes <= CAP
    assert probed_bytes() - before <= CAP // 4


def test_too_many_iterators_are_refused_and_writes_go_on(store):
    filled(store)
    budget = process_memory().budget
    budget.reset_peak()
    with store.snapshot() as snapshot:
        iterators = []
        with pytest.raises(MemoryLimitError, match=r"iterators hold \d+ bytes.*close or drop p"):
            open_until_refused(snapshot, iterators)
        assert 6 < len(iterators) < 20
        held = probed_bytes()
        assert CAP // 2 < held <= CAP - CAP // 8
        assert budget.peak_bytes <= CAP
        store.append("s", texts([7], 10), keys_of([40_001]))  # an eighth is left for writers
        with pytest.raises(MemoryLimitError, match=r"iterators hold \d+ bytes") as refused:
            store.append("s", texts([7], 3 * MIB), keys_of([40_002]))
        assert "snapshots hold 0" not in str(refused.value)
        # One that was refused is over; those that are open go on, and closing one makes room.
        assert sum(piece.rows.num_rows for piece in iterators.pop()) > 30_000
        gc.collect()
        assert probed_bytes() < held
        assert next(snapshot.iterate("s")).rows.num_rows > 0
    iterators.clear()
    gc.collect()
    assert probed_bytes() == 0
    store.append("s", texts([7], 3 * MIB), keys_of([40_002]))
    assert store.get("s", [40_002]).num_rows == store.get("s", [40_001]).num_rows == 1


def test_a_probe_of_too_many_keys_is_refused_before_they_are_encoded(store, monkeypatch):
    store.append("s", texts(range(10)), keys_of(range(10)))
    many = keys_of(range(1_000_000))
    refused = pytest.raises(MemoryLimitError, match=r"1000000 keys.*about .* fewer keys")
    with monkeypatch.context() as patched, refused:
        patched.setattr("lsmstate.lsm.reader.encoded_keys", None)
        store.probe("s", many)
    assert store.exists("s", many).sum() == 10
    assert store.probe("s", keys_of(range(50_000))).counts.sum() == 10
    with store.snapshot() as snapshot:
        assert np.flatnonzero(snapshot.exists("s", many)).tolist() == list(range(10))


def test_keys_encoded_for_a_probe_count(store):
    store.append("s", texts(range(10)), keys_of(range(10)))
    before = probed_bytes()
    probe = store.probe("s", keys_of(range(50_000)))
    assert probed_bytes() - before >= 50_000 * (10 + 21 + 24)
    del probe
    assert probed_bytes() == before


def test_a_delete_of_many_keys_is_made_in_parts(store, tmp_path):
    numbers = range(0, 400_000, 50)
    for start in range(0, len(numbers), 2000):
        part = numbers[start : start + 2000]
        store.append("s", texts(part, 100), keys_of(part))
    store.retract("s", texts([100], 100), keys_of([100]))
    store.retract("s", texts([5], 100), keys_of([5]))  # waits for its row
    budget = process_memory().budget
    budget.reset_peak()
    store.delete("s", keys_of(range(399_000)))
    assert budget.peak_bytes <= CAP
    left = [key for piece in store.iterate("s") for key in piece.keys.column(0).to_pylist()]
    assert left == list(range(399_000, 400_000, 50))
    store.append("s", texts([5], 100), keys_of([5]))
    assert store.contains("s", [5])  # the retraction was forgotten


def test_a_delete_that_finds_no_memory_changes_nothing(store):
    numbers = list(range(0, 300_000, 100))
    store.append("s", texts(numbers, 20), keys_of(numbers))
    budget = process_memory().budget
    process_memory().cache.clear()
    store.flush()
    taken = budget.limit - budget.firm_bytes - 200 * 1024
    budget.hold("frames", taken)
    try:
        for keys in (keys_of(range(300_000)), keys_of(range(30_000))):
            with pytest.raises(MemoryLimitError, match="no room for one more write"):
                store.delete("s", keys)
        with pytest.raises(MemoryLimitError, match="no room for one more write"):
            store.write([Mutation("delete", "s", keys_of(range(30_000)))])
    finally:
        budget.hold("frames", -taken)
    assert store.exists("s", keys_of(numbers)).all()
    store.delete("s", keys_of(range(300_000)))
    assert not store.exists("s", keys_of(numbers)).any()


def test_keys_of_one_write_are_refused_before_they_are_encoded(store, monkeypatch):
    store.append("s", texts(range(10)), keys_of(range(10)))
    halves = [Mutation("delete", "s", keys_of(range(60_000))) for _ in range(2)]
    with monkeypatch.context() as patched:
        patched.setattr("lsmstate.lsm.write_planner.encoded_keys", None)
        with pytest.raises(MemoryLimitError, match="120000 keys in one write"):
            store.write(halves)
    assert store.exists("s", keys_of(range(10))).all()
    store.write(halves[:1])
    assert not store.exists("s", keys_of(range(10))).any()
