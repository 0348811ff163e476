"""Many retractions, read and reclaimed in little memory: tables so small that keys are counted in
parts and marked in windows, against the model, and the sizes that users have."""

import contextlib
import dataclasses
import gc

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lsmstate.lsm import retractions, version_set
from lsmstate.lsm.store import LsmStore
from lsmstate.memory_backend.store import MemoryStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema
from support.examples import examples
from support.model import ModelStore
from support.sample_streams import (
    STREAMS,
    customers,
    fetched,
    ids,
    iterated,
    keys_of,
    returns,
    scanned,
)

#: Without the worker, so that what is in which run does not depend on its speed.
TINY = Options(
    memory_bytes=8 * MIB, memtable_bytes=256 * KIB, block_bytes=1 * KIB, background=False
)
UNMERGED = dataclasses.replace(TINY, fanout=16, max_runs=32)
NUMBERS = pa.schema([("v", pa.int64())])
HUGE = StreamSchema("s", pa.schema([("k", pa.int64())]), NUMBERS)


@pytest.fixture
def tiny_tables(monkeypatch):
    """Of three rows, and windows of one."""
    monkeypatch.setattr(retractions, "TABLE_PART", 1 << 40)


def opened(path, options=UNMERGED, streams=STREAMS):
    return LsmStore.open(str(path), streams, options=options)


def attempt(path, pointer, number, options=TINY):
    return LsmStore.open_attempt(
        str(path), STREAMS, pointer=pointer, batch_id=number, attempt_id="a", options=options
    )


def numbers(*values):
    return pa.RecordBatch.from_arrays([pa.array(np.concatenate(values))], schema=NUMBERS)


def keys(count, key=7):
    return pa.RecordBatch.from_arrays([pa.array(np.full(count, key))], ["k"])


def stored_rows(store):
    return store.stats().counters["rows"]


def assert_reads(store, model, max_bytes=1 << 20):
    """Whatever reads the store finds what lives in the model, in order."""
    for name in store.streams:
        asked = [*model.streams[name].keys() | model.pending[name].keys(), (99, "s0")]
        batch = keys_of(*asked)
        probe = store.probe(name, batch)
        expected = model.probe(name, asked)
        assert probe.counts.tolist() == [len(rows) for rows in expected]
        assert ((probe.row_bytes > 0) == (probe.counts > 0)).all()
        for positions in (range(len(asked)), range(0, len(asked), 2)):
            found = fetched(probe, positions, max_bytes)
            assert found == {at: expected[at] for at in positions if expected[at]}
        for reverse in (False, True):
            found = iterated(store, name, reverse=reverse, max_bytes=max_bytes)
            assert found == model.iterate(name, reverse=reverse)
        assert scanned(store, name, max_bytes) == [row for _, row in model.iterate(name)]


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=25)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("retract"), ROWS),
        st.tuples(st.sampled_from(["put", "delete"]), st.lists(st.integers(0, 3), max_size=2)),
        st.tuples(st.just("delete_range"), st.integers(0, 4)),
        st.tuples(
            st.sampled_from(["flush", "compact", "due", "reopen", "snapshot", "check"]), st.none()
        ),
    ),
    max_size=20,
)


def apply(kind, what, target, make):
    """One write to a store, or to the model: ``make`` says how rows and keys look there."""
    stream = "returns"
    if kind in ("append", "retract"):
        getattr(target, kind)(stream, make(returns(*[n for _, n in what])), make(keys_of_(what)))
    elif kind == "put":
        target.put(stream, make(returns(*what)), make(keys_of(*what)))
    elif kind == "delete":
        target.delete(stream, make(keys_of(*what)))
    else:
        target.delete_range(stream, low=(what,))


def keys_of_(pairs):
    return keys_of(*[key for key, _ in pairs])


def plain(batch):
    """As the model has rows, or keys."""
    if batch.schema.names[0] == "k0":
        return [tuple(key.values()) for key in batch.to_pylist()]
    return batch.to_pylist()


@pytest.mark.parametrize("table_part", [1 << 40, 40_000, 8])
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, max_bytes=st.sampled_from([1, 60, 1 << 20]))
def test_reads_equal_the_model_whatever_fits_a_table(
    tmp_path_factory, table_part, steps, max_bytes
):
    """Rows of few values under few keys, so that many retractions wait or find one."""
    path = tmp_path_factory.mktemp("store")
    model = ModelStore(["customers", "returns"])
    snapshots = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retractions, "TABLE_PART", table_part)
        with (
            contextlib.ExitStack() as stack,
            MemoryStore.open(str(path / "memory"), STREAMS, options=TINY) as memory,
        ):
            store = stack.enter_context(opened(path))
            for kind, what in [*steps, ("check", None)]:
                if kind in ("flush", "compact"):
                    getattr(store, kind)()
                elif kind == "due":
                    store.compact(due_only=True)
                elif kind == "reopen":
                    store.close()
                    snapshots.clear()
                    store = stack.enter_context(opened(path))
                elif kind == "snapshot":
                    snapshots.append((store.snapshot(), model.copy()))
                elif kind == "check":
                    for reader, known in [(store, model), (memory, model), *snapshots]:
                        assert_reads(reader, known, max_bytes)
                else:
                    apply(kind, what, store, lambda batch: batch)
                    apply(kind, what, memory, lambda batch: batch)
                    apply(kind, what, model, plain)
            store.flush()
            store.compact()
            assert_reads(store, model, max_bytes)
            pending = sum(len(rows) for rows in model.pending["returns"].values())
            entries = store._runs._entries(store._runs.version.runs, b"").entries()
            found = sum(len(rows) for _, _, rows in entries)
            assert found == len(model.scan("returns")) + pending
            store.check()


def test_a_hundred_thousand_retractions_of_one_key_are_read_under_a_small_cap(tmp_path):
    count = 100_000
    budget = process_memory().budget
    options = Options(memory_bytes=16 * MIB, background=False)
    with opened(tmp_path, options, [HUGE]) as store:
        store.append("s", numbers(np.arange(2 * count)), keys(2 * count))
        store.append("s", numbers(np.arange(10)), keys(10, 8))
        store.retract("s", numbers(np.arange(count)), keys(count))
        store.retract("s", numbers(np.arange(10**6, 10**6 + count)), keys(count))  # these wait
        for _ in range(2):
            budget.reset_peak()
            probe = store.probe("s", keys(1))
            assert probe.counts.tolist() == [count]
            assert store.contains("s", (7,))
            live = [row for piece in probe.fetch([0], MIB) for row in piece.rows["v"].to_pylist()]
            assert live == list(range(count, 2 * count))
            expected = [*live, *range(10)]
            assert [v for piece in store.scan("s") for v in piece["v"].to_pylist()] == expected
            backward = store.iterate("s", reverse=True)
            assert sum(piece.rows.num_rows for piece in backward) == count + 10
            assert budget.peak_bytes <= 16 * MIB
            store.compact()
            assert stored_rows(store) == 2 * count + 10


