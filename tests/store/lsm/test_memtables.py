"""Several memtables in one store: sealed ones are read, hidden by newer ones, flushed together."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.lsm.memtables import MOST_SEALED
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
OPTIONS = Options(memory_bytes=16 << 20)


@pytest.fixture(params=["standalone", "in the background", "attempt"])
def store(request, tmp_path):
    if request.param != "attempt":
        in_background = request.param == "in the background"
        options = dataclasses.replace(OPTIONS, background=in_background)
        opened = LsmStore.open(str(tmp_path), [STREAM], options=options)
    else:
        opened = LsmStore.open_attempt(
            str(tmp_path), [STREAM], batch_id=1, attempt_id="a", options=OPTIONS
        )
    with opened:
        yield opened


def keys_of(*keys):
    return pa.record_batch([pa.array(keys, pa.int64())], schema=KEY)


def append(store, keys, first, text=""):
    values = pa.array(range(first, first + len(keys)), pa.int64())
    rows = pa.record_batch([values, pa.array([text] * len(keys))], schema=ROWS)
    store.append("s", rows, keys_of(*keys))


def found(store, *keys, max_bytes=1 << 20):
    """The values of each key, in the order they are read."""
    probe = store.probe("s", keys_of(*keys))
    values = {key: [] for key in keys}
    for piece in probe.fetch(np.arange(len(keys)), max_bytes):
        for position, value in zip(piece.positions, piece.rows.column(0).to_pylist(), strict=True):
            values[keys[position]].append(value)
    assert probe.counts.tolist() == [len(each) for each in values.values()]
    assert sorted(scanned(store)) == sorted(scanned(store, 1))
    return values


def scanned(store, max_bytes=1 << 20):
    return [v for piece in store.scan("s", max_bytes) for v in piece.column(0).to_pylist()]


def test_sealed_memtables_are_read_oldest_first(store):
    for first in range(0, 50, 10):
        append(store, [1, 2, 1], first)
        store._memtables.seal()
    append(store, [2, 3], 90)
    expected = {
        1: [v for first in range(0, 50, 10) for v in (first, first + 2)],
        2: [1, 11, 21, 31, 41, 90],
        3: [91],
        4: [],
    }
    for max_bytes in (1, 100, 1 << 20):
        assert found(store, 1, 2, 3, 4, max_bytes=max_bytes) == expected
    store.check()
    store.flush()
    assert found(store, 1, 2, 3, 4) == expected
    assert len(store._runs.version.runs) == 1, "sealed memtables are flushed into one run"


def test_a_deletion_hides_older_memtables_and_runs(store):
    append(store, [1, 2, 3], 0)
    store.flush()
    append(store, [1, 2, 3], 10)
    store._memtables.seal()
    store.delete("s", keys_of(1, 2))
    store._memtables.seal()
    append(store, [1], 20)
    expected = {1: [20], 2: [], 3: [2, 12]}
    assert found(store, 1, 2, 3) == expected
    assert sorted(scanned(store)) == [2, 12, 20]
    store.flush()
    assert found(store, 1, 2, 3) == expected
    store.compact()
    assert found(store, 1, 2, 3) == expected


def test_sealing_nothing_adds_nothing_and_invalidates_no_probe(store):
    assert store._memtables.seal() == ()
    append(store, [1], 0)
    probe = store.probe("s", keys_of(1))
    assert len(store._memtables.seal()) == 1
    assert len(store._memtables.seal()) == 1
    assert [piece.rows.num_rows for piece in probe.fetch([0], 100)] == [1]


def test_a_retained_memtable_outlives_its_flush(store):
    append(store, [1, 2], 0, "x" * 100_000)
    (table,) = store._memtables.seal()
    table.retain()
    held = process_memory().budget.usage()["memtable"]
    store.flush()
    assert process_memory().budget.usage()["memtable"] == held == table.nbytes
    assert store.memtable_bytes == 0, "what a view retains is the view's"
    assert len(table.source().entries()) == 2
    table.release()
    assert (table.nbytes, process_memory().budget.usage()["memtable"]) == (0, 0)
    with pytest.raises(ValueError, match="more often"):
        table.release()
    assert found(store, 1, 2) == {1: [0], 2: [1]}


def test_garbage_gives_its_memory_back_although_nobody_released_it(store):
    append(store, [1], 0)
    (table,) = store._memtables.seal()
    table.retain()
    store.flush()
    del table
    assert process_memory().budget.usage()["memtable"] == 0


def test_sealed_memtables_do_not_pile_up(store):
    for number in range(3 * MOST_SEALED):
        append(store, [number % 5], number)
        store._memtables.seal()
        # The oldest ones may be on their way into a run.
        assert store._memtables.sealed_count <= MOST_SEALED + 2
    assert sorted(scanned(store)) == list(range(3 * MOST_SEALED))
    store.flush()
    assert store.stats().counters["runs"] >= 1


def test_sealed_memtables_count_in_the_share_of_the_cap(store):
    limit = OPTIONS.memtable_limit_bytes
    share = limit + limit // 2 if store._options.background else limit
    append(store, [1] * 20, 0, "x" * 100_000)
    sealed = store.memtable_bytes
    store._memtables.seal()
    assert store._memtables.active.limit_bytes == min(limit, share - sealed)
    flushed = store.stats().spilled_bytes
    for first in range(100, 200, 25):
        append(store, [2] * 25, first, "y" * 100_000)
        assert store.memtable_bytes <= share
    assert store.stats().spilled_bytes > flushed
    assert found(store, 1, 2) == {1: list(range(20)), 2: list(range(100, 200))}


def test_what_sealed_memtables_held_is_found_after_a_commit(tmp_path):
    with LsmStore.open_attempt(
        str(tmp_path), [STREAM], batch_id=1, attempt_id="a", options=OPTIONS
    ) as store:
        append(store, [1], 0)
        store._memtables.seal()
        store.delete("s", keys_of(1))
        append(store, [2], 1)
        pointer = store.commit()
    with LsmStore.open_attempt(
        str(tmp_path), [STREAM], pointer=pointer, batch_id=2, attempt_id="a", options=OPTIONS
    ) as store:
        assert found(store, 1, 2) == {1: [], 2: [1]}


def test_an_unflushed_half_write_is_replayed_from_where_the_flush_before_it_ended(tmp_path):
    """A flush between logging a write and storing its first row leaves that write to the log."""
    with LsmStore.open(str(tmp_path), [STREAM], options=OPTIONS) as store:
        for number in range(2 * MOST_SEALED):
            append(store, [number], number)
            store._memtables.seal()
    with LsmStore.open(str(tmp_path), [STREAM], options=OPTIONS) as store:
        assert sorted(scanned(store)) == list(range(2 * MOST_SEALED))
        append(store, [99], 99)
    with LsmStore.open(str(tmp_path), [STREAM], options=OPTIONS) as store:
        assert sorted(scanned(store)) == [*range(2 * MOST_SEALED), 99]
