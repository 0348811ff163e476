"""Policy over the byte counters: one budget and one block cache per process.

The cap is that of the process, not of a store: with several stores open it is the largest of
their caps. What can be given back without anyone's help (cached blocks) is evicted inside the
budget; memtables are flushed here, by the store that owns the largest. What flushes and merges need
for that is reserved for as long as a store is open. Threads share the budget: a short lock guards
the list of stores, and no store is asked for anything while it is held.
"""

import gc
import os
import threading
import time
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from lsmstate.cython_ext.locks.locks import Turns
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.sstable.block_cache import BlockCache
from lsmstate.errors import MemoryLimitError
from lsmstate.options import MINIMUM_MEMORY_BYTES, STORE_MEMORY_BYTES

#: Of the cap, what is reserved at most, if several stores are open: they seldom merge all at once.
RESERVED_PART = 8
#: What is written at once is large beyond this part of the cap; a row beyond that part of it
#: divided by the number of stores, of which each may write one at the same time.
LARGE_PART = 16
#: How often a write that waits for other threads looks whether there is room now.
LOOK_SECONDS = 0.002


class Flushable(Protocol):
    """A store that can give memory back by writing its memtables out."""

    @property
    def memtable_bytes(self) -> int: ...

    @property
    def is_busy(self) -> bool:
        """Whether another thread is in the middle of a call, at whose end memory may be free."""
        ...

    def try_flush(self) -> bool:
        """Flush, unless another thread uses the store, it is being read, it failed, or has nothing
        to flush: whether it was done."""
        ...


class ProcessMemory:
    """Budget, cache and the open stores of one process."""

    def __init__(self) -> None:
        self.budget = Budget(MINIMUM_MEMORY_BYTES)
        self.cache = BlockCache(self.budget)
        self.turns = Turns(self.budget)
        self.process = os.getpid()
        # Weak: a store that nobody closed and nobody holds any more counts no longer.
        self._stores: WeakKeyDictionary[Flushable, int] = WeakKeyDictionary()
        #: Those that wait for others to give memory back.
        self._waiting: WeakSet[Flushable] = WeakSet()
        # Reentrant: the garbage collector may close a store at any point.
        self._lock = threading.RLock()

    def enter(self, store: Flushable, limit_bytes: int) -> None:
        """Count a store in. MemoryLimitError if the cap cannot carry one more."""
        if self._refusal(store, limit_bytes):
            # Some may be held by nobody any more. Without the lock: what collecting calls may wait.
            gc.collect()
            refusal = self._refusal(store, limit_bytes)
            if refusal:
                raise MemoryLimitError(refusal)

    def _refusal(self, store: Flushable, limit_bytes: int) -> str:
        """Count a store in, or say why it does not fit in beside the others."""
        with self._lock:
            caps = self._open().values()
            limit = max([limit_bytes, *caps])
            needed = MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES * (len(caps) + 1)
            if needed > limit:
                return (
                    f"{len(caps) + 1} open stores need a memory cap of {needed} bytes, it "
                    f"is {limit}; raise memory_bytes or close a store"
                )
            self._stores[store] = limit_bytes
            self._set_limit()
            if not caps:
                self.budget.reset_peak()
                self.budget.has_large_rows = False
        return ""

    def leave(self, store: Flushable) -> None:
        """Count a store out; the cache stays, within the cap that remains."""
        with self._lock:
            self._stores.pop(store, None)
            self._set_limit()

    def memtable_limit(self, own_limit: int) -> int:
        """Bytes one store's memtable may take, so that all together keep to their share."""
        return max(256 * 1024, own_limit // max(1, len(self._stores)))

    def relieve(self, asking: Flushable) -> bool:
        """Flush the largest memtables of another store; False if there are none to flush. A store
        that another thread is using is passed over: waiting for it could be waiting in a circle.
        So is one with unfinished reads, which would keep its memory."""
        others = self._others(asking)
        sizes = {id(store): store.memtable_bytes for store in others}
        others.sort(key=lambda store: sizes[id(store)], reverse=True)
        return any(sizes[id(store)] > 0 and store.try_flush() for store in others)

    def await_others(self, asking: Flushable, until: float) -> bool:
        """Wait a moment for threads in the middle of a call of another store, which may give memory
        back. False: none is, but for those that wait themselves, or it is ``until``
        (time.monotonic) by now: the asking one gives up, and others may wait for what it has."""
        with self._lock:
            # Under the lock, or two that wait for each other could give up both.
            others = (s for s in self._open() if s is not asking and s not in self._waiting)
            is_busy = self.turns.are_waited_for or any(store.is_busy for store in others)
            if time.monotonic() >= until or not is_busy:
                self._waiting.discard(asking)
                return False
            self._waiting.add(asking)
        if self.turns.are_taken:
            self.turns.pass_on(LOOK_SECONDS)
        else:
            time.sleep(LOOK_SECONDS)
        return True

    def end_waiting(self, asking: Flushable) -> None:
        """It has what it waited for, or does without."""
        with self._lock:
            self._waiting.discard(asking)

    def bytes_beside(self, asking: Flushable) -> int:
        """Bytes of the memtables of all other stores."""
        return sum(store.memtable_bytes for store in self._others(asking))

    def _open(self) -> dict[Flushable, int]:
        """The open stores and their caps: a copy, as one may be closed while they are looked at."""
        alive = [store for ref in self._stores.keyrefs() if (store := ref()) is not None]
        return {store: self._stores.get(store, 0) for store in alive}

    def _others(self, asking: Flushable) -> list[Flushable]:
        with self._lock:
            return [store for store in self._open() if store is not asking]

    def _set_limit(self) -> None:
        """The largest cap of the open stores; that of the last one stays. Of it, what a flush and
        a merge take is reserved, where there is room for them in each of several stores at once."""
        caps = self._open().values()
        limit = max(caps, default=self.budget.limit)
        if limit > self.budget.limit:
            self.budget.limit = limit  # before more of it is reserved
        most = max(STORE_MEMORY_BYTES, limit // RESERVED_PART)
        self.budget.reserve = min(STORE_MEMORY_BYTES * len(caps), most)
        self.budget.large_bytes = limit // (LARGE_PART * max(1, len(caps)))
        self.budget.limit = limit
        if self.budget.total_bytes > limit:
            self.cache.clear()


_memory: ProcessMemory | None = None
_memory_lock = threading.RLock()


def process_memory() -> ProcessMemory:
    """The one of this process; a forked child begins with a new one."""
    global _memory
    with _memory_lock:
        if _memory is None or _memory.process != os.getpid():
            _memory = ProcessMemory()
        return _memory


def _forget_the_parents_lock() -> None:
    """Another thread of the parent may have held it when the child was forked; or have had its
    turn, which a store that is inherited would wait for before it says that it is."""
    global _memory_lock
    _memory_lock = threading.RLock()
    if _memory is not None:
        _memory.turns.forget()


os.register_at_fork(after_in_child=_forget_the_parents_lock)
