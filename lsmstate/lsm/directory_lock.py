"""Lock by which one process owns the directory of a standalone store.

- It is a POSIX record lock, which ends with its process. A ``flock`` would live on in a forked
  child.
- Such locks do not exclude two owners within one process, so this module also keeps a list.
- The lock is silently lost when *any* descriptor of LOCK is closed in the owner's process, as by a
  copy of the directory. An owner therefore checks that it still holds the lock before relying on it
  (``check_held``). It checks that nobody else was the owner meanwhile before acknowledging anything
  (``check_untaken``): LOCK holds a text that no other opening writes.
"""

import fcntl
import gc
import os
import sys
import warnings
from pathlib import Path

from lsmstate.cython_ext.locks.directory_claim import Claim
from lsmstate.errors import StoreLockedError
from lsmstate.process.whole_writes import write_at

_NAME = "LOCK"

#: More than the content of LOCK: a process id, and what distinguishes one opening from the others.
_TEXT_BYTES = 64

#: Claims by real path of the directory, each with its process (a forked child inherits the table).
_claims: dict[tuple[str, int], int] = {}


_REOPEN = (
    "Acknowledged writes are kept; this write is not acknowledged. Close the store here, and open "
    "it again when no other process has it open"
)


def check_unowned(directory: str) -> None:
    """Raise StoreLockedError if a process has the store in this directory open.
    Nothing is changed."""
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
    """The lock, held from construction to ``release``. StoreLockedError names the process that
    holds it.

    A lock that nobody released and nobody refers to is released with a ResourceWarning.
    """

    #: Until the constructor, which may be interrupted, sets it.
    _claim: Claim | None = None

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Process ids alone do not distinguish openings: containers have ids of their own.
        self._text = f"{os.getpid()} {os.urandom(8).hex()}\n".encode("ascii")
        claim = self._claim = Claim(_claims, os.path.realpath(directory))
        try:
            if not claim.take():
                gc.collect()  # the claim may belong to an unreachable lock
                if not claim.take():
                    # Opening and closing the file again would drop the lock.
                    raise StoreLockedError(
                        f"{directory} is already open in this process ({os.getpid()}); "
                        "close it first"
                    )
            self._file = claim.open(os.path.join(directory, _NAME))
            self._lock()
        except BaseException:
            claim.give_up()  # releases descriptor and lock if the disk is full
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
        write_at(self._file, self._text, 0)

    def check_held(self) -> None:
        """Take the lock again if it was dropped.

        StoreLockedError: another process has, or had, the directory since. Cost: three system
        calls, 3 us.
        """
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise self._lost() from error
        try:
            self.check_untaken()
        except StoreLockedError:
            fcntl.lockf(self._file, fcntl.LOCK_UN)  # the next owner is not told of this one
            raise
        if not os.fstat(self._file).st_nlink:
            raise StoreLockedError(
                f"{self._directory}: the file {_NAME}, which marks this process as the owner, was "
                f"removed, so another process may have opened the store. {_REOPEN}"
            )

    def check_untaken(self) -> None:
        """Raise StoreLockedError if another process has become the owner meanwhile.

        An owner marks the directory before it reads anything. It has therefore read, or will read,
        whatever was written before this call. Cost: one system call, 1 us.
        """
        is_same = os.pread(self._file, _TEXT_BYTES, 0) == self._text
        if not is_same and _text_in(self._file) != self._text:
            raise self._lost()

    def _lost(self) -> StoreLockedError:
        is_named = _text_in(self._file) != self._text
        holder = _holder(self._file) if is_named else "unknown"
        return StoreLockedError(
            f"{self._directory} was opened by another process ({holder}) while it was open in this "
            f"one ({os.getpid()}). This process had lost its lock, because it closed a descriptor "
            f"of the file {_NAME}, as copying the directory does. {_REOPEN}"
        )

    def release(self) -> None:
        """Release the directory. A second call, or one in a forked child, does nothing."""
        if self._claim is not None:
            self._claim.give_up()

    def __del__(self) -> None:
        if self._claim is not None and self._claim.is_held and not sys.is_finalizing():
            warnings.warn(
                f"the store in {self._directory} was never closed; use it in a with statement",
                ResourceWarning,
                stacklevel=2,
            )


def _text_in(file: int) -> bytes:
    """What LOCK holds. The system may read less at a time than it is asked for."""
    text = b""
    while len(text) < _TEXT_BYTES and (part := os.pread(file, _TEXT_BYTES - len(text), len(text))):
        text += part
    return text


def _holder(file: int) -> str:
    """Return the process id that LOCK names."""
    text = _text_in(file).decode("ascii", "replace")
    return text.partition(" ")[0].strip() or "unknown"