def test_what_counts_retractions_is_charged_and_goes_with_the_read(tmp_path, monkeypatch):
    """Without the garbage collector: it may come late, and tables would get smaller meanwhile."""
    monkeypatch.setattr(retractions, "TABLE_PART", 800)  # 10 KiB; marks of 2 KiB
    budget = process_memory().budget
    count = 3000
    with opened(tmp_path, UNMERGED, [HUGE]) as store:
        store.append("s", numbers(np.arange(count)), keys(count))
        store.retract("s", numbers(np.arange(count // 2)), keys(count // 2))
        before = budget.usage()["probe"]
        gc.disable()
        try:
            pieces = store.probe("s", keys(1)).fetch([0], 100)
            assert next(pieces).rows["v"].to_pylist()[0] == count // 2
            assert budget.usage()["probe"] - before >= 10 * KIB
            del pieces
            assert budget.usage()["probe"] == before
            assert sum(piece.rows.num_rows for piece in store.iterate("s")) == count // 2
            assert budget.usage()["probe"] == before
        finally:
            gc.enable()


@pytest.mark.parametrize("per_round", [4000, 12_000])
def test_a_key_that_comes_and_goes_leaves_nothing(tmp_path, per_round):
    """Also more of it at a time than a table counts."""
    options = Options(memory_bytes=6 * MIB, background=False)
    with opened(tmp_path, options, [HUGE]) as store:
        for start in range(0, 4 * per_round * 10, per_round * 10):
            rows, batch = numbers(np.arange(start, start + per_round * 10)), keys(per_round * 10)
            store.append("s", rows, batch)
            store.flush()
            store.retract("s", rows, batch)
            assert stored_rows(store) > 0
            store.compact()
            assert stored_rows(store) == 0
            assert not store.contains("s", (7,))


def test_retractions_that_wait_do_not_keep_those_behind_them(tmp_path):
    count = 20_000
    with opened(tmp_path, TINY) as store:
        waiting = [n % 500 for n in range(count)]
        store.append("customers", customers(*range(500), name="z"), keys_of(*range(500)))
        store.retract("customers", customers(*range(count), name="w" * 50), keys_of(*waiting))
        for step in range(3):
            churned = range(1000 + 2000 * step, 3000 + 2000 * step)
            rows, batch = customers(*churned, name="w" * 100), keys_of(*churned)
            store.append("customers", rows, batch)
            store.flush()
            store.retract("customers", rows, batch)
            store.compact()
            # Every seventh row has no name, so that one of 500 keys is the same under all of them.
            taken = 500 - len(scanned(store, "customers"))
            assert taken == len(range(6, 500, 7))
            assert stored_rows(store) == 500 + count - 2 * taken
        store.check()


def test_compact_does_what_reads_need_of_one_run_and_of_memtables_and_only_then(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1, 2, 3), keys_of(1, 1, 2))
        store.compact()
        assert store.stats().counters["flushes"] == 0  # nothing was ever retracted
        store.retract("customers", customers(1, 9), keys_of(1, 1))
        store.compact()
        assert stored_rows(store) == 3
        assert store.memtable_bytes == 0
        merges = store.stats().writes.merges
        for _ in range(3):  # one retraction waits, and there is nothing to be done about it
            store.compact()
        assert store.stats().writes.merges == merges
        store.append("customers", customers(*range(100, 400)), keys_of(*range(100, 400)))
        store.compact()
        store.append("customers", customers(9), keys_of(1))
        store.compact()  # however little lies above the bottom run
        assert stored_rows(store) == 302
        assert ids(store.get("customers", (1, "s1")).to_pylist()) == [2]


def test_what_was_retracted_goes_where_few_keys_of_many_have_any(tmp_path, tiny_tables):
    """Streams side by side; more keys between two retractions than are passed by one by one."""
    options = dataclasses.replace(UNMERGED, file_bytes=64 * KIB)
    with opened(tmp_path, options) as store:
        many = range(3000)
        store.append("customers", customers(*many, name="w" * 60), keys_of(*many))
        store.append("returns", returns(*many), keys_of(*many))
        store.flush()
        gone = [3, 4, 900, 2500, 2999]
        store.retract("customers", customers(*gone, name="w" * 60), keys_of(*gone))
        store.retract("returns", returns(*gone[2:], *[77] * 9), keys_of(*gone[2:], *[5000] * 9))
        store.compact()
        assert len(store._runs.version.files) > 3
        assert stored_rows(store) == 3000 - 5 + 3000 - 3 + 9
        assert ids(scanned(store, "customers")) == [n for n in many if n not in gone]
        assert ids(scanned(store, "returns")) == [n for n in many if n not in gone[2:]]
        store.append("returns", returns(*[77] * 10), keys_of(*[5000] * 10))
        assert store.get("returns", (5000, "s2")).num_rows == 1
        store.check()


@pytest.mark.parametrize("begun_without", [False, True])
def test_merges_that_attempts_leave_half_done_lose_what_was_retracted(
    tmp_path, monkeypatch, begun_without
):
    """One that an earlier release began keeps rows and retractions to its end."""
    monkeypatch.setattr(version_set, "LEAST_MERGE_BYTES", 20 * KIB)
    monkeypatch.setattr(version_set, "MIB", 20 * KIB)
    monkeypatch.setattr(version_set, "MERGES_PER_WRITE", 0)
    monkeypatch.setattr(version_set, "hold_hidden", lambda *_: not begun_without)
    options = Options(memory_bytes=8 * MIB, fanout=2, compression="none", bottom_compression="none")
    many = range(4000)
    gone = [n for n in many if n % 3]
    with attempt(tmp_path, None, 1, options) as store:
        store.append("customers", customers(*many, name="w" * 100), keys_of(*many))
        pointer = store.commit()
    with attempt(tmp_path, pointer, 2, options) as store:
        store.retract("customers", customers(*gone, name="w" * 100), keys_of(*gone))
        pointer = store.commit()
    expected, left = [n for n in many if n not in gone], 0
    for number in range(3, 60):
        with attempt(tmp_path, pointer, number, options) as store:
            assert ids(scanned(store, "customers")) == expected
            left += store._runs._merge is not None
            if left == 1:  # a newer release goes on with it
                monkeypatch.setattr(version_set, "hold_hidden", lambda *_: True)
            store.append("returns", returns(number), keys_of(number))
            pointer = store.commit()
            if store._runs.version.runs[0].level:
                break
    bottom = store._runs.version.runs[0]
    assert left > 1
    assert bottom.rows >= (len(many) + len(gone) if begun_without else len(expected))
    assert begun_without or bottom.rows < len(expected) + 60
    with attempt(tmp_path, pointer, 100, options) as store:
        store.compact()
        assert ids(scanned(store, "customers")) == expected
        assert stored_rows(store) == len(expected) + len(scanned(store, "returns"))
        store.check()
