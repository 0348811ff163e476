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
from typing import Protocol

from lsmstate.memory_budget import process_memory
from lsmstate.options import KIB

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
    """Works off jobs, slice by slice. ``standing`` is held while a slice is worked on."""

    def __init__(self) -> None:
        self.standing = threading.Lock()
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, job: Job) -> None:
        """Have a job worked off; start the thread if need be. Without one the job is not kept."""
        with self._changed:
            if self._thread is None and not self._stopped:
                self._start()
            if self._thread is not None:
                self._jobs.append(job)
                self._changed.notify()

    def stop(self) -> None:
        """End the thread after the slice it is at; what is left is its stores' to do."""
        with self._changed:
            self._stopped = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="lsmstate", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # Only its text: a record that is kept would keep the frames, and with them the job.
            _log.warning(
                "no background thread (%s): stores flush and merge by themselves", str(error)
            )
            return
        self._thread = thread

    def _run(self) -> None:
        while (job := self._next()) is not None:
            with process_memory().turns.turn(counted=False), self.standing:
                is_over = job.advance(SLICE_BYTES)
            if is_over:
                with self._changed:
                    self._jobs.remove(job)
            del job  # what it holds is its store's to give back

    def _next(self) -> Job | None:
        """The job to go on with, the urgent ones first; None if the thread is to end."""
        with self._changed:
            while not self._jobs and not self._stopped:
                if not self._changed.wait(IDLE_SECONDS) and not self._jobs:
                    break
            if self._stopped or not self._jobs:
                self._thread = None
                return None
            return next((job for job in self._jobs if job.is_urgent), self._jobs[0])


_worker = Worker()


def worker() -> Worker:
    """The one of this process."""
    return _worker


def _stop() -> None:
    _worker.stop()


def _before_fork() -> None:
    _worker.standing.acquire()


def _after_fork_in_parent() -> None:
    _worker.standing.release()


def _after_fork_in_child() -> None:
    global _worker
    _worker = Worker()


atexit.register(_stop)
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
