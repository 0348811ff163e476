"""The memtables of one store: sealed ones, which take no more writes, and the active one.

A read view seals the active memtable and reads on in it while writers fill the next. Sealing
copies nothing; sealed memtables are flushed together, into one run. They are told apart by age
alone: what a newer one says of a key hides the older ones, as with runs.
"""

from collections.abc import Iterator

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.cython_ext.iterators.merging_iter import MergingSource
from lsmstate.cython_ext.memtable.memtable import Memtable, release_all
from lsmstate.options import KIB
from lsmstate.process.memory_budget import ProcessMemory

#: More sealed memtables than this are flushed by the next write: every probe asks each of them.
MOST_SEALED = 8
#: The least room a memtable is given, whatever the others take.
LEAST_MEMTABLE_BYTES = 256 * KIB
#: More than what a key's node and a row's chunk and head take beside key and row.
_HEADS_BYTES = 4 * KIB
#: A slab where the budget has no room for one of the usual size.
_SMALL_SLAB_BYTES = 256 * KIB


class Memtables:
    """Owned by one store. ``share_bytes``: what they may hold together, and half as much more
    where they are flushed in the background, while they are."""

    def __init__(
        self, memory: ProcessMemory, share_bytes: int, *, in_background: bool = False
    ) -> None:
        self._memory = memory
        self._share_bytes = share_bytes
        self._in_background = in_background
        #: Sealed ones, oldest first, and the active one: changed as one, as a write may be
        #: interrupted anywhere.
        self._tables: tuple[Memtable, ...] = (self._new(()),)
        #: Those that ``close`` has not let go yet; None: it was not called.
        self._left: list[Memtable] | None = None

    @property
    def active(self) -> Memtable:
        return self._tables[-1]

    @property
    def all(self) -> tuple[Memtable, ...]:
        """The memtables that hold anything, oldest first."""
        return self._tables if len(self.active) else self._tables[:-1]

    def __iter__(self) -> Iterator[Memtable]:
        return iter(self.all)

    def __bool__(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self.all)

    @property
    def nbytes(self) -> int:
        """Bytes of slabs they hold."""
        return sum(table.nbytes for table in self._tables)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.all)

    @property
    def limit_bytes(self) -> int:
        """The most the active one may hold, at the present number of stores."""
        return self._memory.memtable_limit(self._share_bytes)

    def lacking_bytes(self, entry_bytes: int) -> int:
        """What an empty memtable takes for an entry of so many bytes, as far as the active one
        does not give it back when it is flushed."""
        slab = self.active.slab_bytes
        alone = entry_bytes + _HEADS_BYTES
        first = slab if alone > slab else min(slab, _SMALL_SLAB_BYTES)
        wanted = first if 2 * alone <= first else first + alone
        return max(0, wanted - self.active.nbytes)

    @staticmethod
    def least_bytes(entry_bytes: int) -> int:
        """What an empty memtable takes for it at most where there is no room for slabs: a mapping
        of whole pages each for the list's head, the key's node and the row's chunk."""
        return entry_bytes + 4 * _HEADS_BYTES

    @property
    def sealed_count(self) -> int:
        return len(self._tables) - 1

    def seal(self) -> tuple[Memtable, ...]:
        """Let no more writes into what there is; its memtables, oldest first. Cost: none."""
        if len(self.active):
            self._tables = (*self._tables, self._new(self._tables))
        return self._tables[:-1]

    def release(self, tables: tuple[Memtable, ...]) -> None:
        """Let the oldest memtables go, which are in a run now: their memory goes back as soon as
        no read view retains it either. The active one gets the room that becomes free."""
        gone = list(tables)
        assert tables == self._tables[:-1][: len(gone)], "sealed memtables go from the oldest on"
        self._tables = self._tables[len(gone) :]  # and in one go, wherever this is interrupted:
        release_all(gone)
        self.active.limit_bytes = self._room(self._tables[:-1])

    def close(self) -> None:
        """Let all go; called again after an interrupt, the rest of them."""
        if self._left is None:
            self._left = list(self._tables)
        release_all(self._left)

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds; walks everything."""
        for table in self.all:
            table.check()

    def _new(self, sealed: tuple[Memtable, ...]) -> Memtable:
        return Memtable(self._memory.budget, self._room(sealed))

    def _room(self, sealed: tuple[Memtable, ...]) -> int:
        """Of the active one, beside those."""
        limit = self.limit_bytes
        taken = sum(table.nbytes for table in sealed)
        left = (limit + limit // 2 if self._in_background else limit) - taken
        return max(LEAST_MEMTABLE_BYTES, min(limit, left))


def deleted_by(tables: tuple[Memtable, ...]) -> KeyRanges:
    """What the memtables deleted from everything older than they are."""
    deleted = KeyRanges()
    for table in tables:
        deleted = deleted.joined(table.deleted)
    return deleted


def source_of(tables: tuple[Memtable, ...]) -> EntrySource:
    """All entries of some memtables, oldest first, as one source."""
    return tables[0].source() if len(tables) == 1 else MergingSource([t.source() for t in tables])
