"""What deleting leaves in the runs of our own store: ranges hide older runs, files go unread."""

import dataclasses
import gc
from collections import Counter

import msgpack
import pyarrow as pa
import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
from support.sample_streams import RETURNS, STREAMS, customers, ids, keys_of, scanned

#: Without the worker, so that what is in which run does not depend on its speed.
TINY = Options(
    memory_bytes=8 * MIB,
    memtable_bytes=256 * KIB,
    file_bytes=64 * KIB,
    fanout=2,
    max_runs=4,
    background=False,
)


def attempt(directory, pointer=None, number=0, options=TINY):
    return LsmStore.open_attempt(
        str(directory), STREAMS, pointer=pointer, batch_id=number, attempt_id="a", options=options
    )


def returns(number):
    rows = [{"id": number, "price": None, "day": None}]
    return pa.RecordBatch.from_pylist(rows, schema=RETURNS.rows)


def fill(store, numbers):
    numbers = list(numbers)
    store.append("customers", customers(*numbers, name="w" * 900), keys_of(*numbers))


def test_a_range_hides_older_runs_only_through_every_merge(tmp_path):
    with attempt(tmp_path) as store:
        kept = set()
        for step in range(12):
            fill(store, range(200 * step, 200 * step + 200))
            kept |= set(range(200 * step, 200 * step + 200))
            if step % 3 == 2:
                low = 200 * (step - 2) + 50
                store.delete_range("customers", low=(low,), high=(low + 400,))
                kept -= set(range(low, low + 400))
            store.flush()
            store.check()
            assert sorted(ids(scanned(store, "customers"))) == sorted(kept)
            found = store.exists("customers", keys_of(*range(2600))).nonzero()[0]
            assert found.tolist() == sorted(kept)
        assert store.stats().writes.merges > 0


def test_files_that_lie_in_the_range_go_unread(tmp_path):
    store = LsmStore.open(str(tmp_path), STREAMS, options=TINY)
    fill(store, range(1500))
    store.commit()
    store.compact(due_only=True)  # files that a merge is reading stay until it is done
    before = store.stats().disk_bytes
    store.delete_range("customers")
    store.commit()
    # Nothing is left, not even the range: nothing is older.
    assert store._runs.version.runs == ()
    assert store.stats().disk_bytes == 0 < before
    assert len(list(tmp_path.glob("*.sst"))) == 1  # the commit's own file
    fill(store, range(3))
    assert ids(scanned(store, "customers")) == [0, 1, 2]
    store.close()


def test_ranges_in_the_bottom_run_are_forgotten(tmp_path):
    with attempt(tmp_path) as store:
        fill(store, range(200))
        store.flush()
        store.delete_range("customers", low=(10,), high=(180,))
        fill(store, range(50))
        store.flush()
        store.compact(due_only=True)
        (run,) = store._runs.version.runs
        assert len(run.deleted) == 0
        expected = sorted([*range(10), *range(50), *range(180, 200)])
        assert ids(scanned(store, "customers")) == expected
        assert run.rows == len(expected)


def test_the_ranges_of_runs_count_against_the_cap(tmp_path):
    used = process_memory().budget.usage
    before = used()["tables"]
    with LsmStore.open(str(tmp_path), STREAMS, options=TINY) as store:
        fill(store, range(10))
        store.flush()
        for number in range(0, 600, 2):
            store.delete_range("customers", low=(number,), high=(number + 1,))
        store.flush()
        (ranges,) = [run.deleted for run in store._runs.version.runs if len(run.deleted)]
        assert used()["tables"] - before >= ranges.nbytes > 30_000
    del store, ranges
    with LsmStore.open(str(tmp_path), STREAMS, options=TINY) as store:
        assert used()["tables"] - before > 30_000
    del store
    gc.collect()
    assert used()["tables"] - before < 30_000


def test_retractions_are_read_however_little_memory_is_left(tmp_path):
    """In as many passes as it takes; what they take counts against the cap."""
    budget = process_memory().budget
    unmerged = dataclasses.replace(TINY, fanout=16, max_runs=32)
    many = range(4000)
    with LsmStore.open(str(tmp_path), STREAMS, options=unmerged) as store:
        store.append("customers", customers(*many), keys_of(*[i % 2 for i in many]))
        store.retract("customers", customers(*many[:3000]), keys_of(*[i % 2 for i in many[:3000]]))
        process_memory().cache.clear()
        taken = budget.limit - budget.firm_bytes
        budget.hold("frames", taken)
        try:
            before = budget.usage()["probe"]
            probe = store.probe("customers", keys_of(0, 1))
            assert probe.counts.tolist() == [500, 500]
            found = probe.fetch([0], 1 << 20)
            assert ids(next(found).rows.to_pylist()) == [*range(3000, 4000, 2)]
            assert 30 * KIB < budget.usage()["probe"] - before < 500 * KIB
            del found
            assert len(scanned(store, "customers")) == 1000
        finally:
            budget.hold("frames", -taken)


