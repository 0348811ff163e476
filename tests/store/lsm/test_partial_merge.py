"""Attempts pay for a large merge commit by commit; what is done of it stands in the manifest."""

import dataclasses
import os

import pytest

from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.errors import CorruptionError
from lsmstate.lsm import table_writer as table_files
from lsmstate.lsm import version_set
from lsmstate.lsm.jobs import Merge
from lsmstate.process.background_worker import SLICE_BYTES
from support.partial_merge_cases import OPTIONS, Attempts
from support.partial_merge_cases import little_is_paid as little_is_paid


def under_way(attempts):
    with attempts.open() as store:
        merge = store._runs._merge
        return None if merge is None else list(merge.files)


def until_under_way(attempts):
    for _ in range(200):
        attempts.batch()
        if files := under_way(attempts):
            return files
    raise AssertionError("no merge took more than one commit")


def test_a_first_file_may_take_more_than_is_paid_for(tmp_path):
    """As where rows compress well."""
    attempts = Attempts(tmp_path, dataclasses.replace(OPTIONS, file_bytes=1 << 20))
    merges = [attempts.batch(1000)["merges"] for _ in range(8)]
    assert sum(merges) > 2
    attempts.check()


def test_no_commit_waits_for_a_whole_merge(tmp_path):
    attempts = Attempts(tmp_path)
    most, partial, seen = 0, 0, 0
    for _ in range(90):
        counters = attempts.batch()
        most = max(most, counters["merged_bytes"])
        partial += under_way(attempts) is not None
        seen = max(seen, counters["runs"])
    state = attempts.check()
    size = state._runs.version.size
    assert partial > 10
    assert most < size / 3, "one commit rewrote a large part of the state"
    assert seen <= OPTIONS.max_runs + 4, "runs, while a merge is under way"
    assert size > 2_000_000


def test_runs_are_bounded_however_little_is_paid(tmp_path, monkeypatch):
    """``max_runs`` and the last commit's, all of which one merge may hold, and as many newer."""
    monkeypatch.setattr(version_set, "LEAST_MERGE_BYTES", 1)
    monkeypatch.setattr(version_set, "MERGES_PER_WRITE", 0)
    attempts = Attempts(tmp_path)
    runs = [attempts.batch()["runs"] for _ in range(120)]
    assert OPTIONS.most_runs < max(runs) <= 2 * OPTIONS.max_runs + 1
    attempts.check()


def test_no_append_of_a_large_attempt_waits_for_a_whole_merge(tmp_path, monkeypatch):
    """Each was once paid for by the append whose memtable was full."""
    steps = []
    step = Merge.step

    def spied(merge, max_bytes, patience=None):
        before = merge.done_bytes
        is_over = step(merge, max_bytes, patience)
        steps.append(merge.done_bytes - before)
        return is_over

    monkeypatch.setattr(Merge, "step", spied)
    options = dataclasses.replace(OPTIONS, memtable_bytes=1 << 20, file_bytes=8 << 20)
    attempts = Attempts(tmp_path, options)
    store = attempts.open()
    for _ in range(50):
        attempts.write(store, 1000)
    counters = store.stats().counters
    raw_bytes = max(f.raw_bytes for r in store._runs.version.runs for f in r.files)
    assert counters["merges"] >= 3
    assert max(steps) <= 2 * SLICE_BYTES < raw_bytes / 2
    attempts.pointer = store.commit()
    store.close()
    attempts.batch_id += 1
    attempts.check()


@pytest.mark.parametrize("most_runs", [4, 8])
def test_no_merge_is_begun_for_nothing(tmp_path, monkeypatch, most_runs):
    """A commit names one merge to go on with; others were begun anew by each commit."""
    begun = []
    make = Merge.__init__

    def spied(merge, *arguments, **more):
        make(merge, *arguments, **more)
        begun.append(merge)

    monkeypatch.setattr(Merge, "__init__", spied)
    monkeypatch.setattr(version_set, "LEAST_MERGE_BYTES", 20_000)
    monkeypatch.setattr(version_set, "MERGES_PER_WRITE", 1)
    attempts = Attempts(tmp_path, dataclasses.replace(OPTIONS, max_runs=most_runs))
    merges = 0
    for _ in range(60):
        attempts.batch()
        assert all(merge.is_over for merge in begun)
        merges += len(begun)
        begun.clear()
    assert merges > 20
    attempts.check()


