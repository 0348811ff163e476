"""Locks of stores and jobs: fair locks, and turns.

- A write, a flush or a merge of large rows (``Budget.large_bytes``) holds several times the largest
  row, up to three quarters of the cap. Once there are large rows, threads therefore take turns: one
  write, one step of a read, one slice of a flush or merge in the process at a time. Until then a
  turn costs one check of a flag.
- The module is compiled, because Python checks for signals between its own steps: an exception of a
  handler there (KeyboardInterrupt) would leave a lock that was just acquired without an owner.
- For the same reason they are used by ``with``, never inside a generator
  (``contextlib.contextmanager``): a generator that an interrupt suspends ends with the traceback,
  which a shell keeps.
"""

import threading
import time

cimport cython

from lsmstate.cython_ext.memory.budget cimport Budget

from lsmstate.cython_ext.errors import CorruptionError

cdef object _ident = threading.get_ident
cdef object _now = time.monotonic
cdef object _sleep = time.sleep


@cython.final
cdef class FairLock:
    """A lock that two competing threads get in turn. Otherwise a thread that releases it and asks
    again at once, as the worker does between slices, would beat one that has to wake up."""

    def __cinit__(self):
        self._next = threading.Lock()
        self._held = threading.Lock()

    def acquire(self, patience=None) -> bool:
        """Wait for the lock, at most so many seconds; return False if others held
        it all the time."""
        cdef double end
        cdef bint has_it = True
        if patience is None:
            self._next.acquire()
        else:
            end = _now() + patience
            if not self._next.acquire(True, patience):
                return False
        try:
            if patience is None:
                self._held.acquire()
            else:
                has_it = self._held.acquire(True, max(0.0, end - <double> _now()))
        finally:
            self._next.release()
        return has_it

    def release(self) -> None:
        self._held.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_) -> None:
        self._held.release()

    def within(self, patience):
        """Return a context that tells whether the lock was acquired in so many seconds."""
        return Within(self, patience)


@cython.final
cdef class Standstill:
    """Pauses work under a lock while the process is being forked. The interpreter reports what a
    signal handler raises meanwhile, and forks anyway."""

    def __init__(self, lock):
        self._lock = lock

    def begin(self) -> None:
        """Wait for the lock despite interrupts, which are raised once it is held."""
        cdef object interrupted = None
        while True:
            try:
                self._lock.acquire()
                break
            except BaseException as error:
                interrupted = error
        self._is_held = True
        if interrupted is not None:
            raise interrupted

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()


@cython.final
cdef class Within:
    """The context of FairLock.within."""

    cdef FairLock _lock
    cdef object _patience
    cdef bint _has_it

    def __init__(self, FairLock lock not None, patience):
        self._lock = lock
        self._patience = patience

    def __enter__(self) -> bool:
        self._has_it = self._lock.acquire(self._patience)
        return self._has_it

    def __exit__(self, *_) -> None:
        if self._has_it:
            self._lock._held.release()


@cython.final
cdef class Turns:
    """Who may use much memory now, in one process. A thread that has its turn may take it again."""

    def __init__(self, Budget budget not None):
        self._budget = budget
        self.forget()

    def forget(self) -> None:
        """Forget all turns in a forked child, where the other threads do not exist."""
        self._lock = FairLock()
        self._thread = None
        self._depth = 0
        self._waiting = set()

    @property
    def are_taken(self) -> bool:
        """Whether there are large rows."""
        return self._budget.has_large_rows

    @property
    def are_waited_for(self) -> bool:
        """Whether threads wait for their turn that may release memory: not the worker, nor one that
        passed its turn on."""
        return bool(self._waiting)

    cdef bint _is_own(self):
        return self._thread is not None and self._thread == _ident()

    cdef bint _take(self, bint waiting, bint counted):
        cdef object thread = _ident()
        cdef bint has_it
        if self._thread is None or self._thread != thread:
            if counted:
                self._waiting.add(thread)
            try:
                has_it = self._lock.acquire(None if waiting else 0.0)
            finally:
                self._waiting.discard(thread)
            if not has_it:
                return False
            self._thread = thread
        self._depth += 1
        return True

    cdef int _give_back(self) except -1:
        assert self._is_own(), "a turn is given back by the thread that has it"
        self._depth -= 1
        if not self._depth:
            self._thread = None
            self._lock._held.release()
        return 0

    def turn(self, *, bint counted=True, then=None):
        """Return the context of a turn, if turns are taken when it begins, or this thread has one.
        ``counted``: see are_waited_for. ``then`` is called inside the turn after success."""
        return Turn(self, counted, then)

    def pass_on(self, double seconds=0.0) -> None:
        """Let waiting threads go first, if this thread has the turn, and sleep meanwhile."""
        with self.given_up():
            if seconds:
                _sleep(seconds)

    def given_up(self):
        """Return a context without the turn, if this thread has it."""
        return GivenUp(self)