def test_many_ranges_make_the_memtable_full(tmp_path):
    store = LsmStore.open(str(tmp_path), STREAMS, options=TINY)
    fill(store, range(3000))
    for number in range(0, 3000, 3):
        store.delete_range("customers", low=(number,), high=(number + 1,))
    assert any(len(run.deleted) > 100 for run in store._runs.version.runs)
    expected = [n for n in range(3000) if n % 3]
    assert ids(scanned(store, "customers")) == expected
    store.close()
    store = LsmStore.open(str(tmp_path), STREAMS, options=TINY)
    assert ids(scanned(store, "customers")) == expected
    store.check()
    store.close()


@pytest.mark.parametrize("kind", ["range", "retraction"])
def test_older_releases_refuse_a_state_with_what_they_do_not_know(tmp_path, kind):
    """Their manifests are of format 1; ours is too until there is such a thing in a run."""
    pointers = []
    with attempt(tmp_path) as store:
        fill(store, range(5))
        store.delete("customers", keys_of(3))
        pointers.append(store.commit())
    with attempt(tmp_path, pointers[0], 1) as store:
        if kind == "range":
            store.delete_range("customers", low=(2,))
        else:
            store.retract("returns", returns(1), keys_of(2))
        pointers.append(store.commit())
    formats = []
    for pointer in pointers:
        with attempt(tmp_path, pointer, 2) as store:
            name, size, checksum = pointer.split(":")
            section = store._runs._tables.open_commit(
                str(tmp_path), name, int(size), int(checksum, 16)
            ).section("edit")
            formats.append(msgpack.unpackb(section)["format"])
    assert formats == [1, 2]


def test_retractions_and_rows_find_each_other_across_runs(tmp_path):
    with attempt(tmp_path) as store:
        live = []
        for step in range(10):
            numbers = range(100 * step, 100 * step + 100)
            fill(store, numbers)
            gone = [
                n for n in range(100 * step + 100) if n % 7 == step % 7 and n in {*live, *numbers}
            ]
            rows = customers(*gone, name="w" * 900)
            store.retract("customers", rows, keys_of(*gone))
            live = [n for n in [*live, *numbers] if n not in gone]
            store.flush()
            assert ids(scanned(store, "customers")) == live
        assert store.exists("customers", keys_of(*range(1000))).nonzero()[0].tolist() == live
        assert store.stats().writes.merges > 0
        store.check()


def test_merging_to_the_bottom_removes_rows_and_their_retractions(tmp_path):
    with attempt(tmp_path) as store:
        fill(store, range(100))
        fill(store, [7, 7])
        store.flush()
        gone = customers(*range(50), 7, 7, 7, 7, 500, name="w" * 900)
        store.retract("customers", gone, keys_of(*range(50), 7, 7, 7, 7, 500))
        store.flush()
        store.compact(due_only=True)
        (run,) = store._runs.version.runs
        # Pending: two of row 7 and one of a row that never came.
        assert run.rows == 50 + 2 + 1
        assert ids(scanned(store, "customers")) == list(range(50, 100))
        fill(store, [7, 7, 7, 500, 500])
        assert ids(scanned(store, "customers")) == [7, *range(50, 100), 500]
        store.check()


def test_a_huge_key_loses_its_retracted_rows(tmp_path):
    """Its rows span key blocks, and many retractions wait."""
    options = dataclasses.replace(TINY, block_bytes=1 * KIB, memory_bytes=16 * MIB)
    with attempt(tmp_path, options=options) as store:
        expected = Counter()
        for start in range(0, 4000, 500):
            numbers = range(start, start + 500)
            rows = customers(*numbers, name="w" * 700)
            store.append("customers", rows, keys_of(*[5] * 500))
            gone = [n * 3 for n in numbers]
            store.retract("customers", customers(*gone, name="w" * 700), keys_of(*[5] * 500))
            expected.update(numbers)
            expected.subtract(gone)
        for _ in range(3):
            store.compact()
            live = sorted(n for n, count in expected.items() if count > 0)
            assert ids(store.get("customers", (5, "s2")).to_pylist()) == live
            assert ids(scanned(store, "customers")) == live
            store.append("customers", customers(0, name="x"), keys_of(6))
            store.flush()
            store.delete("customers", keys_of(6))
        assert store.stats().writes.merges > 0
        store.check()
