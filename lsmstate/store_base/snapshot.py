"""Snapshots: what a store held at one moment, readable while the store goes on.

A snapshot copies no row (the memory backend copies its index). What it needs stays: files, though
merged away since, and the memtables of that moment, which count against the memory cap. Deletes
need no rule of their own: a snapshot has the runs of its moment, and merges never change a run.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from weakref import WeakSet

from lsmstate.cython_ext.locks.locks import Turns
from lsmstate.stats import StoreStats
from lsmstate.store import StreamSchema
from lsmstate.store_base.guard import Access, FindDamage, StoreGuard
from lsmstate.store_base.reads import Reader, StoreReads


class Snapshot(StoreReads):
    """Reads as its store did, also in another thread than the store's; one thread at a time.

    Ends when it or its store is closed. One that nobody closed and nobody holds any more, nor a
    probe or iterator of it, is closed with a ResourceWarning."""

    def __init__(
        self,
        where: str,
        streams: Mapping[str, StreamSchema],
        reader: Reader,
        stats: Callable[[], StoreStats],
        release: Callable[[], None],
        find_damage: FindDamage = lambda: None,
        turns: Turns | None = None,
    ) -> None:
        """``where`` is for messages; ``release`` gives up what it keeps, also when called again;
        ``find_damage`` and ``turns`` as for StoreGuard."""
        self.where = where
        self._streams = streams
        self._reader = reader
        self._stats = stats
        self._release = release
        self._guard = StoreGuard(where, "snapshot", find_damage, turns)

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """See store.StateStore.streams."""
        return self._streams

    def _access(self) -> Access:
        return SnapshotReads(self, self._guard.until_next_write())

    def stats(self) -> StoreStats:
        """Counters of what it reads; memory is that of the process."""
        self._guard.check_readable()
        return self._stats()

    def close(self) -> None:
        """Give up what only this snapshot needs. A second call does nothing."""
        if self._guard.close():
            with self._guard.lock.out_of_turn():
                self._release()
            self._guard.end()

    @property
    def is_open(self) -> bool:
        return self._guard.is_open_here

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_guard"):  # the constructor was interrupted
            return
        if self.is_open:
            warnings.warn(
                f"the snapshot in {self.where} was never closed; use it by with",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )
        self.close()


class SnapshotReads:
    """The access of one read: it keeps the snapshot, which nobody else may hold."""

    def __init__(self, snapshot: Snapshot, access: Access) -> None:
        self._snapshot = snapshot
        self._guarded = access

    def __call__(self) -> AbstractContextManager[None]:
        return self._guarded()


class Snapshots:
    """The open snapshots of one store, which end with it."""

    def __init__(self) -> None:
        self._known: WeakSet[Snapshot] = WeakSet()

    def __iter__(self) -> Iterator[Snapshot]:
        return iter([snapshot for snapshot in self._known if snapshot.is_open])

    def add(self, snapshot: Snapshot) -> Snapshot:
        self._known.add(snapshot)
        return snapshot

    def named(self, nbytes: int) -> str:
        """The end of a message about memory: which snapshots hold so much of it."""
        found = ", ".join(sorted(snapshot.where for snapshot in self)) if nbytes else ""
        return f"; open snapshots hold {nbytes} bytes, close one: {found}" if found else ""

    def close(self) -> None:
        for snapshot in list(self._known):  # also what an interrupt left of one that is closed
            snapshot.close()
