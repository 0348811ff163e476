"""One worker thread per process, which flushes, compacts and deletes replaced files for all stores.

- The worker only writes and deletes files. A store installs the results in its own thread, at its
  next write. What a reader sees therefore never changes during a read.
- A store that needs a result sooner continues the job itself instead of waiting. Jobs are thus done
  without the thread too: where none can be started, or after a fork.
- An error stays in the job, and the store raises it.
- The first job starts the thread, which ends when there were no jobs for a while. It is a daemon
  and holds nothing that must be released, so a process may leave by os._exit at any time. At an
  ordinary exit, and during a fork, it pauses between two slices.
"""

import atexit
import logging
import os
import threading
from _thread import start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from lsmstate.cython_ext.locks.locks import Standstill
from lsmstate.options import KIB
from lsmstate.process.memory_budget import process_memory

#: Bytes that a job processes at a time, a few milliseconds: nobody waits longer for the worker.
SLICE_BYTES = 512 * KIB
#: The thread ends after this time without jobs.
IDLE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Job(Protocol):
    """Work that any thread may continue, one thread at a time."""

    @property
    def is_urgent(self) -> bool:
        """Whether a writer may have to wait for it: it then comes before the other jobs."""
        ...

    def advance(self, max_bytes: int) -> bool:
        """Process about ``max_bytes``; return True when nothing is left to do: done, failed or
        abandoned. Raise nothing: the job keeps its error."""
        ...


class Worker:
    """Processes jobs, slice by slice. ``standing`` is held during a slice.

    Whoever submits a job may be interrupted anywhere, so nothing here is a lock of Python's own
    (``threading.Condition``): an interrupt between its steps would leave it taken, and the thread
    would wait forever.
    """

    def __init__(self) -> None:
        self.standing = threading.Lock()
        self.standstill = Standstill(self.standing)
        #: Number of the thread, if there is one. The thread gets no name: what ``threading`` makes
        #: for one stays forever.
        self.thread: int | None = None
        self._submitted: SimpleQueue[Job | None] = SimpleQueue()
        #: Number of the thread that holds ``_running``.
        self._jobs: list[Job] = []
        #: The thread holds it while it lives: if two are started, one ends at once.
        self._running = threading.Lock()
        self._stopped = False

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return self._submitted.empty() and not self._jobs

    @property
    def has_thread(self) -> bool:
        return self._running.locked()

    def submit(self, job: Job) -> None:
        """Have a job processed; start the thread if necessary. If that fails the job is dropped."""
        if self._stopped:
            return
        self._submitted.put(job)
        if not self.has_thread:
            self._start()

    def stop(self) -> None:
        """End the thread after its current slice; the stores do the rest."""
        self._stopped = True
        self._submitted.put(None)  # it may be waiting
        with self._running:
            self._jobs.clear()

    def _start(self) -> None:
        try:
            # Started in C: Thread.start waits on a condition, and an interrupt there becomes a
            # RuntimeError.
            start_new_thread(self._run, ())
        except RuntimeError as error:
            # Only the text of the error: a kept log record would keep the frames, and so the job.
            _log.warning(
                "no background thread (%s): stores flush and merge by themselves", str(error)
            )
            with suppress(Empty):
                while True:  # without waiting: another thread may do the same
                    self._submitted.get(block=False)

    def _run(self) -> None:
        # Start again if a job came after the last look and before the thread ended.
        while not self._stopped and not self.is_idle and self._running.acquire(blocking=False):
            try:
                self.thread = threading.get_ident()
                while (job := self._next()) is not None:
                    with process_memory().turns.turn(counted=False), self.standing:
                        is_over = job.advance(SLICE_BYTES)
                    if is_over:
                        self._jobs.remove(job)
                    del job  # its store releases what it holds
            finally:
                self.thread = None
                self._running.release()

    def _next(self) -> Job | None:
        """Return the next job, urgent ones first; None if the thread is to end."""
        with suppress(Empty):
            while not self._stopped:
                job = self._submitted.get(not self._jobs, IDLE_SECONDS)
                if job is not None:
                    self._jobs.append(job)
        if self._stopped or not self._jobs:
            return None
        return next((job for job in self._jobs if job.is_urgent), self._jobs[0])


_worker = Worker()


def worker() -> Worker:
    """Return the worker of this process."""
    return _worker


def _stop() -> None:
    _worker.stop()


def _before_fork() -> None:
    _worker.standstill.begin()


def _after_fork_in_parent() -> None:
    _worker.standstill.end()


def _after_fork_in_child() -> None:
    global _worker
    _worker = Worker()


atexit.register(_stop)
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
