"""Table cache: open SSTables of this process, by path, least recently used first.

- Files are immutable and have a random identity, so an open table may outlive the stores that used
  it. If a path's file was replaced (a directory deleted and made again), the checksum of its
  footer, which covers the identity, shows it.
- An open table costs its top index, charged to the budget, and a file descriptor, which keeps the
  disk of a deleted file taken. A store that is closed therefore closes its tables. Those of an
  attempt stay open, for the next attempt of the bucket, as long as their files are there.
- Threads share the cache. The lock is held to look tables up and to change the cache, never while a
  file is read.
"""

import errno
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np

from lsmstate.cython_ext.base.file import remove
from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.cython_ext.iterators.backward_iter import BackwardSstSource
from lsmstate.cython_ext.iterators.merging_iter import ChainSource
from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError
from lsmstate.lsm.version import FileMeta
from lsmstate.process.memory_budget import ProcessMemory

_log = logging.getLogger(__name__)

#: Most unused tables that stay open.
MOST_OPEN = 256
#: A copy may be evicted before it is opened; the newest copies are evicted last.
_MOST_TRIES = 10


class Origin(Protocol):
    """The remote source of a directory's files, if the directory holds copies that may vanish."""

    @property
    def directory(self) -> str: ...

    def bring(self, name: str, size: int) -> None:
        """Make a copy of a file of this size, if it is absent. CorruptionError, OSError."""
        ...

    def bring_again(self, name: str, size: int) -> str:
        """Replace a damaged copy; return its source, for messages."""
        ...

    def note_use(self, name: str) -> None:
        """Note the use of a copy, so that it is not evicted next. Cost: negligible."""
        ...


