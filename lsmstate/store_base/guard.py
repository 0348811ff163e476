"""Whether a store may be used, by whom, and until when what was read of it holds."""

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from lsmstate.cython_ext.locks.locks import StoreLock, Turns
from lsmstate.errors import CorruptionError, InvalidArgumentError, StoreClosedError

#: Around each step of a read: keeps the writers out, and raises if the read may not go on.
Access = Callable[[], AbstractContextManager[None]]
#: Looks for the row that does not decode; None where it lies in no file.
FindDamage = Callable[[], CorruptionError | None]
T = TypeVar("T")

_COMMITTED = (
    "is an attempt's, was committed and takes no more writes; open a new attempt at the pointer "
    "that commit returned"
)


class StoreGuard:
    """Whether a store may be used: by the process that opened it, until it is closed; written to
    until its attempt was committed. ``writes`` counts the writes, so that old probes are refused.

    A store is used by one thread at a time, but another store's thread may flush its memtables
    when memory is short (``memory_budget.relieve``). ``lock`` is held while a store changes and
    while its memtables are read; it comes first in the order of locks
    (docs/design/memory-and-threads.md).
    """

    #: The reads that began since the last write, as long as there are any.
    _reads: "weakref.ref[ReadsUntilWrite] | None" = None

    def __init__(
        self,
        where: str,
        what: str = "store",
        find_damage: FindDamage = lambda: None,
        turns: Turns | None = None,
    ) -> None:
        """``where`` and ``what`` (a store, or a snapshot of one) are for messages; ``find_damage``
        looks for the file of a row that does not decode; ``turns``: of its process's memory."""
        self.lock = StoreLock(turns)
        self.writes = 0
        self.is_closed = False
        self._has_ended = False
        self.is_sealed = False
        self._name = f"{what} in {where}"
        self._where = where
        self._find_damage = find_damage
        self._process = os.getpid()
        self._sealed = ""

    def whole_or_nothing(self) -> AbstractContextManager[None]:
        """Around a change: an error in its middle leaves a store that refuses everything but
        ``close``, because half of a batch may be in it."""
        return self.lock.changing()

    @property
    def is_open_here(self) -> bool:
        """Whether this process opened it and has not closed it."""
        return not self.is_closed and os.getpid() == self._process

    @property
    def is_usable(self) -> bool:
        """Whether ``check_readable`` lets it pass."""
        return self.is_open_here and not self.lock.failure

    def check_readable(self) -> None:
        if self.is_closed:
            raise StoreClosedError(f"the {self._name} is closed; open it again")
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"the {self._name} was opened by process {self._process} and inherited "
                f"over a fork by {os.getpid()}; open it in the process that uses it"
            )
        if self.lock.failure:
            raise StoreClosedError(
                f"the {self._name} failed in the middle of a change ({self.lock.failure}); "
                "close it and open it again"
            )

    def check_writable(self) -> None:
        self.check_readable()
        if self.is_sealed:
            raise StoreClosedError(f"the {self._name} {self._sealed}")

    def reading(self, check: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Around reading from the store, which ``check`` may refuse (``check_readable`` does)."""
        if not self.is_open_here:
            self.check_readable()  # or it would wait for threads that a forked child has not
        return self.lock.reading(check or self.check_readable, self._explained)

    def _explained(self, error: CorruptionError) -> CorruptionError:
        """Of a row, that was decoded together with rows of other files."""
        return self._find_damage() or CorruptionError(str(error), self._where)

    def check_probe(self, writes: int) -> None:
        """InvalidArgumentError if the store was written to since ``writes``."""
        self.check_readable()
        if writes != self.writes:
            raise InvalidArgumentError(
                f"the {self._name} was written to or flushed since this probe or iterator began; "
                "probe or iterate again"
            )

    def until_next_write(self) -> Access:
        """How a read that begins now gets at the store, as long as nothing is written."""
        reads = self._reads() if self._reads is not None else None
        if reads is None or reads.writes != self.writes:
            reads = ReadsUntilWrite(self)
            self._reads = weakref.ref(reads)
        return reads

    @property
    def is_being_read(self) -> bool:
        """Whether someone holds a probe or an iterator that is still valid."""
        reads = self._reads() if self._reads is not None else None
        return reads is not None and reads.writes == self.writes

    def seal(self, why: str = _COMMITTED) -> None:
        """No more writes: the attempt has been committed, or the store is only read."""
        self._sealed = why
        self.is_sealed = True

    @property
    def is_committed(self) -> bool:
        """Whether it is an attempt's, and was committed."""
        return self.is_sealed and self._sealed == _COMMITTED

    def close(self) -> bool:
        """No more use. Whether there is something to give up: in the process that opened the store,
        until ``end`` was called, as giving up may be interrupted, and is gone on with then."""
        self.is_closed = True
        return not self._has_ended and os.getpid() == self._process

    def end(self) -> None:
        """All was given up."""
        self._has_ended = True


class ReadsUntilWrite:
    """The access of all reads that began between two writes; there as long as one of them is."""

    def __init__(self, guard: StoreGuard) -> None:
        self.writes = guard.writes
        self._guard = guard
        self._check = partial(guard.check_probe, guard.writes)

    def __call__(self) -> AbstractContextManager[None]:
        return self._guard.reading(self._check)


def read_stepwise(access: Access, pieces: Iterator[T]) -> Iterator[T]:
    """The pieces, each read inside ``access``."""
    while True:
        with access():
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece
