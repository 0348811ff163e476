"""What a snapshot of an LsmStore keeps, and for how long: files, memtables, memory."""

import gc
import os
import threading

import pyarrow as pa
import pytest

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import MemoryLimitError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
from support.sample_streams import STREAMS, customers, ids, keys_of, scanned


def opened(directory, **options):
    return LsmStore.open(str(directory), STREAMS, options=Options(**options))


def fill(store, start, count=2000, name="n" * 50):
    numbers = range(start, start + count)
    store.append("customers", customers(*numbers, name=name), keys_of(*[n % 500 for n in numbers]))


def tables_in(directory):
    return {path.name for path in directory.iterdir() if path.name.startswith(("run-", "commit-"))}


@pytest.mark.parametrize("how", ["standalone", "attempt"])
def test_files_stay_while_a_snapshot_needs_them_and_go_when_none_does(tmp_path, how):
    options = Options(memory_bytes=16 * MIB, fanout=2, max_runs=2)
    if how == "standalone":
        store = LsmStore.open(str(tmp_path), STREAMS, options=options)
    else:
        store = LsmStore.open_attempt(
            str(tmp_path), STREAMS, batch_id=1, attempt_id="a", options=options
        )
    fill(store, 0)
    store.flush()
    fill(store, 2000)
    store.flush()
    if how == "standalone":
        store.commit()  # so that no file of before waits to be deleted
    snapshot, second = store.snapshot(), store.snapshot()
    kept = tables_in(tmp_path)
    for start in range(4000, 16_000, 2000):
        fill(store, start)
        store.flush()
    store.compact()
    assert store.stats().counters["merges"] > 0
    # All of them were merged away, and none is gone.
    assert kept < tables_in(tmp_path)
    assert len(scanned(snapshot, "customers")) == 4000
    snapshot.close()
    assert kept < tables_in(tmp_path)
    assert sorted(ids(scanned(second, "customers"))) == list(range(4000))
    second.close()
    assert not kept & tables_in(tmp_path)
    assert len(scanned(store, "customers")) == 16_000
    store.close()


def test_what_a_killed_process_kept_is_collected_by_the_next_commit(tmp_path):
    store = opened(tmp_path, memory_bytes=16 * MIB, fanout=2, max_runs=2)
    fill(store, 0)
    store.commit()  # so that no file of before waits to be deleted
    snapshot = store.snapshot()
    kept = tables_in(tmp_path)
    for start in range(2000, 8000, 2000):
        fill(store, start)
        store.flush()
    store.compact()
    copies = {name: (tmp_path / name).read_bytes() for name in kept}
    snapshot.close()
    store.close()
    for name, data in copies.items():  # as if nobody had closed the snapshot
        (tmp_path / name).write_bytes(data)
    with opened(tmp_path, memory_bytes=16 * MIB) as store:
        fill(store, 8000)
        store.commit()
        assert not kept & tables_in(tmp_path)
        assert len(scanned(store, "customers")) == 10_000


def test_a_forked_child_deletes_nothing(tmp_path):
    store = opened(tmp_path, memory_bytes=16 * MIB, fanout=2, max_runs=2)
    fill(store, 0)
    store.flush()
    snapshot = store.snapshot()
    for start in range(2000, 8000, 2000):
        fill(store, start)
        store.flush()
    store.compact()
    child = os.fork()
    if child == 0:
        snapshot.close()
        del snapshot
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    process_memory().cache.clear()
    assert len(scanned(snapshot, "customers")) == 2000
    snapshot.close()
    store.close()


def test_memtables_stay_charged_until_the_last_snapshot_goes(tmp_path):
    store = opened(tmp_path, memory_bytes=16 * MIB)
    budget = process_memory().budget
    fill(store, 0)
    first, second = store.snapshot(), store.snapshot()
    held = budget.usage()["memtable"]
    store.flush()
    assert 0 < budget.usage()["memtable"] <= held
    first.close()
    assert ids(second.get("customers", (7, "s1")).to_pylist()) == [7, 507, 1007, 1507]
    assert budget.usage()["memtable"] > 0
    second.close()
    assert budget.usage()["memtable"] == 0
    assert len(scanned(store, "customers")) == 2000
    store.close()


