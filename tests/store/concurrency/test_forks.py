"""Processes that fork in the middle of something: what a child finds held, what is interrupted."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from lsmstate.errors import StoreClosedError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.process.background_worker import Worker, worker
from lsmstate.remote import file_cache
from lsmstate.remote.file_cache import FileCache
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
STREAM = StreamSchema("s", KEY, KEY)
KEYS = pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], schema=KEY)
CALLS = {
    "append": lambda store: store.append("s", KEYS, KEYS),
    "retract": lambda store: store.retract("s", KEYS, KEYS),
    "put": lambda store: store.put("s", KEYS, KEYS),
    "delete": lambda store: store.delete("s", KEYS),
    "delete_range": lambda store: store.delete_range("s"),
    "probe": lambda store: store.probe("s", KEYS).counts,
    "iterate": lambda store: list(store.iterate("s")),
    "snapshot": lambda store: store.snapshot(),
    "flush": lambda store: store.flush(),
    "compact": lambda store: store.compact(),
    "commit": lambda store: store.commit(),
    "checkpoint": lambda store: store.checkpoint("named"),
    "checkpoints": lambda store: list(store.checkpoints),
    "stats": lambda store: store.stats(),
    "close": lambda store: store.close(),
}


def child_of_a_thread_that_holds(lock, work):
    """The status of a forked child that does ``work``, ended by a signal after ten seconds, while
    another thread of the parent has the lock."""
    held, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            over.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        try:
            assert held.wait(20)
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(10)
                try:
                    os._exit(work())
                finally:
                    os._exit(99)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            over.set()


@pytest.mark.parametrize("call", CALLS)
def test_a_child_is_refused_a_store_that_another_thread_was_using(tmp_path, call):
    def work():
        try:
            CALLS[call](store)
        except StoreClosedError as error:
            return 7 if "by a fork" in str(error) else 8
        return 9

    options = Options(memory_bytes=8 * MIB, sync="never", background=False)
    with LsmStore.open(str(tmp_path), [STREAM], options=options) as store:
        store.append("s", KEYS, KEYS)
        status = child_of_a_thread_that_holds(store._guard.lock, work)
        assert status == (9 if call == "close" else 7)
        assert store.contains("s", [1])


def test_a_child_has_the_file_cache_while_a_thread_of_its_parent_changes_the_books(tmp_path):
    path = str(tmp_path / "cache")
    FileCache(path, 16 * MIB)

    def work():
        FileCache(path, 16 * MIB).bucket_directory("state", "bucket")
        return 7

    assert child_of_a_thread_that_holds(file_cache._process_lock, work) == 7


class SlowJob:
    is_urgent = False

    def __init__(self, most_slices=3):
        self.began, self.slices, self.most_slices = threading.Event(), 0, most_slices

    def advance(self, max_bytes):
        del max_bytes
        self.slices += 1
        self.began.set()
        time.sleep(0.4)
        return self.slices >= self.most_slices


def test_a_worker_stands_still_though_a_signal_interrupts_the_fork(monkeypatch):
    """What a handler raises then, Python reports and forgets."""

    def interrupt(*_):
        raise KeyboardInterrupt

    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda found: reported.append(found.exc_type))
    monkeypatch.setattr("lsmstate.process.background_worker._worker", Worker())
    # So many that it is not done before the fork, however long this process waits for a processor.
    job, before = SlowJob(50), signal.signal(signal.SIGALRM, interrupt)
    try:
        worker().submit(job)
        assert job.began.wait(20)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        child = os.fork()
        if child == 0:
            os._exit(job.slices)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    slices = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert slices < 50
    job.most_slices = slices + 2
    assert reported == [KeyboardInterrupt]
    assert worker().has_thread
    end = time.monotonic() + 20
    while not worker().is_idle and time.monotonic() < end:
        time.sleep(0.01)
    assert worker().is_idle
    assert job.slices >= slices + 2
    worker().stop()
    assert not worker().has_thread


def test_no_thread_that_has_ended_is_listed(monkeypatch):
    monkeypatch.setattr("lsmstate.process.background_worker.IDLE_SECONDS", 0.01)
    own = Worker()
    listed = threading.enumerate()
    for _ in range(3):
        job = SlowJob()
        own.submit(job)
        assert job.began.wait(20)
    own.stop()
    assert threading.enumerate() == listed
