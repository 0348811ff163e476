"""Guard of a store: who may use it, and how long a read stays valid."""

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Generic, Protocol, TypeVar

from lsmstate.cython_ext.locks.locks import StoreLock, Turns
from lsmstate.errors import CorruptionError, InvalidArgumentError, StoreClosedError


class Held(Protocol):
    """What a read holds for as long as somebody holds the read: files, memory."""

    def let_go(self) -> None:
        """Release it. The store is closed, so no step of the read follows."""
        ...


class Access(Protocol):
    """How a read uses its store."""

    def __call__(self) -> AbstractContextManager[None]:
        """Return the context of a step: it keeps writers out, and raises if the read is no longer
        valid."""
        ...

    def hold(self, held: Held) -> None:
        """Have this let go when the store is closed."""
        ...


#: Finds the file of the row that does not decode; None if it lies in no file.
FindDamage = Callable[[], CorruptionError | None]
T = TypeVar("T")

_COMMITTED = (
    "belongs to a committed attempt and takes no more writes; open a new attempt at the pointer "
    "that commit returned"
)


class StoreGuard:
    """Decides whether a store may be used.

    - Only the process that opened the store may use it, until it is closed.
    - An attempt's store takes writes until it is committed.
    - ``writes`` counts the writes, so that outdated probes are refused.
    - One thread at a time uses a store: another one waits until a call has ended (``calling``).
      When memory is short, another store's thread may flush its memtables
      (``memory_budget.relieve``).
    - ``lock`` is held while a store changes and while its memtables are read. It comes after
      ``calls`` in the order of locks (docs/design/memory-and-threads.md).
    """

    #: Reads that began since the last write, while there are any.
    _reads: "weakref.ref[ReadsUntilWrite] | None" = None

    def __init__(
        self,
        where: str,
        what: str = "store",
        find_damage: FindDamage = lambda: None,
        turns: Turns | None = None,
    ) -> None:
        """Make a guard.

        ``where`` and ``what`` (a store or a snapshot) are for messages. ``find_damage`` finds the
        file of a row that does not decode. ``turns`` are those of the process's memory.
        """
        self.lock = StoreLock(turns)
        #: Held by a thread for a whole call. Threads that wait for their turn hold it, so it is not
        #: the lock under which other threads flush.
        self.calls = self.lock if turns is None else StoreLock()
        self.writes = 0
        self.is_closed = False
        self._has_ended = False
        self.is_sealed = False
        self._name = f"{what} in {where}"
        self._where = where
        self._find_damage = find_damage
        self._process = os.getpid()
        self._sealed = ""
        #: What reads hold, by its number. A dictionary, since other threads may begin reads.
        self._held: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()

    def whole_or_nothing(self) -> AbstractContextManager[None]:
        """Return the context of a change. After an error inside it, the store refuses everything
        but ``close``, because half of a batch may have been written."""
        return self.lock.changing()

    def calling(self) -> AbstractContextManager[None]:
        """Return the context of a whole call, which may read and then write.

        Other threads' calls wait until it ends, and are then refused if it closed the store.
        """
        self.check_readable()  # a forked child would wait for threads that it does not have
        return self.calls.reading(self.check_readable, self._explained)

    @property
    def is_open_here(self) -> bool:
        """Whether this process has opened the store and not closed it."""
        return not self.is_closed and os.getpid() == self._process

    @property
    def is_usable(self) -> bool:
        """Whether ``check_readable`` would pass."""
        return self.is_open_here and not self.lock.failure

    def check_readable(self) -> None:
        if self.is_closed:
            raise StoreClosedError(f"the {self._name} is closed; open it again")
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"the {self._name} was opened by process {self._process}, and process "
                f"{os.getpid()} inherited it by a fork; open it in the process that uses it"
            )
        if self.lock.failure:
            raise StoreClosedError(
                f"a change of the {self._name} failed half-way ({self.lock.failure}); "
                "close it and open it again"
            )

    def check_writable(self) -> None:
        self.check_readable()
        if self.is_sealed:
            raise StoreClosedError(f"the {self._name} {self._sealed}")

    def reading(self, check: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Return the context of a read, which ``check`` may refuse; default: ``check_readable``."""
        if not self.is_open_here:
            self.check_readable()  # a forked child would wait for threads that it does not have
        return self.lock.reading(check or self.check_readable, self._explained)

    def _explained(self, error: CorruptionError) -> CorruptionError:
        """Find the file of a damaged row, which was decoded together with rows of other files."""
        return self._find_damage() or CorruptionError(str(error), self._where)

    def check_probe(self, writes: int) -> None:
        """Raise InvalidArgumentError if the store was written to since ``writes``."""
        self.check_readable()
        if writes != self.writes:
            raise InvalidArgumentError(
                f"the {self._name} was written to or flushed since this probe or iterator began; "
                "probe or iterate again"
            )

    def until_next_write(self) -> Access:
        """Return the access of a read that begins now; it is valid until the next write."""
        reads = self._reads() if self._reads is not None else None
        if reads is None or reads.writes != self.writes:
            reads = ReadsUntilWrite(self)
            self._reads = weakref.ref(reads)
        return reads

    def hold(self, held: Held) -> None:
        """Have this let go when the store is closed."""
        self._held[id(held)] = held
        if self.is_closed:
            held.let_go()  # another thread has just closed the store

    def _let_go(self) -> None:
        """Release what reads hold that nobody has dropped: a file that stays open keeps its disk
        after it was deleted."""
        for reference in self._held.valuerefs():
            held = reference()
            if held is not None:
                held.let_go()
        self._held.clear()

    @property
    def is_being_read(self) -> bool:
        """Whether a valid probe or iterator exists."""
        reads = self._reads() if self._reads is not None else None
        return reads is not None and reads.writes == self.writes

    def seal(self, why: str = _COMMITTED) -> None:
        """Refuse writes from now on: the attempt was committed, or the store is read-only."""
        self._sealed = why
        self.is_sealed = True

    @property
    def is_committed(self) -> bool:
        """Whether this is the store of an attempt that was committed."""
        return self.is_sealed and self._sealed == _COMMITTED

    def close(self, *steps: Callable[[], object]) -> None:
        """Refuse all use from now on, and release everything once, after the call of another
        thread has ended. What reads hold comes first.

        - All steps are done in order, even after an error. The first error is then raised, and
          another call does nothing.
        - After an interrupt another call does all steps again.
        - In a forked child nothing is done.
        """
        if os.getpid() != self._process:
            self.is_closed = True
            return
        with self.calls, self.lock.out_of_turn():
            self.is_closed = True
            if self._has_ended:
                return
            try:
                do_all(self._let_go, *steps)
            except Exception:
                self._has_ended = True
                raise
            self._has_ended = True


class ReadsUntilWrite:
    """The access that all reads between two writes share; it lives as long as one of them."""

    def __init__(self, guard: StoreGuard) -> None:
        self.writes = guard.writes
        self._guard = guard
        self._check = partial(guard.check_probe, guard.writes)

    def __call__(self) -> AbstractContextManager[None]:
        return self._guard.reading(self._check)

    def hold(self, held: Held) -> None:
        """Have this let go when the store is closed."""
        self._guard.hold(held)


class Stepwise(Iterator[T], Generic[T]):
    """The pieces of a read, each read inside its access. Nobody else may refer to ``pieces``, which
    are let go when the store is closed."""

    def __init__(self, access: Access, pieces: Iterator[T]) -> None:
        self._access: Access | None = access
        self._pieces = pieces
        access.hold(self)

    def __next__(self) -> T:
        if self._access is None:
            raise StopIteration
        try:
            with self._access():
                piece = next(self._pieces, None)
        except BaseException:
            self._end()
            raise
        if piece is None:
            self._end()
            raise StopIteration
        return piece

    def _end(self) -> None:
        """Hold nothing any more, not even the access, which may be the last to hold a snapshot."""
        self._access = None
        self.let_go()

    def let_go(self) -> None:
        """Release what is read."""
        self._pieces = iter(())


def do_all(*steps: Callable[[], object]) -> None:
    """Do all steps, also after an error, and then raise the first error.

    An interrupt is raised instead if there was one. The others are notes of what is raised.
    """
    errors: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if not errors:
        return
    first = next((e for e in errors if not isinstance(e, Exception)), errors[0])
    for other in errors:
        if other is not first:
            first.add_note(f"then: {type(other).__name__}: {other}")
    raise first