def test_many_snapshots_retain_no_more_than_one_share_of_memtables(tmp_path):
    """Beyond it, taking one flushes; what it reads is in runs then, and costs no memory."""
    with opened(tmp_path, memory_bytes=8 * MIB, memtable_bytes=1 * MIB) as store:
        snapshots = []
        for start in range(0, 60_000, 2000):
            fill(store, start)
            snapshots.append((store.snapshot(), start + 2000))
            assert store.stats().memory["memtable"] <= 2 * MIB + 512 * KIB
        for snapshot, rows in snapshots:
            assert len(scanned(snapshot, "customers")) == rows
            snapshot.close()
        assert store.stats().peak_memory_bytes <= 8 * MIB


@pytest.mark.parametrize("background", [False, True], ids=["", "background"])
def test_a_write_that_finds_no_memory_names_the_snapshots(tmp_path, background):
    store = opened(tmp_path, memory_bytes=8 * MIB, background=background)
    fill(store, 0)
    snapshot = store.snapshot()
    store.flush()
    budget = process_memory().budget
    process_memory().cache.clear()
    taken = budget.limit - budget.total_bytes - 100 * KIB
    budget.hold("frames", taken)
    try:
        with pytest.raises(MemoryLimitError, match=r"snapshots hold \d+ bytes.*as of write 1"):
            store.append("customers", customers(9_999, name="w" * 300 * KIB), keys_of(1))
        with pytest.raises(MemoryLimitError, match="one more write"):
            store.append("customers", *many_parts_and_a_huge_row())
    finally:
        budget.hold("frames", -taken)
    assert len(scanned(snapshot, "customers")) == 2000
    snapshot.close()
    assert len(scanned(store, "customers")) == 2000  # it was refused, and nothing else
    fill(store, 2000)
    store.close()
    with opened(tmp_path, memory_bytes=8 * MIB) as store:
        assert sorted(ids(scanned(store, "customers"))) == list(range(4000))


def many_parts_and_a_huge_row():
    """A batch that is encoded in several parts, of which only the last takes much memory."""
    small = customers(*range(10_000, 11_000), name="w" * 1000)
    huge = customers(20_000, name="w" * 300 * KIB)
    return pa.concat_batches([small, huge]), keys_of(*range(1001))


def test_reading_a_snapshot_in_another_thread_while_the_store_is_written_to(tmp_path):
    with opened(tmp_path, memory_bytes=8 * MIB, fanout=2, max_runs=4) as store:
        fill(store, 0)
        errors = []

        def read(snapshot, rows):
            try:
                with snapshot:
                    for _ in range(3):
                        assert sorted(ids(scanned(snapshot, "customers"))) == list(range(rows))
                        keys = keys_of(*range(500))
                        assert snapshot.probe("customers", keys).counts.sum() == rows
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        threads = []
        for start in range(2000, 40_000, 2000):
            if len(threads) < 4:
                threads.append(threading.Thread(target=read, args=(store.snapshot(), start)))
                threads[-1].start()
            fill(store, start)
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(scanned(store, "customers")) == 40_000


def test_threads_share_a_batch_of_encoded_keys(tmp_path):
    """Each asks another stream for it, which stands in front of the keys while they are walked."""
    keys = KeyCodec(STREAMS[0].key).encode(keys_of(*range(20_000)))
    found = {"customers": [], "returns": []}
    with opened(tmp_path, memory_bytes=16 * MIB) as store:
        store.append("customers", customers(*range(20_000)), keys)
        with store.snapshot() as snapshot:

            def ask(reader, stream):
                for _ in range(50):
                    found[stream].append(int(reader.probe(stream, keys).counts.sum()))

            other = threading.Thread(target=ask, args=(snapshot, "returns"))
            other.start()
            ask(store, "customers")
            other.join()
    assert found == {"customers": [20_000] * 50, "returns": [0] * 50}


def test_a_snapshot_of_a_stream_in_deep_runs_sees_no_later_delete(tmp_path):
    """Deletes vanish in the bottom run; a snapshot from before them has the run from before."""
    with opened(tmp_path, memory_bytes=8 * MIB, fanout=2, max_runs=2) as store:
        fill(store, 0)
        store.flush()
        with store.snapshot() as snapshot:
            store.delete("customers", keys_of(*range(500)))
            store.flush()
            for _ in range(3):
                store.append("returns", returns(1), keys_of(1))
                store.flush()
            store.compact()
            assert scanned(store, "customers") == []
            assert len(scanned(snapshot, "customers")) == 2000


def returns(number):
    import pyarrow as pa

    row = {"id": number, "price": None, "day": None}
    return pa.RecordBatch.from_pylist([row], schema=STREAMS[1].rows)
