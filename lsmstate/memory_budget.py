"""Policy over the byte counters: one budget and one block cache per process.

The cap is that of the process, not of a store: with several stores open it is the largest of
their caps. What can be given back without anyone's help (cached blocks) is evicted inside the
budget; memtables are flushed here, by the store that owns the largest.
"""

import os
from typing import Protocol
from weakref import WeakKeyDictionary

from cython_ext.block_cache import BlockCache
from cython_ext.budget import Budget
from lsmstate.errors import MemoryLimitError
from lsmstate.options import MINIMUM_MEMORY_BYTES, STORE_MEMORY_BYTES


class Flushable(Protocol):
    """A store that can give memory back by writing its memtable out."""

    @property
    def memtable_bytes(self) -> int: ...

    def flush(self) -> None: ...


class ProcessMemory:
    """Budget, cache and the open stores of one process."""

    def __init__(self) -> None:
        self.budget = Budget(MINIMUM_MEMORY_BYTES)
        self.cache = BlockCache(self.budget)
        self.process = os.getpid()
        # Weak: a store that nobody closed and nobody holds any more counts no longer.
        self._stores: WeakKeyDictionary[Flushable, int] = WeakKeyDictionary()

    def enter(self, store: Flushable, limit_bytes: int) -> None:
        """Count a store in. MemoryLimitError if the cap cannot carry one more."""
        limit = max([limit_bytes, *self._stores.values()])
        needed = MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES * (len(self._stores) + 1)
        if needed > limit:
            raise MemoryLimitError(
                f"{len(self._stores) + 1} open stores need a memory cap of {needed} bytes, it is "
                f"{limit}; raise memory_bytes or close a store"
            )
        is_first = not self._stores
        self._stores[store] = limit_bytes
        self._set_limit(limit)
        if is_first:
            self.budget.reset_peak()

    def leave(self, store: Flushable) -> None:
        """Count a store out; the cache stays, within the cap that remains."""
        self._stores.pop(store, None)
        if self._stores:
            self._set_limit(max(self._stores.values()))

    def memtable_limit(self, own_limit: int) -> int:
        """Bytes one store's memtable may take, so that all together keep to their share."""
        return max(256 * 1024, own_limit // max(1, len(self._stores)))

    def relieve(self, asking: Flushable) -> bool:
        """Flush the largest memtable of another store; False if there is none to flush."""
        others = [
            store for store in self._stores if store is not asking and store.memtable_bytes > 0
        ]
        if not others:
            return False
        max(others, key=lambda store: store.memtable_bytes).flush()
        return True

    def _set_limit(self, limit: int) -> None:
        self.budget.limit = limit
        if self.budget.total_bytes > limit:
            self.cache.clear()


_memory: ProcessMemory | None = None


def process_memory() -> ProcessMemory:
    """The one of this process; a forked child begins with a new one."""
    global _memory
    if _memory is None or _memory.process != os.getpid():
        _memory = ProcessMemory()
    return _memory