class TableCache:
    """The open tables; one cache per ProcessMemory."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._tables: OrderedDict[str, Sst] = OrderedDict()
        # Reentrant: the garbage collector may close a snapshot, which forgets tables, at any time.
        self._lock = threading.RLock()
        self._pins: WeakValueDictionary[str, FilePin] = WeakValueDictionary()
        self._origins: dict[str, Origin] = {}

    def bring_from(self, origin: Origin) -> None:
        """Let ``origin`` bring files that are missing or damaged in its directory from now on. Open
        tables whose files are gone are closed."""
        self._origins[origin.directory] = origin
        self.close_deleted(origin.directory)

    def open(self, directory: str, file: FileMeta) -> Sst:
        """Open a table that the manifest describes; raise CorruptionError if it is another file."""
        return self.open_commit(directory, file.name, file.size, file.checksum)

    def open_commit(self, directory: str, name: str, size: int, footer: int) -> Sst:
        """Open a commit's file by the name, size and footer checksum of its pointer."""
        path = os.path.join(directory, name)
        origin = self._origins.get(directory)
        if origin is not None:
            origin.note_use(name)
        with self._lock:
            table = self._tables.get(path)
            if table is not None and (table.checksum, table.size) == (footer, size):
                self._tables.move_to_end(path)
                return table
        if origin is None:
            table = self._opened(path, size, footer)
        else:
            table = self._brought(origin, name, size, footer)
        with self._lock:
            self._tables[path] = table
            self._tables.move_to_end(path)
            closed = self._shrink()
        del closed  # files are closed, and charges released, outside the lock
        return table

    def source(
        self,
        directory: str,
        files: Sequence[FileMeta],
        deleted: KeyRanges,
        *,
        scanning: bool = False,
        reverse: bool = False,
    ) -> ChainSource:
        """Return the entries of some files of one run; each file is opened when its turn comes.

        ``reverse``: the greatest key first. ``scanning``: blocks stay in the cache and are evicted
        first. A merge uses each block once.
        """

        def opened(file: FileMeta) -> EntrySource:
            table = self.open(directory, file)
            return BackwardSstSource(table) if reverse else SstSource(table, scanning)

        ordered: Iterable[FileMeta] = reversed(files) if reverse else files
        return ChainSource([partial(opened, file) for file in ordered], deleted)

    def _brought(self, origin: Origin, name: str, size: int, footer: int) -> Sst:
        """Open a table whose file may have to be brought first, or again if it is damaged."""
        path = os.path.join(origin.directory, name)
        renew = partial(origin.bring_again, name)
        where = ""
        for _ in range(_MOST_TRIES):
            try:
                origin.bring(name, size)
                return self._checked(path, size, footer, renew)
            except FileNotFoundError:
                continue  # evicted meanwhile
            except CorruptionError as error:
                if where or error.path != path:
                    raise CorruptionError(
                        f"damaged, not only in its copy: {error}", where or error.path, error.offset
                    ) from error
                where = renew(size)
        raise OSError(
            errno.EBUSY,
            "other processes evict this copy repeatedly; raise cache=, its disk space",
            path,
        )

    def _opened(self, path: str, size: int, footer: int) -> Sst:
        try:
            return self._checked(path, size, footer)
        except FileNotFoundError as error:
            raise CorruptionError(
                "a manifest or pointer names this file, but it is missing; restore it from a copy",
                path,
                0,
            ) from error

    def _checked(
        self, path: str, size: int, footer: int, renew: Callable[[int], str] | None = None
    ) -> Sst:
        table = Sst(path, self._memory.cache, size, renew)
        if table.checksum != footer:
            raise CorruptionError(
                f"the manifest or pointer names another file (footer checksum "
                f"{table.checksum:016x}, expected {footer:016x}); restore it from a copy",
                path,
                size,
            )
        return table

    def peek(self, directory: str, name: str) -> Sst:
        """Open a table of which only the name is known; it does not stay open in the cache."""
        path = os.path.join(directory, name)
        with self._lock:
            table = self._tables.get(path)
        return table if table is not None else Sst(path, self._memory.cache)

    def uncache(self, directory: str, names: Iterable[str]) -> None:
        """Drop the cached blocks of tables that were merged, to make room for their successors. A
        snapshot that still reads them reads the files."""
        with self._lock:
            tables = [self._tables.get(os.path.join(directory, name)) for name in names]
        files = [table.uid for table in tables if table is not None]
        if files:
            self._memory.cache.drop(np.array(files, dtype=np.uint64))

    def forget(self, directory: str, name: str) -> None:
        """Close a table whose file is about to be deleted; its users keep it open."""
        with self._lock:
            table = self._tables.pop(os.path.join(directory, name), None)
        del table

    def close_all(self, directory: str) -> None:
        """Close all tables of a directory, whose store is closed. Another user of the directory
        opens them again."""
        self._close(self._paths_in(directory))

    def close_deleted(self, directory: str) -> None:
        """Close the tables of a directory whose files are gone: other processes delete files too.
        Close those of other directories that are gone. Cost: one listing of the directory, a look
        per other directory."""
        with self._lock:
            cached = [path.rpartition(os.sep) for path in self._tables]
        there = set(_listed(directory))
        gone = [
            directory + os.sep + name
            for home, _, name in cached
            if home == directory and name not in there
        ]
        for other in {home for home, _, _ in cached} - {directory}:
            if not os.path.isdir(other):
                gone += self._paths_in(other)
        self._close(gone)

    def _paths_in(self, directory: str) -> list[str]:
        inside = os.path.join(directory, "")
        with self._lock:
            return [path for path in self._tables if path.startswith(inside)]

    def _close(self, paths: Iterable[str]) -> None:
        with self._lock:
            closed = [self._tables.pop(path, None) for path in paths]
        del closed  # outside the lock

    def pin(self, directory: str, files: Iterable[FileMeta]) -> list["FilePin"]:
        """Keep files from being deleted by this process as long as the pins exist."""
        pins = []
        with self._lock:
            for file in files:
                path = os.path.join(directory, file.name)
                pin = self._pins.get(path) or FilePin(self, directory, file.name)
                self._pins[path] = pin
                pins.append(pin)
        return pins

    def delete(self, directory: str, name: str) -> None:
        """Delete a table's file; a pinned file as soon as its last pin is gone."""
        pin = self._pins.get(os.path.join(directory, name))
        if pin is not None:
            pin.is_doomed = True
            return
        self.forget(directory, name)
        remove(os.path.join(directory, name))

    def _shrink(self) -> list[Sst]:
        """Remove tables while there are too many; dropping the returned list closes them."""
        budget, out = self._memory.budget, list[Sst]()
        excess = budget.usage()["tables"] - budget.limit // 8
        while len(self._tables) > 1 and (len(self._tables) > MOST_OPEN or excess > 0):
            _, table = self._tables.popitem(last=False)
            excess -= table.index_bytes
            out.append(table)
        return out


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


class FilePin:
    """Keeps one file while it exists. In a forked child it has no effect."""

    is_doomed = False

    def __init__(self, tables: TableCache, directory: str, name: str) -> None:
        self._tables = tables
        self._directory = directory
        self._name = name
        self._process = os.getpid()

    def __del__(self) -> None:
        if not self.is_doomed or os.getpid() != self._process or sys.is_finalizing():
            return
        try:
            self._tables.forget(self._directory, self._name)
            remove(os.path.join(self._directory, self._name))
        except OSError as error:
            # The file only costs space, and the next collection finds it.
            _log.warning("%s in %s was not deleted: %s", self._name, self._directory, str(error))


_cache: tuple[ProcessMemory, TableCache] | None = None


def table_cache(memory: ProcessMemory) -> TableCache:
    """Return the table cache of this process's memory."""
    global _cache
    if _cache is None or _cache[0] is not memory:
        _cache = (memory, TableCache(memory))
    return _cache[1]
