"""Flushes and merges by the background worker, by writers that go on with them, or by nobody."""

import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from cython_ext.file import set_fault_hook
from lsmstate import background, run_set, table_files, write_path, write_steps
from lsmstate.background import Worker, worker
from lsmstate.changelog import APPEND
from lsmstate.compactor import Merge
from lsmstate.errors import StoreClosedError
from lsmstate.lsm_store import LsmStore
from lsmstate.memory_budget import process_memory
from lsmstate.options import Options
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
OPTIONS = Options(
    memory_bytes=16 << 20, memtable_bytes=512 << 10, fanout=2, background=True, sync="never"
)
BATCH = 200


def batch(number):
    rng = np.random.default_rng(number)
    keys = pa.record_batch([pa.array(rng.integers(0, 3000, BATCH))], schema=KEY)
    values = pa.array(np.arange(number * BATCH, (number + 1) * BATCH))
    texts = pa.array([f"some text of row {v} in batch {number}" * 3 for v in range(BATCH)])
    return pa.record_batch([values, texts], schema=ROWS), keys


def opened(directory, **changes):
    options = dataclasses.replace(OPTIONS, **changes)
    return LsmStore.open(str(directory), [STREAM], options=options)


def append(store, first, count):
    for number in range(first, first + count):
        store.append("s", *batch(number))
    return first + count


def append_until(store, wanted, first=0):
    for number in range(first, first + 2000):
        store.append("s", *batch(number))
        if wanted():
            return number + 1
    raise AssertionError("it never came about")


def values(store):
    found = np.concatenate([p.column(0).to_numpy() for p in store.scan("s", 1 << 18)])
    return np.sort(found).tolist()


def all_of(count):
    return list(range(count * BATCH))


def wait_for(what):
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until, "it took longer than 20 s"
        time.sleep(0.002)


@contextmanager
def no_worker():
    """The worker stands still between two slices."""
    with worker().standing:
        yield


def flush_of(store):
    return store._writes._flush


def test_the_worker_flushes_and_merges_while_nobody_writes(tmp_path):
    with opened(tmp_path) as store:
        count = append_until(store, lambda: flush_of(store) is not None)
        wait_for(lambda: flush_of(store).is_over)
        assert values(store) == all_of(count), "done, but not installed yet"
        merged = store.stats().counters["merges"]
        while store._runs._merge is None:
            count = append(store, count, 1)
        wait_for(lambda: store._runs._merge.is_over)
        assert values(store) == all_of(count)
        count = append(store, count, 1)
        assert store.stats().counters["merges"] > merged
        store.check()
    with opened(tmp_path) as store:
        assert values(store) == all_of(count)


def test_reads_see_a_memtable_that_is_being_flushed(tmp_path):
    with opened(tmp_path) as store, no_worker():
        count = append_until(store, lambda: flush_of(store) is not None)
        assert not flush_of(store).is_over
        assert values(store) == all_of(count)
        keys = pa.record_batch([pa.array(range(3000), pa.int64())], schema=KEY)
        assert store.probe("s", keys).counts.sum() == count * BATCH


def test_writers_do_the_work_where_the_worker_does_not(tmp_path):
    """As if the thread had died: memory and the number of runs stay bounded all the same."""
    with opened(tmp_path) as store, no_worker():
        count = 0
        for _ in range(15):
            count = append(store, count, 20)
            assert store.stats().memory_bytes <= OPTIONS.memory_bytes
            assert store.memtable_bytes <= 1.5 * OPTIONS.memtable_bytes + (256 << 10)
            assert store.stats().counters["runs"] <= OPTIONS.max_runs
        assert store.stats().counters["merges"] > 2
        assert values(store) == all_of(count)
        assert store.stats().append_pauses.count > 0


def test_no_append_pays_for_much_of_a_large_merge(tmp_path, monkeypatch):
    """Nobody helps, so appends pay for all of it; but until three more runs are there."""
    paid = []
    step = Merge.step

    def stepped(merge, max_bytes, patience):
        before = merge.done_bytes
        try:
            return step(merge, max_bytes, patience)
        finally:
            paid.append((merge, (merge.done_bytes - before) / merge.total_bytes))

    monkeypatch.setattr(Merge, "step", stepped)
    monkeypatch.setattr(table_files, "SLICE_BYTES", 32 << 10)
    monkeypatch.setattr(run_set, "SLICE_BYTES", 32 << 10)
    with opened(tmp_path, background=False, fanout=4) as store:
        append(store, 0, 320)
        assert values(store) == all_of(320)
    largest = max((merge for merge, _ in paid), key=lambda merge: merge.total_bytes)
    shares = [share for merge, share in paid if merge is largest]
    assert max(shares) < 0.08


