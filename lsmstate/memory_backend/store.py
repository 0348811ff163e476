"""MemoryStore: the store contract on hash tables. All state is in memory; a commit writes what is
new.

It cannot spill: work that would exceed the memory cap is refused. The cap covers all memory stores
of the process and the states kept from closed ones.
"""

import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import date, datetime
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.errors import CorruptionError, FormatVersionError, MemoryLimitError
from lsmstate.lsm.directory_lock import DirectoryLock
from lsmstate.lsm.obsolete_files import collect_now_and_then
from lsmstate.memory_backend.commit_files import (
    Change,
    Link,
    LogFile,
    LogFiles,
    LogWriter,
    newest_pointer,
    read_chain,
)
from lsmstate.memory_backend.reader import MemoryReader, Tables
from lsmstate.memory_backend.table import MemoryTable
from lsmstate.options import Options
from lsmstate.stats import StoreStats, WriteStats
from lsmstate.store import BatchLike, KeyBounds, KeyNames, Mutation, StreamSchema
from lsmstate.store_base.batch_limits import checked_mutations
from lsmstate.store_base.checks import (
    checked_entries,
    checked_keys,
    encoded_keys,
    refuse_advance,
    stream_of,
    streams_by_name,
)
from lsmstate.store_base.guard import StoreGuard
from lsmstate.store_base.key_range import key_range
from lsmstate.store_base.snapshot import Snapshot, Snapshots
from lsmstate.store_base.writes import AdmittedWrites

_log = logging.getLogger("lsmstate")

#: Approximate size of the pieces in which tables are written to a file.
_PIECE_BYTES = 1 << 20

#: Committed states of closed stores, by directory and pointer. Opening one removes it, since its
#: owner will change it. The next one to open it loads the files.
_kept: OrderedDict[tuple[str, str], Tables] = OrderedDict()
_open_stores: "weakref.WeakSet[MemoryStore]" = weakref.WeakSet()
#: Guards both. Reentrant: the garbage collector may close a store at any point.
_shared = threading.RLock()


