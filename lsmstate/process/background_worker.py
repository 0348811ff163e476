"""One worker thread per process, for the flushes and merges of all its stores, and for deleting
the files that those replaced.

The worker only writes files and deletes them. Its stores install what is done, in their own thread
and at their next write, so what a reader sees never changes under its hands. A store that needs a
result sooner goes on with the job itself instead of waiting; so nothing depends on the thread:
where none can be started, or after a fork, the jobs are done all the same. An error stays in the
job, and the store raises it.

The thread is started by the first job and ends when there have been none for a while. It is a
daemon and holds nothing that has to be given back: a process may leave by os._exit at any time.
At an ordinary exit, and while the process is being forked, it stands still between two slices.
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

#: Bytes a job goes on for at a time, a few milliseconds: nobody waits for the worker longer.
SLICE_BYTES = 512 * KIB
#: The thread ends when there was nothing to do for so long.
IDLE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Job(Protocol):
    """Work that any thread may go on with, one at a time."""

    @property
    def is_urgent(self) -> bool:
        """Whether a writer may have to wait for it: it comes before all that are not."""
        ...

    def advance(self, max_bytes: int) -> bool:
        """Go on for about so many bytes; True when there is nothing left to do, be it done,
        failed or abandoned. Raises nothing: the error is the job's."""
        ...


class Worker:
    """Works off jobs, slice by slice. ``standing`` is held while a slice is worked on.

    Whoever submits a job may be interrupted anywhere, so nothing here is a lock of Python's own
    (``threading.Condition``): an interrupt between its steps would leave it taken, and the thread
    waiting for it for ever."""

    def __init__(self) -> None:
        self.standing = threading.Lock()
        self.standstill = Standstill(self.standing)
        #: Its number, if there is one: a name of its own it gets nowhere, since what
        #: ``threading`` makes for that stays there for good.
        self.thread: int | None = None
        self._submitted: SimpleQueue[Job | None] = SimpleQueue()
        #: Of the thread that has ``_running``.
        self._jobs: list[Job] = []
        #: Held by the thread as long as there is one: of two that were started one ends at once.
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
        """Have a job worked off; start the thread if need be. Without one the job is not kept."""
        if self._stopped:
            return
        self._submitted.put(job)
        if not self.has_thread:
            self._start()

    def stop(self) -> None:
        """End the thread after the slice it is at; what is left is its stores' to do."""
        self._stopped = True
        self._submitted.put(None)  # it may be waiting
        with self._running:
            self._jobs.clear()

    def _start(self) -> None:
        try:
            # In C: Thread.start waits on a condition, of which an interrupt makes a RuntimeError.
            start_new_thread(self._run, ())
        except RuntimeError as error:
            # Only its text: a record that is kept would keep the frames, and with them the job.
            _log.warning(
                "no background thread (%s): stores flush and merge by themselves", str(error)
            )
            with suppress(Empty):
                while True:  # without waiting: another thread may be at it, too
                    self._submitted.get(block=False)

    def _run(self) -> None:
        # Again, if a job came after the last look and before the thread was not there any more.
        while not self._stopped and not self.is_idle and self._running.acquire(blocking=False):
            try:
                self.thread = threading.get_ident()
                while (job := self._next()) is not None:
                    with process_memory().turns.turn(counted=False), self.standing:
                        is_over = job.advance(SLICE_BYTES)
                    if is_over:
                        self._jobs.remove(job)
                    del job  # what it holds is its store's to give back
            finally:
                self.thread = None
                self._running.release()

    def _next(self) -> Job | None:
        """The job to go on with, the urgent ones first; None if the thread is to end."""
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
    """The one of this process."""
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