@pytest.mark.parametrize("refusals", [25, 1 << 30])
def test_a_merge_that_the_worker_holds_up_is_not_left_to_one_append(
    tmp_path, monkeypatch, refusals
):
    """As on a slow disk: neither to the first that gets at it again, nor to the one whose run would
    be too many."""
    paid, refused = [], []
    step = Merge.step

    def stepped(merge, max_bytes, patience=None):
        is_large = merge.total_bytes > 4 << 20
        if patience is not None and is_large and len(refused) < refusals and not merge.is_over:
            refused.append(merge)
            return False
        before = merge.done_bytes
        try:
            return step(merge, max_bytes, patience)
        finally:
            paid.append((merge, (merge.done_bytes - before) / merge.total_bytes))

    monkeypatch.setattr(Merge, "step", stepped)
    monkeypatch.setattr(table_files, "SLICE_BYTES", 32 << 10)
    monkeypatch.setattr(run_set, "SLICE_BYTES", 32 << 10)
    with no_worker(), opened(tmp_path, fanout=4) as store:
        append(store, 0, 400)
        assert values(store) == all_of(400)
    assert len(refused) >= 25
    shares = [share for merge, share in paid if merge.total_bytes > 4 << 20]
    assert len(shares) > 5
    assert max(shares) < 0.5


def test_an_append_leaves_a_file_that_is_being_forced_to_the_worker(tmp_path, monkeypatch):
    """Even where the merge is behind: a disk may take seconds for it."""
    forcing, may_go_on = threading.Event(), threading.Event()

    def hook(operation, path, _offset, _size):
        if operation == "sync" and threading.current_thread().name == "lsmstate":
            merge = store._runs._merge
            if merge is not None and os.path.basename(path) in merge.names:
                forcing.set()
                assert may_go_on.wait(60)

    monkeypatch.setattr(run_set, "SLICE_BYTES", 1)
    with opened(tmp_path, sync="commit", file_bytes=64 << 10) as store:
        set_fault_hook(hook)
        try:
            count = append_until(store, forcing.is_set)
            merge = store._runs._merge
            for _ in range(8):
                count = append(store, count, 1)
                assert values(store) == all_of(count)
            assert store._runs._merge is merge
            assert not merge.is_over
            assert store._runs._due_bytes > merge.done_bytes, "they had something to pay for"
        finally:
            may_go_on.set()
            set_fault_hook(None)
        count = append(store, count, 100)
        assert merge.is_over
        assert values(store) == all_of(count)
        store.check()


def test_a_process_without_a_thread_to_spare(tmp_path, monkeypatch, caplog):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "_worker", Worker())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with opened(tmp_path) as store:
        count = append(store, 0, 60)
        assert values(store) == all_of(count)
        assert store.stats().counters["flushes"] + len(store._runs.version.runs) > 1
        append(store, count, 400)
        assert store.stats().memory["merge"] < 1 << 20, "jobs that are done are held by nobody"
        assert not worker()._jobs
    assert "can't start new thread" in caplog.text


@pytest.mark.parametrize("end", [LsmStore.commit, LsmStore.compact])
def test_an_append_leaves_deleting_to_the_worker_and_a_commit_waits_for_it(tmp_path, end):
    with opened(tmp_path) as store:
        with no_worker():
            count = append_until(store, lambda: unneeded_of(store))
            waiting = unneeded_of(store)
            assert waiting < set(os.listdir(tmp_path))
        wait_for(lambda: not waiting & set(os.listdir(tmp_path)))
        with no_worker():
            append_until(store, lambda: unneeded_of(store), count)
            waiting = unneeded_of(store)
            end(store)
            assert not waiting & set(os.listdir(tmp_path)), "it may be copied now"
            assert not unneeded_of(store)


def test_a_file_that_is_not_deleted_is_found_again(tmp_path, caplog):
    refused = set()

    def refuse(operation, path, offset, size):
        if operation == "remove" and threading.current_thread().name == "lsmstate":
            refused.add(os.path.basename(path))
            raise OSError(5, "Input/output error", path)

    with opened(tmp_path) as store:
        set_fault_hook(refuse)
        try:
            count = append_until(store, lambda: unneeded_of(store))
            wait_for(lambda: not unneeded_of(store))
        finally:
            set_fault_hook(None)
        assert refused <= set(os.listdir(tmp_path))
        assert refused
        assert "Input/output error" in caplog.text
        count = append(store, count, 1)
        store.commit()
        assert not refused & set(os.listdir(tmp_path))
        assert values(store) == all_of(count)


def unneeded_of(store):
    """Names of files that wait to be deleted."""
    return set(store._owner._removal._waiting)


