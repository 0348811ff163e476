"""Flushes and merges by the background worker, by writers that go on with them, or by nobody."""

import dataclasses
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.lsm import merge_pacing as pacing
from lsmstate.lsm import table_writer as table_files
from lsmstate.lsm.jobs import Merge
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.process import background_worker as background
from lsmstate.process.background_worker import Worker, worker
from support.background_cases import (
    BATCH,
    KEY,
    OPTIONS,
    ROWS,
    STREAM,
    all_of,
    append,
    append_until,
    flush_of,
    no_worker,
    opened,
    values,
    wait_for,
)
from support.paths import TESTS


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
            assert store.stats().counters["runs"] <= OPTIONS.most_runs
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
    monkeypatch.setattr(pacing, "SLICE_BYTES", 32 << 10)
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
    monkeypatch.setattr(pacing, "SLICE_BYTES", 32 << 10)
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
        if operation == "sync" and threading.get_ident() == worker().thread:
            merge = store._runs._merge
            if merge is not None and os.path.basename(path) in merge.names:
                forcing.set()
                assert may_go_on.wait(60)

    monkeypatch.setattr(pacing, "SLICE_BYTES", 1)
    with opened(tmp_path, sync="commit", file_bytes=64 << 10) as store:
        set_fault_hook(hook)
        try:
            count = append_until(store, forcing.is_set)
            merge = store._runs._merge
            # Until there is something to pay for.
            while store._runs._pace.due_bytes <= merge.done_bytes:
                count = append(store, count, 1)
            for _ in range(8):
                count = append(store, count, 1)
                assert values(store) == all_of(count)
            assert store._runs._merge is merge
            assert not merge.is_over
        finally:
            may_go_on.set()
            set_fault_hook(None)
        count = append(store, count, 100)
        assert merge.is_over
        assert values(store) == all_of(count)
        store.check()


def test_a_process_without_a_thread_to_spare(tmp_path, monkeypatch, caplog):
    def refuse(function, arguments):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "_worker", Worker())
    monkeypatch.setattr(background, "start_new_thread", refuse)
    with opened(tmp_path) as store:
        count = append(store, 0, 60)
        assert values(store) == all_of(count)
        assert store.stats().counters["flushes"] + len(store._runs.version.runs) > 1
        append(store, count, 400)
        assert store.stats().memory["merge"] < 1 << 20, "jobs that are done are held by nobody"
        assert worker().is_idle
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
        if operation == "remove":  # a commit deletes itself what the worker has not come to
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
sys.path.insert(0, {str(TESTS)!r})
from support.background_cases import *
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
        wait_for(lambda: not worker().has_thread)
        count = append(store, count, 60)
        assert values(store) == all_of(count)
    wait_for(lambda: not worker().has_thread)


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
