"""Snapshots: read views of a store at one moment, while the store goes on.

- A snapshot copies no row; the memory backend copies its index.
- The files and memtables that it needs stay. Memtables count against the memory cap.
- Deletes need no rule of their own: compaction never changes a run that a snapshot has.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from weakref import WeakSet

from lsmstate.cython_ext.locks.locks import Turns
from lsmstate.stats import StoreStats
from lsmstate.store import StreamSchema
from lsmstate.store_base.guard import Access, FindDamage, Held, StoreGuard, do_all
from lsmstate.store_base.reads import Reader, StoreReads


class Snapshot(StoreReads):
    """A read view of a store. One thread at a time may use it, which need not be the store's.

    It ends when it or its store is closed. If it is garbage-collected while open, with its probes
    and iterators, it closes itself with a ResourceWarning.
    """

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
        """Make a snapshot.

        ``where`` is for messages. ``release`` gives up what it keeps, and may be called again.
        ``find_damage`` and ``turns`` are those of StoreGuard.
        """
        self.where = where
        self._streams = streams
        self._reader = reader
        self._stats = stats
        self._release = release
        self._guard = StoreGuard(where, "snapshot", find_damage, turns)

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """Return the streams by name, in their fixed order."""
        return self._streams

    def _access(self) -> Access:
        return SnapshotReads(self, self._guard.until_next_write())

    def stats(self) -> StoreStats:
        """Return the counters of what it reads; memory is that of the process."""
        self._guard.check_readable()
        return self._stats()

    def close(self) -> None:
        """Release what only this snapshot needs. A second call does nothing."""
        self._guard.close(self._release)

    @property
    def is_open(self) -> bool:
        return self._guard.is_open_here

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_guard"):  # the constructor was interrupted
            return
        if self.is_open:
            warnings.warn(
                f"the snapshot in {self.where} was never closed; use it in a with statement",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )
        self.close()


class SnapshotReads:
    """The access of one read; it keeps the snapshot alive, which nobody else may hold."""

    def __init__(self, snapshot: Snapshot, access: Access) -> None:
        self._snapshot = snapshot
        self._guarded = access

    def __call__(self) -> AbstractContextManager[None]:
        return self._guarded()

    def hold(self, held: Held) -> None:
        """Have this let go when the snapshot is closed."""
        self._guarded.hold(held)


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
        """Return the end of a message about memory that names the open snapshots."""
        found = ", ".join(sorted(snapshot.where for snapshot in self)) if nbytes else ""
        return f"; open snapshots hold {nbytes} bytes, close one: {found}" if found else ""

    def close(self) -> None:
        # Also those whose close was interrupted.
        do_all(*[snapshot.close for snapshot in list(self._known)])