@pytest.mark.parametrize("what", ["flush", "merge"])
def test_an_error_of_the_worker_is_raised_by_the_next_write(tmp_path, what):
    store = opened(tmp_path)

    def job():
        return flush_of(store) if what == "flush" else store._runs._merge

    with no_worker():
        count = append_until(store, lambda: job() is not None)
        under_way = job()

        def fail(operation, path, offset, size):
            if operation == "append" and threading.current_thread().name == "lsmstate":
                raise OSError(28, "No space left on device", path)

        set_fault_hook(fail)
    try:
        wait_for(lambda: under_way.is_over)
        with pytest.raises(OSError, match="No space left") as raised:
            append(store, count, 1)
        assert raised.value.errno == 28
    finally:
        set_fault_hook(None)
    assert all(not os.path.exists(tmp_path / name) for name in under_way.names)
    with pytest.raises(StoreClosedError, match="No space left"):
        store.append("s", *batch(count))
    store.close()
    with opened(tmp_path) as store:
        assert values(store) == all_of(count), "what was acknowledged is there, and no more"
        append(store, count, 30)
        assert values(store) == all_of(count + 30)
        store.check()


def test_a_commit_raises_the_error_of_the_worker(tmp_path):
    store = opened(tmp_path)
    with no_worker():
        append_until(store, lambda: flush_of(store) is not None)

        def fail(operation, path, offset, size):
            if operation == "append":
                raise OSError(5, "Input/output error", path)

        set_fault_hook(fail)
    try:
        wait_for(lambda: flush_of(store).is_over)
        with pytest.raises(OSError, match="Input/output error"):
            store.commit()
    finally:
        set_fault_hook(None)
        store.close()


def test_the_worker_may_close_the_store_it_works_for_as_garbage(tmp_path):
    """A generator that is given up closes what it holds, in whichever thread finds the garbage."""

    def user():
        with opened(tmp_path) as store:
            append_until(store, lambda: flush_of(store) is not None)
            yield

    def collect(operation, path, offset, size):
        if operation == "append" and threading.current_thread().name == "lsmstate":
            gc.collect()
            collected.set()

    collected = threading.Event()
    gc.collect()
    gc.disable()
    set_fault_hook(collect)
    try:
        with no_worker():
            given_up = [user()]
            next(given_up[0])
            given_up.append(given_up)
            del given_up
        assert collected.wait(20)
        assert worker().standing.acquire(timeout=20), "the worker waits for itself"
        worker().standing.release()
    finally:
        set_fault_hook(None)
        gc.enable()
    with opened(tmp_path) as store:
        found = values(store)
        assert len(found) > 0
        assert found == all_of(len(found) // BATCH)
        store.check()


def test_closing_deletes_what_is_under_way_or_was_not_installed(tmp_path):
    with opened(tmp_path) as store:
        count = append_until(store, lambda: flush_of(store) is not None)
        wait_for(lambda: flush_of(store).is_over)
        name = flush_of(store).names[0]
        assert os.path.exists(tmp_path / name)
    assert not os.path.exists(tmp_path / name)
    assert process_memory().budget.usage()["memtable"] == 0
    # The worker may be just about to let go of what it was at.
    wait_for(lambda: process_memory().budget.usage()["merge"] == 0)
    with opened(tmp_path) as store:
        assert values(store) == all_of(count)


class InterruptedOnce:
    """A lock at which Ctrl-C comes while its holder is waited for."""

    def __init__(self, lock):
        self.lock = lock
        self.is_interrupted = False

    def acquire(self, **waiting):
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return self.lock.acquire(**waiting)

    def release(self):
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *error):
        self.release()


@pytest.mark.parametrize("what", ["flush", "merge"])
def test_interrupted_while_waiting_for_the_worker(tmp_path, what):
    """The worker must not go on reading memtables of a store that was closed since."""
    store = opened(tmp_path)

    def job():
        return flush_of(store) if what == "flush" else store._runs._merge

    with no_worker():
        count = append_until(store, lambda: job() is not None)
        under_way = job()
        under_way._lock = InterruptedOnce(under_way._lock)
        with pytest.raises(KeyboardInterrupt):
            store.compact()
        assert not under_way.is_over
        store.close()
        assert under_way.is_over
    assert all(not os.path.exists(tmp_path / name) for name in under_way.names)
    with opened(tmp_path) as store:
        assert values(store) == all_of(count)
        store.check()


