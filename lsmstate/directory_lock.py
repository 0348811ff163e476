"""One process owns the directory of a standalone store.

A POSIX record lock: it dies with its process, unlike ``flock``, which a forked child keeps alive.
Such locks do not exclude two owners within one process, so this module keeps its own list too.
"""

import fcntl
import os
from pathlib import Path

from lsmstate.errors import StoreLockedError

_NAME = "LOCK"

#: Real paths of the directories this process owns, by the process that took them.
_owned: dict[str, int] = {}


def check_unowned(directory: str) -> None:
    """StoreLockedError if a process has the store in this directory open. Changes nothing."""
    path = os.path.realpath(directory)
    holder = str(os.getpid())
    if _owned.get(path) != os.getpid():
        try:
            file = os.open(Path(path) / _NAME, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):
            pass
        finally:
            os.close(file)
    raise StoreLockedError(f"{directory} is open in process {holder}; close it there first")


class DirectoryLock:
    """Held from construction to ``release``. StoreLockedError names the process that holds it."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.realpath(directory)
        if _owned.get(self._path) == os.getpid():
            # Opening and closing the file once more would drop the lock that is held.
            raise StoreLockedError(
                f"{directory} is already open in this process ({os.getpid()}); close it first"
            )
        self._file = os.open(Path(self._path) / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreLockedError(
                f"{directory} is open in another process ({holder}); close it there first"
            ) from error
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError:  # the disk is full; the lock goes with the descriptor
            os.close(self._file)
            raise
        self._process = os.getpid()
        _owned[self._path] = self._process

    def release(self) -> None:
        """Give the directory up. A second call, or one in a forked child, does nothing."""
        if self._process == os.getpid() and self._file >= 0:
            os.close(self._file)
            self._file = -1
            _owned.pop(self._path, None)