@cython.final
cdef class Turn:
    """The context of Turns.turn."""

    cdef Turns _turns
    cdef bint _counted
    cdef object _then
    cdef bint _has_it

    def __init__(self, Turns turns not None, bint counted, then):
        self._turns = turns
        self._counted = counted
        self._then = then

    def __enter__(self) -> None:
        if self._turns._is_own() or self._turns.are_taken:
            self._has_it = self._turns._take(True, self._counted)

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None and self._then is not None:
                self._then()
        finally:
            if self._has_it:
                self._turns._give_back()


@cython.final
cdef class GivenUp:
    """The context of Turns.given_up."""

    cdef Turns _turns
    cdef int _depth

    def __init__(self, Turns turns not None):
        self._turns = turns

    def __enter__(self) -> None:
        if self._turns._is_own():
            self._depth = self._turns._depth
            self._turns._depth = 0
            self._turns._thread = None
            self._turns._lock._held.release()

    def __exit__(self, *_) -> None:
        cdef object interrupted = None
        if not self._depth:
            return
        while True:
            try:
                self._turns._lock.acquire()
                break
            except BaseException as error:  # what is around this gives the turn back: it comes first
                interrupted = error
        self._turns._thread = _ident()
        self._turns._depth = self._depth
        if interrupted is not None:
            raise interrupted


@cython.final
cdef class StoreLock:
    """The reentrant lock of a store. A thread without it waits for its turn first: meanwhile
    another thread may hold the lock, to flush the memtables."""

    def __init__(self, Turns turns=None):
        self._turns = turns
        self._lock = threading.Lock()
        self._thread = None
        self.failure = ""

    @property
    def is_held_elsewhere(self) -> bool:
        """Whether another thread holds the lock."""
        return self._thread is not None and self._thread != _ident()

    cdef bint _acquire(self, bint waiting, bint in_turn):
        cdef object thread = _ident()
        cdef bint has_turn = False
        cdef bint has_it = False
        if self._thread is not None and self._thread == thread:
            self._depth += 1
            return True
        if in_turn and self._turns is not None and self._turns.are_taken:
            if not self._turns._take(waiting, True):
                return False
            has_turn = True
        try:
            has_it = self._lock.acquire(waiting)
        finally:
            if has_turn and not has_it:
                self._turns._give_back()
        if has_it:
            self._thread = thread
            self._depth = 1
            self._has_turn = has_turn
        return has_it

    cdef int _release(self) except -1:
        cdef bint has_turn = self._has_turn
        assert not self.is_held_elsewhere, "a lock is released by the thread that has it"
        self._depth -= 1
        if not self._depth:
            self._thread = None
            self._lock.release()
            if has_turn:
                self._turns._give_back()
        return 0

    def __enter__(self) -> None:
        self._acquire(True, True)

    def __exit__(self, *_) -> None:
        self._release()

    def changing(self):
        """Return the context of a change: an error that ends it is the store's ``failure`` from
        then on."""
        return Changing(self)

    def reading(self, check, explained):
        """Return the context of a read. ``check`` is called once the lock is held, and may raise.
        For damage in an unknown file, ``explained(error)`` is raised."""
        return Reading(self, check, explained)

    def tried(self):
        """Return a context that tells whether the lock and a turn were free."""
        return Held(self, False, True)

    def out_of_turn(self):
        """Return the context of closing the store. The garbage collector may close it at any time,
        when waiting for a turn could be a deadlock."""
        return Held(self, True, False)


@cython.final
cdef class Held:
    """The lock of a store in StoreLock.tried and out_of_turn."""

    cdef StoreLock _lock
    cdef bint _waiting
    cdef bint _in_turn
    cdef bint _has_it

    def __init__(self, StoreLock lock not None, bint waiting, bint in_turn):
        self._lock = lock
        self._waiting = waiting
        self._in_turn = in_turn

    def __enter__(self) -> bool:
        self._has_it = self._lock._acquire(self._waiting, self._in_turn)
        return self._has_it

    def __exit__(self, *_) -> None:
        if self._has_it:
            self._lock._release()


@cython.final
cdef class Changing:
    """The context of StoreLock.changing."""

    cdef StoreLock _lock

    def __init__(self, StoreLock lock not None):
        self._lock = lock

    def __enter__(self) -> None:
        self._lock._acquire(True, True)

    def __exit__(self, kind, error, *_) -> None:
        try:
            if kind is not None:
                # In two steps: Python code builds the text of an error.
                self._lock.failure = kind.__name__
                self._lock.failure = f"{kind.__name__}: {error}".removesuffix(": ")
        finally:
            self._lock._release()


@cython.final
cdef class Reading:
    """The context of StoreLock.reading."""

    cdef StoreLock _lock
    cdef object _check
    cdef object _explained

    def __init__(self, StoreLock lock not None, check, explained):
        self._lock = lock
        self._check = check
        self._explained = explained

    def __enter__(self) -> None:
        self._lock._acquire(True, True)
        try:
            self._check()
        except BaseException:
            self._lock._release()
            raise

    def __exit__(self, kind, error, *_) -> None:
        try:
            if isinstance(error, CorruptionError) and not error.path:
                raise self._explained(error) from error
        finally:
            self._lock._release()