def test_a_store_that_failed_is_flushed_by_nobody(tmp_path, monkeypatch):
    """Half of a write may be in its memtable, which its log brings back whole."""
    store = opened(tmp_path)
    append(store, 0, 2)
    step = write_steps.STEPS[APPEND][0]

    def interrupted(*arguments):
        step(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(write_steps, "STEPS", {APPEND: (interrupted,)})
        patched.setattr(write_path, "STEPS", write_steps.STEPS)
        with pytest.raises(KeyboardInterrupt):
            append(store, 2, 1)
    assert not store.try_flush(), "as if another store needed its memory"
    with pytest.raises(StoreClosedError, match="failed in the middle"):
        store.flush()
    store.close()
    assert not store.try_flush()
    with opened(tmp_path) as store:
        assert values(store) == all_of(3)


def test_a_commit_between_leaves_the_files_of_a_merge_alone(tmp_path):
    with opened(tmp_path) as store:
        with no_worker():
            merging = store._runs
            count = append_until(store, lambda: merging._merge is not None and merging._merge.names)
            names = list(store._runs._merge.names)
            store.commit()
            assert set(names) <= set(os.listdir(tmp_path))
        count = append(store, count, 40)
        store.compact()
        store.check()
        assert values(store) == all_of(count)
        on_disk = sum(file.stat().st_size for file in tmp_path.glob("*.sst"))
        assert on_disk == store.stats().disk_bytes


def test_a_process_that_ends_without_closing_loses_nothing(tmp_path):
    for end in (os._exit, None):
        child = os.fork()
        if child == 0:
            store = opened(tmp_path / str(end is None))
            append_until(store, lambda store=store: flush_of(store) is not None)
            append(store, 1000, 7)
            if end is not None:
                os._exit(0)
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
        with opened(tmp_path / str(end is None)) as store:
            found = values(store)
            assert found[-7 * BATCH :] == list(range(1000 * BATCH, 1007 * BATCH))
            assert found[: -7 * BATCH] == list(range(len(found) - 7 * BATCH))
            store.check()


def test_an_interpreter_ends_in_time_with_the_worker_at_work(tmp_path):
    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_background import *
store = opened({str(tmp_path)!r})
append_until(store, lambda: store._runs._merge is not None)
print(len(values(store)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with opened(tmp_path) as store:
        assert len(values(store)) == int(done.stdout)


def test_a_forked_child_has_a_worker_of_its_own_and_leaves_the_parents_files(tmp_path):
    with opened(tmp_path / "parent") as store:
        with no_worker():
            runs = store._runs
            count = append_until(store, lambda: runs._merge is not None and runs._merge.names)
        parents = worker()
        child = os.fork()
        if child == 0:
            failed = 1
            try:
                assert worker() is not parents
                runs._merge = None  # as if it were collected
                del store, runs
                gc.collect()
                with opened(tmp_path / "child") as other:
                    append_until(other, lambda: flush_of(other) is not None)
                    wait_for(lambda: flush_of(other).is_over)
                failed = 0
            finally:
                os._exit(failed)
        assert os.waitpid(child, 0)[1] == 0
        count = append(store, count, 60)
        store.compact()
        store.check()
        assert values(store) == all_of(count)


def test_the_thread_ends_when_there_is_nothing_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(background, "_worker", Worker())
    with opened(tmp_path) as store:
        count = append_until(store, lambda: flush_of(store) is not None)
        wait_for(lambda: worker()._thread is None)
        count = append(store, count, 60)
        assert values(store) == all_of(count)
    wait_for(lambda: worker()._thread is None)


def test_an_attempt_in_the_background_commits_the_same_rows(tmp_path):
    found = []
    for number, in_background in enumerate((True, False)):
        directory = tmp_path / str(number)
        directory.mkdir()
        pointer, count = None, 0
        for batch_id in range(3):
            with LsmStore.open_attempt(
                str(directory),
                [STREAM],
                pointer=pointer,
                batch_id=batch_id,
                attempt_id="a",
                options=dataclasses.replace(OPTIONS, background=in_background),
            ) as store:
                count = append(store, count, 60)
                assert values(store) == all_of(count)
                keys = pa.record_batch([pa.array(range(0, 3000, 7), pa.int64())], schema=KEY)
                probe = store.probe("s", keys)
                rows = [p.rows for p in probe.fetch(np.arange(keys.num_rows), 1 << 16)]
                found.append(pa.Table.from_batches(rows, schema=ROWS))
                pointer = store.commit()
        leftover = {f.name for f in directory.iterdir()}
        assert leftover >= {file.name for file in store._runs.version.files}
    assert found[:3] == found[3:], "rows, and their order, do not depend on the thread"


def test_the_defaults():
    assert Options().of_one_process().background is True
    assert Options(background=False).of_one_process().background is False
    assert Options().background is None, "off for an attempt"
