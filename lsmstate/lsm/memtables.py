"""The memtables of one store: sealed ones, which take no more writes, and the active one.

- A read view seals the active memtable and continues to read it, while writers fill the next one.
  Sealing copies nothing.
- Sealed memtables are flushed together, into one run.
- Only their age matters: an entry in a newer one hides older ones, as with runs.
"""

from collections.abc import Iterator

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.cython_ext.iterators.merging_iter import MergingSource
from lsmstate.cython_ext.memtable.memtable import Memtable, release_all
from lsmstate.options import KIB
from lsmstate.process.memory_budget import ProcessMemory

#: If there are more sealed memtables than this, the next write flushes them: every probe visits
#: each.
MOST_SEALED = 8
#: Least room of a memtable, whatever the others take.
LEAST_MEMTABLE_BYTES = 256 * KIB
#: Upper bound of a key's node and a row's chunk and head, beside key and row.
_HEADS_BYTES = 4 * KIB
#: Size of a slab if the budget has no room for a usual one.
_SMALL_SLAB_BYTES = 256 * KIB


class Memtables:
    """The memtables of one store. ``share_bytes`` is their limit together. While they are flushed
    in the background, they may take half as much more."""

    def __init__(
        self, memory: ProcessMemory, share_bytes: int, *, in_background: bool = False
    ) -> None:
        self._memory = memory
        self._share_bytes = share_bytes
        self._in_background = in_background
        #: Sealed memtables, oldest first, and the active one. They are changed in one step, since a
        #: write may be interrupted anywhere.
        self._tables: tuple[Memtable, ...] = (self._new(()),)
        #: Memtables that ``close`` has not released yet; None: it was not called.
        self._left: list[Memtable] | None = None

    @property
    def active(self) -> Memtable:
        return self._tables[-1]

    @property
    def all(self) -> tuple[Memtable, ...]:
        """Return the memtables that hold anything, oldest first."""
        return self._tables if len(self.active) else self._tables[:-1]

    def __iter__(self) -> Iterator[Memtable]:
        return iter(self.all)

    def __bool__(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self.all)

    @property
    def nbytes(self) -> int:
        """Return the bytes of slabs they hold."""
        return sum(table.nbytes for table in self._tables)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.all)

    @property
    def limit_bytes(self) -> int:
        """Return the size limit of the active memtable, at the present number of stores."""
        return self._memory.memtable_limit(self._share_bytes)

    def lacking_bytes(self, entry_bytes: int) -> int:
        """Return what an empty memtable needs for an entry of this size, beyond what a flush of the
        active one releases."""
        slab = self.active.slab_bytes
        alone = entry_bytes + _HEADS_BYTES
        first = slab if alone > slab else min(slab, _SMALL_SLAB_BYTES)
        wanted = first if 2 * alone <= first else first + alone
        return max(0, wanted - self.active.nbytes)

    @staticmethod
    def least_bytes(entry_bytes: int) -> int:
        """Return what an empty memtable needs at most for an entry without room for slabs: a
        mapping of whole pages each for the list's head, the key's node and the row's chunk."""
        return entry_bytes + 4 * _HEADS_BYTES

    @property
    def sealed_count(self) -> int:
        return len(self._tables) - 1

    def seal(self) -> tuple[Memtable, ...]:
        """Refuse further writes to the present memtables and return them, oldest
        first. Cost: none."""
        if len(self.active):
            self._tables = (*self._tables, self._new(self._tables))
        return self._tables[:-1]

    def release(self, tables: tuple[Memtable, ...]) -> None:
        """Release the oldest memtables, which a run now holds. Their memory is freed as soon as no
        read view retains it. The active one gets the freed room."""
        gone = list(tables)
        assert tables == self._tables[:-1][: len(gone)], "sealed memtables go from the oldest on"
        self._tables = self._tables[len(gone) :]  # in one step, since this may be interrupted:
        release_all(gone)
        self.active.limit_bytes = self._room(self._tables[:-1])

    def close(self) -> None:
        """Release all memtables; after an interrupt, a second call releases the rest."""
        if self._left is None:
            self._left = list(self._tables)
        release_all(self._left)

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds; everything is visited."""
        for table in self.all:
            table.check()

    def _new(self, sealed: tuple[Memtable, ...]) -> Memtable:
        return Memtable(self._memory.budget, self._room(sealed))

    def _room(self, sealed: tuple[Memtable, ...]) -> int:
        """Return the room of the active memtable beside these."""
        limit = self.limit_bytes
        taken = sum(table.nbytes for table in sealed)
        left = (limit + limit // 2 if self._in_background else limit) - taken
        return max(LEAST_MEMTABLE_BYTES, min(limit, left))


def deleted_by(tables: tuple[Memtable, ...]) -> KeyRanges:
    """Return the ranges that the memtables delete from everything older."""
    deleted = KeyRanges()
    for table in tables:
        deleted = deleted.joined(table.deleted)
    return deleted


def source_of(tables: tuple[Memtable, ...]) -> EntrySource:
    """Return all entries of some memtables, oldest first, as one source."""
    return tables[0].source() if len(tables) == 1 else MergingSource([t.source() for t in tables])