class MemoryStore(AdmittedWrites):
    """A store in memory; ``open_attempt`` and ``open`` are the two ways to own one."""

    _backend = "memory"
    _reader: MemoryReader

    def __init__(
        self,
        directory: str,
        streams: Sequence[StreamSchema],
        options: Options,
        *,
        pointer: str | None,
        batch_id: int,
        attempt_id: str | None,
    ) -> None:
        os.makedirs(directory, exist_ok=True)
        self._directory = directory
        self._streams = streams_by_name(streams)
        self._codecs = {name: KeyCodec(stream.key) for name, stream in self._streams.items()}
        self._options = options
        self._guard = StoreGuard(directory)
        self._pointer = pointer
        self._batch_id = batch_id
        self._attempt_id = attempt_id
        self._lock: DirectoryLock | None = None
        self._log: LogWriter | None = None
        self._tables: Tables = {}
        self._snapshots = Snapshots()
        #: Tables of the snapshots, by identity.
        self._copies: dict[int, Tables] = {}
        #: Files of the last commit, oldest first.
        self._chain: list[Link] = []
        self._flushed_bytes = self._merged_bytes = 0
        self._peak_bytes = 0
        self._reader = MemoryReader(self._streams, self._codecs, lambda: self._tables)
        with _shared:
            _open_stores.add(self)

    @classmethod
    def open_attempt(
        cls,
        directory: str,
        streams: Sequence[StreamSchema],
        *,
        pointer: str | None,
        batch_id: int,
        attempt_id: str,
        options: Options,
    ) -> "MemoryStore":
        """Open a task attempt's private store at a commit pointer; None: empty.

        Cost: nothing if this process committed and closed that state, else reading all of it.
        """
        store = cls(
            directory,
            streams,
            options,
            pointer=pointer,
            batch_id=batch_id,
            attempt_id=attempt_id,
        )
        return store._loaded_or_closed()

    @classmethod
    def open(
        cls, directory: str, streams: Sequence[StreamSchema], *, options: Options
    ) -> "MemoryStore":
        """Open the store that this process alone owns, at its last commit."""
        os.makedirs(directory, exist_ok=True)
        lock = DirectoryLock(directory)
        try:
            number, pointer = newest_pointer(directory)
            store = cls(
                directory,
                streams,
                options.of_one_process(),
                pointer=pointer,
                batch_id=number + 1,
                attempt_id=None,
            )
            store._lock = lock
            return store._loaded_or_closed()
        except BaseException:
            lock.release()
            raise

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        return MappingProxyType(self._streams)

    def append(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        with self.calling():
            self._guard.check_writable()
            rows, keys = checked_entries(stream_of(self._streams, stream), rows, keys, key)
            return self._make([self._change(Mutation("append", stream, keys, rows))])

    def retract(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        with self.calling():
            self._guard.check_writable()
            rows, keys = checked_entries(stream_of(self._streams, stream), rows, keys, key)
            return self._make([self._change(Mutation("retract", stream, keys, rows))])

    def write(self, mutations: Sequence[Mutation]) -> int:
        with self.calling():
            self._guard.check_writable()
            mutations = checked_mutations(self._streams, mutations, self._options)
            return self._make([self._change(mutation) for mutation in mutations])

    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Return a context that raises what one of the writes would raise, before the first is
        made."""
        self._guard.check_writable()
        changes = (self._change(mutation) for mutations in parts for mutation in mutations)
        self._reserve(_cost(changes))
        return nullcontext()

    def _change(self, mutation: Mutation) -> Change:
        """Convert a mutation to a change; its rows are grouped by key."""
        kind, stream, keys, rows = mutation
        schema = self._streams[stream]
        if isinstance(keys, KeyBounds):
            bounds = [*key_range(schema, *keys)]
            return Change(kind, stream, bounds, np.zeros(2, dtype=np.int64), None)
        encoded = encoded_keys(schema, self._codecs[stream], keys)
        distinct, starts = encoded.distinct()
        if rows is None:
            counts = np.zeros(len(distinct), dtype=np.int64)
            return Change(kind, stream, distinct.to_pylist(), counts, None)
        rows = self._tables[stream].plain(rows)
        # A copy: the caller's batch may be a slice of far more memory.
        grouped = rows.take(pa.array(encoded.order))
        return Change(kind, stream, distinct.to_pylist(), np.diff(starts), grouped)

    def _make(self, changes: Sequence[Change]) -> int:
        """Write and apply changes; return the number of rows stored. A crash loses all of them: the
        file becomes part of the state with its commit."""
        changes = [change for change in changes if change.keys]
        self._reserve(_cost(changes))
        with self._guard.whole_or_nothing():
            for change in changes:
                self._write(change)
                self._apply(change)
        appended: int = sum(change.rows.num_rows for change in changes if change.rows is not None)
        self._reader.counters["appended_rows"] += appended
        return appended

    def delete(
        self, stream: str, keys: BatchLike | KeyBatch, *, key: KeyNames | None = None
    ) -> None:
        with self.calling():
            self._guard.check_writable()
            keys = checked_keys(stream_of(self._streams, stream), keys, key)
            self._make([self._change(Mutation("delete", stream, keys))])

    def snapshot(self) -> Snapshot:
        """Return a snapshot. Cost: the index is copied, the rows are shared."""
        with self.calling():
            return self._snapshot()

    def _snapshot(self) -> Snapshot:
        self._reserve(sum(table.index_bytes for table in self._tables.values()))
        tables = {name: table.copy() for name, table in self._tables.items()}
        reader = MemoryReader(self._streams, self._codecs, lambda: tables)
        copies = self._copies
        copies[id(tables)] = tables

        def release() -> None:
            copies.pop(id(tables), None)
            tables.clear()

        where = f"{self._directory} as of write {self._guard.writes}"
        return self._snapshots.add(Snapshot(where, self.streams, reader, reader.stats, release))

    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """Refuse: ExpiringStore handles streams with an expiry."""
        refuse_advance(self._streams, stream, watermark)

    def commit(self) -> str:
        with self.calling():
            return self._commit()

    def _commit(self) -> str:
        is_own = self._attempt_id is None
        if self._pointer is not None and self._log is None and (is_own or self._guard.is_sealed):
            return self._pointer
        parent = self._pointer
        with self._guard.whole_or_nothing():
            if self._lock is not None:
                self._lock.check_held()
            self._pointer = self._sealed(self._log or self._new_log())
            self._log = None
            if self._lock is not None:
                self._lock.check_untaken()
        if not is_own:
            self._guard.seal()
        self._collect(parent)
        self._batch_id += 1
        return self._pointer

    def _sealed(self, log: LogWriter) -> str:
        """Return the pointer of a commit whose file absorbs small ones before it. If these are all
        files, the tables are written instead, without deleted rows."""
        new_bytes = log.data_bytes
        chain = list(self._chain)
        while chain and chain[-1].data_bytes <= log.data_bytes:
            absorbed = chain.pop()
            if chain:
                log.absorb(LogFile(self._directory, absorbed.pointer))
            else:
                log.discard()
                self._log = log = self._new_log()
                self._write_tables(log)
        predecessor = chain[-1].pointer if chain else None
        link = log.finish(predecessor, self._pointer, self._streams)
        self._chain = [*chain, link]
        self._flushed_bytes += new_bytes
        self._merged_bytes += max(0, link.data_bytes - new_bytes)
        return link.pointer

    def _write_tables(self, log: LogWriter) -> None:
        for name, table in self._tables.items():
            for keys, counts, rows in table.groups(_PIECE_BYTES):
                log.write(Change("append", name, [*keys], counts, rows))
            for key, rows in table.pending():
                log.write(Change("retract", name, [key], np.array([rows.num_rows]), rows))

    def _collect(self, parent: str | None) -> None:
        files = LogFiles(self._directory)
        try:
            if self._attempt_id is None and self._pointer is not None:
                files.remove_all_but(self._pointer)
            else:
                retained = self._options.retained_batches
                collect_now_and_then(files, set(), parent, self._batch_id, retained)
        except (OSError, CorruptionError, FormatVersionError) as error:
            # The commit is done. Remaining files only cost space until the next time.
            _log.warning("old files of %s were not deleted: %s", self._directory, str(error))

    def stats(self) -> StoreStats:
        with self.calling():
            return self._stats()

    def _stats(self) -> StoreStats:
        return replace(
            self._reader.stats(),
            peak_memory_bytes=self._peak_bytes,
            disk_bytes=sum(link.size for link in self._chain),
            memory_limit_bytes=self._options.memory_bytes,
            writes=WriteStats(
                self._reader.counters["appended_rows"],
                flushed_bytes=self._flushed_bytes,
                merged_bytes=self._merged_bytes,
            ),
        )

    def close(self) -> None:
        self._guard.close(
            self._snapshots.close, self._discard_log, self._keep_or_let_go, self._release_lock
        )

    def _discard_log(self) -> None:
        if self._log is not None:
            self._log.discard()

    def _keep_or_let_go(self) -> None:
        """Keep the tables of a committed state for the next attempt."""
        is_committed = self._log is None and self._guard.is_sealed
        with _shared:
            _open_stores.discard(self)
            if self._tables and self._pointer is not None and is_committed:
                _kept[os.path.realpath(self._directory), self._pointer] = self._tables
            self._tables = {}

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that this store holds."""
        # Copies: the store's own thread may be changing them.
        return _bytes_of(dict(self._tables)) + self._copied_bytes

    @property
    def _copied_bytes(self) -> int:
        """Bytes that snapshots hold and the tables of the store do not. Any thread may ask."""
        return sum(
            table.bytes_beside(self._tables[name])
            for tables in list(self._copies.values())
            for name, table in list(tables.items())
        )

    def _loaded_or_closed(self) -> "MemoryStore":
        """Load the state; after an error nothing counts against the memory cap."""
        try:
            return self._loaded()
        except BaseException:
            self.close()
            raise

    def _loaded(self) -> "MemoryStore":
        """Load the state of the pointer, before the store is returned."""
        self._tables = {name: MemoryTable(s.rows) for name, s in self._streams.items()}
        if self._pointer is None:
            return self
        chain = read_chain(self._directory, self._pointer, self._streams)
        self._pointer = chain[-1].pointer
        self._chain = [file.link for file in chain]
        place = (os.path.realpath(self._directory), self._pointer)
        with _shared:
            known = _kept.pop(place, None)
        if known is not None:
            self._tables = known
            return self
        for file in chain:
            for change in file.changes():
                if change.rows is not None:
                    # Older releases stored dictionaries.
                    rows = _cast(change.rows, self._tables[change.stream].schema)
                    change = change._replace(rows=rows)
                    self._reserve(MemoryTable.cost(_present(change.keys), rows))
                self._apply(change)
        return self

    def _write(self, change: Change) -> None:
        if self._log is None:
            self._log = self._new_log()
        self._log.write(change)

    def _new_log(self) -> LogWriter:
        attempt = self._attempt_id or "own"
        return LogWriter(self._directory, self._batch_id, attempt, self._options.syncs_commits)

    def _apply(self, change: Change) -> None:
        self._guard.writes += 1
        table = self._tables[change.stream]
        if change.kind == "delete_range":
            table.delete_range(*change.keys)
        elif change.kind in ("delete", "put"):
            table.delete(_present(change.keys))
        if change.rows is not None:
            add = table.retract if change.kind == "retract" else table.append
            add(_present(change.keys), change.counts, change.rows)
        if table.is_mostly_dead:
            self._tables[change.stream] = table.rebuilt()

    def _reserve(self, more: int) -> None:
        """Raise MemoryLimitError if ``more`` bytes do not fit under the memory cap."""
        cap = self._options.memory_bytes
        with _shared:
            held = sum(store.held_bytes for store in list(_open_stores))
            kept = sum(map(_bytes_of, _kept.values()))
            while _kept and held + kept + more > cap:
                _, tables = _kept.popitem(last=False)
                kept -= _bytes_of(tables)
        if held + more > cap:
            raise MemoryLimitError(
                f"backend 'memory' holds {held} bytes and needs {more} more, past the cap "
                f"{self._options.cap_name}={cap}; it cannot spill to disk: choose "
                f'backend="lsm", which '
                f"does, or raise the cap{self._snapshots.named(self._copied_bytes)}"
            )
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + more)


def _cost(changes: Iterable[Change]) -> int:
    return sum(MemoryTable.cost(_present(c.keys), c.rows) for c in changes if c.rows is not None)


def _cast(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return rows if rows.schema.equals(schema) else rows.cast(schema)


def _present(keys: Iterable[bytes | None]) -> list[bytes]:
    """Return keys of which none is null, or a bound that is open."""
    return [key for key in keys if key is not None]


def _bytes_of(tables: Tables) -> int:
    return sum(table.row_bytes + table.index_bytes for table in tables.values())
