"""Memory for what is kept to answer sooner, and can be read again from a store at any time.

All that a process keeps so takes at most a quarter of the memory cap. It counts as memory of reads.
Whoever keeps it lets it go when the memory is short.
"""

from typing import Final
from weakref import WeakSet

from lsmstate.cython_ext.memory.budget import Holding
from lsmstate.process.memory_budget import process_memory

#: Part of the cap that may be kept, and the part of it that is in use when memory is short.
KEPT_PART: Final = 4
SHORT: Final = 0.75

_kept: "WeakSet[KeptMemory]" = WeakSet()


class KeptMemory:
    """Bytes that one owner keeps. They are released with this object."""

    def __init__(self) -> None:
        self._budget = process_memory().budget
        self._held = Holding(self._budget, "probe")
        _kept.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self._held.nbytes

    def try_grow(self, size: int) -> bool:
        """Keep more bytes; return False if there is no room for them."""
        together = sum(each.nbytes for each in list(_kept) if each._budget is self._budget)
        if together + size > self._budget.limit // KEPT_PART:
            return False
        return self._held.try_grow(size)

    def shrink(self, size: int) -> None:
        """Keep so many bytes less."""
        self._held.grow(-size)

    @property
    def is_short(self) -> bool:
        """Whether others need the memory."""
        return self._budget.firm_bytes > SHORT * self._budget.limit
