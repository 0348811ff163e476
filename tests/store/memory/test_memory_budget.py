"""The list of open stores, whose caps make the process's."""

import gc
import threading

import pytest

from lsmstate.errors import MemoryLimitError
from lsmstate.options import MIB
from lsmstate.process.memory_budget import ProcessMemory


class OpenStore:
    """As much of a store as is counted."""

    memtable_bytes = 0

    def try_flush(self):
        return False


class DroppedStore(OpenStore):
    """One that nobody closed: the garbage collector does, as it does a suspended generator's."""

    def __init__(self, memory, limit):
        self._memory = memory
        self._itself = self
        memory.enter(self, limit)

    def __del__(self):
        self._memory.leave(self)


class CollectingBudget:
    """A collection of garbage may come at any point; here it comes as the limit is set."""

    def __init__(self):
        self._limit = self.total_bytes = 0

    @property
    def limit(self):
        return self._limit

    @limit.setter
    def limit(self, value):
        self._limit = value
        gc.collect()

    def reset_peak(self):
        pass


def test_the_largest_cap_of_the_open_stores_counts():
    memory = ProcessMemory()
    large, small = OpenStore(), OpenStore()
    memory.enter(large, 32 * MIB)
    memory.enter(small, 8 * MIB)
    assert memory.budget.limit == 32 * MIB
    assert memory.budget.reserve == 2 * MIB
    others = [OpenStore() for _ in range(8)]
    for other in others:
        memory.enter(other, 8 * MIB)
    assert memory.budget.reserve == 4 * MIB  # an eighth
    for other in others:
        memory.leave(other)
    memory.leave(large)
    assert (memory.budget.limit, memory.budget.reserve) == (8 * MIB, MIB)
    memory.leave(small)
    assert memory.budget.limit == 8 * MIB
    with pytest.raises(MemoryLimitError, match="1 open stores need a memory cap of"):
        memory.enter(small, MIB)


def test_a_store_may_be_closed_by_the_garbage_collector_while_others_are_counted():
    memory = ProcessMemory()
    stores = {"alive": OpenStore(), "enter": OpenStore(), "leave": OpenStore()}

    def count():
        gc.disable()
        try:
            memory.enter(stores["alive"], 8 * MIB)
            memory.enter(stores["leave"], 8 * MIB)
            DroppedStore(memory, 32 * MIB)
            memory.budget = CollectingBudget()
            memory.enter(stores["enter"], 8 * MIB)
            memory.leave(stores["leave"])
        finally:
            gc.enable()

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"
    gc.collect()
    assert memory.budget.limit == 8 * MIB
    assert memory.memtable_limit(32 * MIB) == 16 * MIB, "two are left"
