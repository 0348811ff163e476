"""One process owns the directory of a standalone store.

A POSIX record lock: it dies with its process, unlike ``flock``, which a forked child keeps alive.
Such locks do not exclude two owners within one process, so this module keeps its own list too.
"""

import fcntl
import os
import sys
import warnings
import weakref
from pathlib import Path

from lsmstate.errors import StoreLockedError

_NAME = "LOCK"

#: Whose they are: real paths of directories, each with the process that took it (a forked child
#: inherits the table). Claimed by ``setdefault``, of which one thread alone sees its own object.
_owned: dict[tuple[str, int], object] = {}


def check_unowned(directory: str) -> None:
    """StoreLockedError if a process has the store in this directory open. Changes nothing."""
    path = os.path.realpath(directory)
    holder = str(os.getpid())
    if (path, os.getpid()) not in _owned:
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
    """Held from construction to ``release``. StoreLockedError names the process that holds it.

    One that nobody released and nobody holds any more is given up with a ResourceWarning."""

    def __init__(self, directory: str) -> None:
        claim = (os.path.realpath(directory), os.getpid())
        own = object()  # the table must not keep the lock itself alive
        if _owned.setdefault(claim, own) is not own:
            # Opening and closing the file once more would drop the lock that is held.
            raise StoreLockedError(
                f"{directory} is already open in this process ({os.getpid()}); close it first"
            )
        try:
            file = self._locked_file(directory)
        except BaseException:
            del _owned[claim]
            raise
        self._unheld = weakref.finalize(self, _give_up_unheld, claim, file)
        self._unheld.atexit = False

    def _locked_file(self, directory: str) -> int:
        file = os.open(Path(directory) / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise StoreLockedError(
                f"{directory} is open in another process ({holder}); close it there first"
            ) from error
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError:  # the disk is full; the lock goes with the descriptor
            os.close(file)
            raise
        return file

    def release(self) -> None:
        """Give the directory up. A second call, or one in a forked child, does nothing."""
        held = self._unheld.detach()
        if held is not None:
            _, _, (claim, file), _ = held
            _give_up(claim, file)


def _give_up(claim: tuple[str, int], file: int) -> None:
    if claim[1] == os.getpid():
        os.close(file)
        _owned.pop(claim, None)


def _give_up_unheld(claim: tuple[str, int], file: int) -> None:
    if claim[1] == os.getpid() and not sys.is_finalizing():
        _give_up(claim, file)
        warnings.warn(
            f"the store in {claim[0]} was never closed; use it by with", ResourceWarning, 2
        )