def test_no_commit_leaves_a_file_unfinished(tmp_path, monkeypatch):
    """Also one that could pay for smaller merges only: what appends have paid for was lost."""
    monkeypatch.setattr(table_files, "SLICE_BYTES", 1000)
    attempts = Attempts(tmp_path)
    for _ in range(40):
        attempts.batch()
    until_under_way(attempts)
    with attempts.open() as store:
        merge = store._runs._merge
        merge.step(1)
        assert merge.is_inside_file
        assert not merge.is_over
        monkeypatch.setattr(type(store._runs), "_due_merge", lambda runs, left: None)
        store._runs.compact_for(0)
        assert merge.is_over or not merge.is_inside_file


def test_every_commit_of_a_merge_holds_everything(tmp_path):
    attempts = Attempts(tmp_path)
    for _ in range(60):
        attempts.batch(300)
        attempts.check()


def test_an_attempt_goes_on_with_the_files_of_the_one_before(tmp_path):
    attempts = Attempts(tmp_path)
    before = until_under_way(attempts)
    attempts.batch()
    after = under_way(attempts)
    if after is not None:
        assert after[: len(before)] == before
        assert len(after) > len(before)
    attempts.check()


def test_a_batch_done_again_from_an_old_pointer(tmp_path):
    """Two attempts go on with the same merge; neither touches what the pointers name."""
    attempts = Attempts(tmp_path)
    until_under_way(attempts)
    pointer, model = attempts.pointer, {key: list(found) for key, found in attempts.model.items()}
    for _ in range(8):
        attempts.batch()
    attempts.check()
    attempts.pointer, attempts.model = pointer, model
    attempts.check()
    for _ in range(8):
        attempts.batch()
        attempts.check()


def test_an_attempt_that_fails_or_is_closed_leaves_the_merge_as_it_was(tmp_path):
    attempts = Attempts(tmp_path)
    files = until_under_way(attempts)
    before = set(os.listdir(tmp_path))
    model = {key: list(found) for key, found in attempts.model.items()}
    with attempts.open(attempt_id="closed") as store:
        attempts.write(store, 400)
        store._runs.compact_for(1000)
    assert set(os.listdir(tmp_path)) == before

    def fail(operation, path, offset, size):
        if operation == "append" and "commit-" in path:
            raise OSError(28, "No space left on device", path)

    store = attempts.open(attempt_id="failed")
    attempts.write(store, 400)
    set_fault_hook(fail)
    try:
        with pytest.raises(OSError, match="No space left"):
            store.commit()
    finally:
        set_fault_hook(None)
        store.close()
    assert set(os.listdir(tmp_path)) == before
    assert under_way(attempts) == files
    attempts.model = model
    attempts.check()


def test_files_of_a_merge_under_way_are_not_collected(tmp_path):
    attempts = Attempts(tmp_path, dataclasses.replace(OPTIONS, retained_batches=2))
    for _ in range(80):
        attempts.batch()
        for file in under_way(attempts) or ():
            assert (tmp_path / file.name).exists()
    attempts.check()
    assert len(os.listdir(tmp_path)) < 80, "what nobody needs is still there"


def test_a_merge_of_runs_that_are_not_there_is_refused(tmp_path):
    attempts = Attempts(tmp_path)
    until_under_way(attempts)
    with attempts.open() as store:
        partial = store._runs._merge.leave()
        wrong = dataclasses.replace(partial, runs=(*partial.runs, 999))
        with pytest.raises(CorruptionError, match="999"):
            store._runs._continued(wrong)
