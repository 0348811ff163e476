"""pyspark's daemon, one of whose workers meets its fate at a file operation of ours.

Spark starts it in place of its own (spark.python.daemon.module). LSMSTATE_FAULT says what happens:
``kill K`` kills the whole session at the K-th operation of a worker, ``stop K`` stops that worker
alone, until somebody sends SIGCONT, and takes it out of the session. LSMSTATE_FAULT_MARK names a
file that is made just before, with the worker's process id in it, so that it happens once.
``full K``: from the K-th operation of a worker on the disk is full, for all of them.
``slow MS``: every operation takes so many milliseconds more, as on a machine whose disk fails.
"""

import errno
import os
import signal
import time
from pathlib import Path

import psutil
from pyspark.daemon import manager

from lsmstate.cython_ext.base.file import set_fault_hook


class Fate:
    """A fault hook; the workers are forked with it, and each counts for itself."""

    def __init__(self, fault: str, mark: Path) -> None:
        self._kind, at = fault.split()
        self._at = int(at)
        self._mark = mark
        self._seen = 0

    def __call__(self, operation: str, path: str, offset: int, size: int) -> None:
        self._seen += 1
        if self._kind == "slow":
            time.sleep(self._at / 1000)
        elif self._kind == "full":
            if self._seen >= self._at or self._mark.exists():
                self._mark.touch()
                if operation in ("create", "append"):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        elif self._seen >= self._at and self._is_first():
            if self._kind == "kill":
                kill(session(os.getsid(0)))
            else:
                os.setsid()  # or it would be continued, and hung up on, as the daemon ends
                os.kill(os.getpid(), signal.SIGSTOP)

    def _is_first(self) -> bool:
        self._at = 1 << 62
        hidden = self._mark.with_name(f".{os.getpid()}")
        hidden.write_text(str(os.getpid()))
        try:
            os.link(hidden, self._mark)
        except FileExistsError:
            return False
        return True


def session(number: int) -> list[psutil.Process]:
    """All processes of a session: pyspark's daemon has a process group of its own."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        try:
            if os.getsid(process.pid) == number:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def kill(processes: list[psutil.Process]) -> int:
    """kill -9, this process last; how many there were."""
    processes = sorted(processes, key=lambda process: process.pid == os.getpid())
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return len(processes)


if __name__ == "__main__":
    if os.environ.get("LSMSTATE_WORKER") == "state" and os.environ.get("LSMSTATE_FAULT"):
        mark = Path(os.environ["LSMSTATE_FAULT_MARK"])
        set_fault_hook(Fate(os.environ["LSMSTATE_FAULT"], mark))
    manager()
