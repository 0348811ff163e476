"""Memory policy: one budget and one block cache per process.

- The memory cap belongs to the process. If several stores are open, the largest of their caps
  applies.
- Cached blocks are evicted inside the budget. Memtables are flushed here, by the store that has the
  largest.
- The memory that flushes and compactions need is reserved as long as a store is open.
- Threads share the budget. A short lock guards the list of stores, and no store is called while it
  is held.
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

#: Part of the cap that is reserved at most if several stores are open: they seldom compact at once.
RESERVED_PART = 8
#: A write is large if it takes more than this part of the cap. A row is large beyond this part
#: divided by the number of stores, since each may write one at the same time.
LARGE_PART = 16
#: How often a write that waits for other threads checks whether there is room.
LOOK_SECONDS = 0.002


class Flushable(Protocol):
    """A store that can release memory by flushing its memtables."""

    @property
    def memtable_bytes(self) -> int: ...

    @property
    def is_busy(self) -> bool:
        """Whether another thread is inside a call, at whose end memory may be released."""
        ...

    def try_flush(self) -> bool:
        """Flush and return True; return False if another thread uses the store, it is being read,
        it failed, or it has nothing to flush."""
        ...


class ProcessMemory:
    """Budget, cache and open stores of one process."""

    def __init__(self) -> None:
        self.budget = Budget(MINIMUM_MEMORY_BYTES)
        self.cache = BlockCache(self.budget)
        self.turns = Turns(self.budget)
        self.process = os.getpid()
        # Weak references: a store that nobody closed and nobody holds does not count.
        self._stores: WeakKeyDictionary[Flushable, int] = WeakKeyDictionary()
        #: Stores that wait for others to release memory.
        self._waiting: WeakSet[Flushable] = WeakSet()
        # Reentrant: the garbage collector may close a store at any point.
        self._lock = threading.RLock()

    def enter(self, store: Flushable, limit_bytes: int) -> None:
        """Add a store; raise MemoryLimitError if the memory cap is too small for one more."""
        if self._refusal(store, limit_bytes):
            # Some stores may be garbage. Collected without the lock, because a finalizer may wait.
            gc.collect()
            refusal = self._refusal(store, limit_bytes)
            if refusal:
                raise MemoryLimitError(refusal)

    def _refusal(self, store: Flushable, limit_bytes: int) -> str:
        """Add a store, or return why it does not fit beside the others."""
        with self._lock:
            caps = self._open().values()
            limit = max([limit_bytes, *caps])
            needed = MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES * (len(caps) + 1)
            if needed > limit:
                return (
                    f"{len(caps) + 1} open stores need a memory cap of {needed} bytes, it "
                    f"is {limit}; raise the cap or close a store"
                )
            self._stores[store] = limit_bytes
            self._set_limit()
            if not caps:
                self.budget.reset_peak()
                self.budget.has_large_rows = False
        return ""

    def leave(self, store: Flushable) -> None:
        """Remove a store; the cache stays, within the remaining cap."""
        with self._lock:
            self._stores.pop(store, None)
            self._set_limit()

    def memtable_limit(self, own_limit: int) -> int:
        """Return the size limit of one store's memtable; together they keep to their share."""
        return max(256 * 1024, own_limit // max(1, len(self._stores)))

    def relieve(self, asking: Flushable) -> bool:
        """Flush the largest memtables of another store; return False if there are none to flush.

        A store that another thread uses is skipped, since waiting for it could be a deadlock. A
        store with unfinished reads is skipped, since they would keep its memory.
        """
        others = self._others(asking)
        sizes = {id(store): store.memtable_bytes for store in others}
        others.sort(key=lambda store: sizes[id(store)], reverse=True)
        return any(sizes[id(store)] > 0 and store.try_flush() for store in others)

    def await_others(self, asking: Flushable, until: float) -> bool:
        """Wait a moment for threads inside a call of another store, which may release memory.

        Return False if there are none, not counting those that wait themselves, or if the time
        ``until`` (time.monotonic) has come. The asking store then gives up, and others may wait for
        its memory.
        """
        with self._lock:
            # Under the lock: otherwise two stores that wait for each other could both give up.
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
        """Note that a store has its memory, or has given up."""
        with self._lock:
            self._waiting.discard(asking)

    def bytes_beside(self, asking: Flushable) -> int:
        """Return the bytes of all other stores' memtables."""
        return sum(store.memtable_bytes for store in self._others(asking))

    def _open(self) -> dict[Flushable, int]:
        """Return the open stores and their caps; a copy, since one may be closed meanwhile."""
        alive = [store for ref in self._stores.keyrefs() if (store := ref()) is not None]
        return {store: self._stores.get(store, 0) for store in alive}

    def _others(self, asking: Flushable) -> list[Flushable]:
        with self._lock:
            return [store for store in self._open() if store is not asking]

    def _set_limit(self) -> None:
        """Set the cap to the largest of the open stores; that of the last one stays. What a flush
        and a compaction take is reserved for several stores at once, as far as there is room."""
        caps = self._open().values()
        limit = max(caps, default=self.budget.limit)
        if limit > self.budget.limit:
            self.budget.limit = limit  # before more is reserved
        most = max(STORE_MEMORY_BYTES, limit // RESERVED_PART)
        self.budget.reserve = min(STORE_MEMORY_BYTES * len(caps), most)
        self.budget.large_bytes = limit // (LARGE_PART * max(1, len(caps)))
        self.budget.limit = limit
        if self.budget.total_bytes > limit:
            self.cache.clear()


_memory: ProcessMemory | None = None
_memory_lock = threading.RLock()


def process_memory() -> ProcessMemory:
    """Return the memory of this process; a forked child begins with a new one."""
    global _memory
    with _memory_lock:
        if _memory is None or _memory.process != os.getpid():
            _memory = ProcessMemory()
        return _memory


def _forget_the_parents_lock() -> None:
    """Replace locks after a fork: another thread of the parent may have held them. An inherited
    store would wait for its turn before it reports that it is inherited."""
    global _memory_lock
    _memory_lock = threading.RLock()
    if _memory is not None:
        _memory.turns.forget()


os.register_at_fork(after_in_child=_forget_the_parents_lock)
