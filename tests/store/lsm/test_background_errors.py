"""Errors of the background worker, interrupted waits for it, and stores closed meanwhile."""

import gc
import os
import threading

import pytest

from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.errors import StoreClosedError
from lsmstate.lsm import memtable_writes as write_steps
from lsmstate.lsm import write_path
from lsmstate.lsm.wal import APPEND
from lsmstate.process.background_worker import worker
from lsmstate.process.memory_budget import process_memory
from support.background_cases import (
    BATCH,
    all_of,
    append,
    append_until,
    batch,
    flush_of,
    no_worker,
    opened,
    values,
    wait_for,
)


@pytest.mark.parametrize("what", ["flush", "merge"])
def test_an_error_of_the_worker_is_raised_by_the_next_write(tmp_path, what):
    store = opened(tmp_path)

    def job():
        return flush_of(store) if what == "flush" else store._runs._merge

    with no_worker():
        count = append_until(store, lambda: job() is not None)
        under_way = job()

        def fail(operation, path, offset, size):
            if operation == "append" and threading.get_ident() == worker().thread:
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
        if operation == "append" and threading.get_ident() == worker().thread:
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

    def within(self, patience):
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return self.lock.within(patience)

    def __enter__(self):
        return self.lock.__enter__()

    def __exit__(self, *error):
        self.lock.__exit__(*error)


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
    with pytest.raises(StoreClosedError, match="failed half-way"):
        store.flush()
    store.close()
    assert not store.try_flush()
    with opened(tmp_path) as store:
        assert values(store) == all_of(3)
