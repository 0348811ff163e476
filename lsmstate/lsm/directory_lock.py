"""One process owns the directory of a standalone store.

A POSIX record lock: it dies with its process, unlike ``flock``, which a forked child keeps alive.
Such locks do not exclude two owners within one process, so this module keeps its own list too.

It also goes, without a word, when *any* descriptor of LOCK is closed in the owner's process, as
after a copy of the directory. So whoever owns one asks, before it relies on the lock, whether it is
still held (``check_held``), and before it acknowledges anything whether nobody else was the owner
meanwhile (``check_untaken``): LOCK holds a text that no other opening writes.
"""

import fcntl
import gc
import os
import sys
import warnings
from pathlib import Path

from lsmstate.cython_ext.locks.directory_claim import Claim
from lsmstate.errors import StoreLockedError

_NAME = "LOCK"

#: Longer than what is in LOCK: a process id and what tells one opening from the others.
_TEXT_BYTES = 64

#: Real paths of directories, each with the process that took it (a forked child inherits the
#: table), and by which claim.
_claims: dict[tuple[str, int], int] = {}


_REOPEN = (
    "What had been acknowledged before is kept, this write is not acknowledged: close the store "
    "here, and open it again once nobody else has it open"
)


def check_unowned(directory: str) -> None:
    """StoreLockedError if a process has the store in this directory open. Changes nothing."""
    path = os.path.realpath(directory)
    holder = str(os.getpid())
    if (path, os.getpid()) not in _claims:
        try:
            file = os.open(Path(path) / _NAME, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            holder = _holder(file)
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

    #: Until the constructor, which may be interrupted, has come to it.
    _claim: Claim | None = None

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Process ids alone do not tell openings apart: containers have ids of their own.
        self._text = f"{os.getpid()} {os.urandom(8).hex()}\n".encode("ascii")
        claim = self._claim = Claim(_claims, os.path.realpath(directory))
        try:
            if not claim.take():
                gc.collect()  # it may be of a lock that nobody holds any more
                if not claim.take():
                    # Opening and closing the file once more would drop the lock that is held.
                    raise StoreLockedError(
                        f"{directory} is already open in this process ({os.getpid()}); "
                        "close it first"
                    )
            self._file = claim.open(os.path.join(directory, _NAME))
            self._lock()
        except BaseException:
            claim.give_up()  # and with the descriptor the lock, where the disk is full
            raise

    def _lock(self) -> None:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise StoreLockedError(
                f"{self._directory} is open in another process ({_holder(self._file)}); "
                "close it there first"
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, self._text, 0)

    def check_held(self) -> None:
        """Take the lock again if it was dropped. StoreLockedError if another process has, or had,
        the directory since. Cost: three system calls, 3 us."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise self._lost() from error
        try:
            self.check_untaken()
        except StoreLockedError:
            fcntl.lockf(self._file, fcntl.LOCK_UN)  # who comes next is not to be told of the other
            raise
        if not os.fstat(self._file).st_nlink:
            raise StoreLockedError(
                f"{self._directory}: the file {_NAME}, by which this process owns it, was removed, "
                f"so that others may have opened it; {_REOPEN}"
            )

    def check_untaken(self) -> None:
        """StoreLockedError if another process has become the owner since this one has. An owner
        says so before it reads anything, so what was written before this call it has read, or
        will. Cost: one system call, 1 us."""
        if os.pread(self._file, _TEXT_BYTES, 0) != self._text:
            raise self._lost()

    def _lost(self) -> StoreLockedError:
        is_named = os.pread(self._file, _TEXT_BYTES, 0) != self._text
        holder = _holder(self._file) if is_named else "unknown"
        return StoreLockedError(
            f"{self._directory} was opened by another process ({holder}) while it was open in this "
            f"one ({os.getpid()}): this process had closed a descriptor of the file {_NAME}, as a "
            f"copy of the directory does, and the system drops its lock on it then. {_REOPEN}"
        )

    def release(self) -> None:
        """Give the directory up. A second call, or one in a forked child, does nothing."""
        if self._claim is not None:
            self._claim.give_up()

    def __del__(self) -> None:
        if self._claim is not None and self._claim.is_held and not sys.is_finalizing():
            warnings.warn(
                f"the store in {self._directory} was never closed; use it by with",
                ResourceWarning,
                stacklevel=2,
            )


def _holder(file: int) -> str:
    """The process id that LOCK names."""
    text = os.pread(file, _TEXT_BYTES, 0).decode("ascii", "replace")
    return text.partition(" ")[0].strip() or "unknown"
