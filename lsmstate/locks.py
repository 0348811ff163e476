"""Locks of stores and jobs: fair ones, and turns.

A write, a flush or a merge of large rows (``Budget.large_bytes``) holds several times the largest,
up to three quarters of the cap. So once there are any, threads take turns: one write, one step of a
read, one slice of a flush or merge in the process at a time. Before that a turn costs a look at a
flag.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cython_ext.budget import Budget


class FairLock:
    """Given to threads in the order they asked for it: else whoever releases it and asks at once
    again, as the worker does between two slices, would get it before one that has to wake up."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._held = threading.Lock()

    def acquire(self, patience: float | None = None) -> bool:
        """Wait for it, so many seconds at most; False if others had it all the time."""
        end = None if patience is None else time.monotonic() + patience
        if not self._next.acquire(timeout=-1 if patience is None else patience):
            return False
        try:
            return self._held.acquire(
                timeout=-1 if end is None else max(0.0, end - time.monotonic())
            )
        finally:
            self._next.release()

    def release(self) -> None:
        self._held.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Turns:
    """Of one process: who may use much memory now. A thread that has its turn may take it again."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lock = FairLock()
        self._thread = 0
        self._depth = 0
        self._waiting: set[int] = set()

    @property
    def are_taken(self) -> bool:
        """Whether there are large rows."""
        return self._budget.has_large_rows

    def take(self, *, waiting: bool = True) -> bool:
        """Have the turn; False if another thread has it, and this one is not ``waiting``."""
        thread = threading.get_ident()
        if self._thread != thread:
            self._waiting.add(thread)
            try:
                if not self._lock.acquire(None if waiting else 0.0):
                    return False
            finally:
                self._waiting.discard(thread)
            self._thread = thread
        self._depth += 1
        return True

    @property
    def are_waited_for(self) -> bool:
        """Whether threads wait for their turn."""
        return bool(self._waiting)

    def pass_on(self) -> None:
        """Let those that wait go first, if this thread has the turn."""
        if self._thread != threading.get_ident():
            return
        depth, self._depth, self._thread = self._depth, 0, 0
        self._lock.release()
        self._lock.acquire()
        self._depth, self._thread = depth, threading.get_ident()

    def give_back(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._thread = 0
            self._lock.release()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the turn, if turns are taken as it begins."""
        if not self.are_taken:
            yield
            return
        self.take()
        try:
            yield
        finally:
            self.give_back()


class StoreLock:
    """Reentrant. A thread that has no lock of this store waits for its turn first: while it waits
    another one may have this lock, to flush the memtables."""

    def __init__(self, turns: Turns | None = None) -> None:
        self._turns = turns
        self._lock = threading.RLock()
        self._thread = 0
        self._depth = 0
        #: What has to be given back.
        self._taken: Turns | None = None

    @property
    def is_held_elsewhere(self) -> bool:
        """Whether another thread has it."""
        return self._thread not in (0, threading.get_ident())

    def acquire(self, blocking: bool = True) -> bool:
        """As of threading.RLock."""
        thread = threading.get_ident()
        if self._thread == thread:
            self._depth += 1
            return True
        turns = self._turns if self._turns is not None and self._turns.are_taken else None
        if turns is not None and not turns.take(waiting=blocking):
            return False
        if not self._lock.acquire(blocking):
            if turns is not None:
                turns.give_back()
            return False
        self._thread, self._depth, self._taken = thread, 1, turns
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth:
            return
        taken, self._thread = self._taken, 0
        self._lock.release()
        if taken is not None:
            taken.give_back()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def out_of_turn(self) -> Iterator[None]:
        """Hold it without a turn, to close the store: the garbage collector may do so in the middle
        of anything, where waiting for other threads could be waiting in a circle."""
        thread = threading.get_ident()
        if self._thread == thread:
            with self:
                yield
            return
        with self._lock:
            self._thread, self._depth, self._taken = thread, 1, None
            try:
                yield
            finally:
                self._depth = 0
                self._thread = 0
