"""RocksStore: the store contract on RocksDB, through rocksdict. It is the reference for our own
store.

One database per store has three column families:

    default   "streams" -> the streams' schemas
    counts    stream(u16) key -> entry: rows, bytes, chunks
    rows      stream(u16) key chunk(u32) -> chunk: encoded rows

- Looking up a key is one point read in ``counts``, whose filters and entries are small. Rows lie in
  chunks of one append, at most 32 KiB or one row, which are read by their exact names.
- An attempt works in a private directory, into which the tables of its pointer are hard-linked. Its
  commit is a RocksDB checkpoint (hard links again) in a new directory that the pointer names.
"""

import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import date, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import rocksdict

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.lsm.directory_lock import DirectoryLock
from lsmstate.lsm.obsolete_files import collect_now_and_then
from lsmstate.options import Options
from lsmstate.rocksdb_backend.attempt_files import RocksAttempts, link_files
from lsmstate.rocksdb_backend.database import (
    PendingWrite,
    close_parts,
    counted,
    database_options,
    filter_stats,
    rocks_errors,
)
from lsmstate.rocksdb_backend.fork import check_fork, watch
from lsmstate.rocksdb_backend.reader import RocksReader
from lsmstate.rocksdb_backend.records import (
    PENDING_CHUNK,
    Entry,
    chunk_name,
    cut,
    pack_chunk,
    unpack_entry,
)
from lsmstate.rocksdb_backend.streams import STREAMS_KEY, pack_streams, unpack_streams
from lsmstate.stats import CacheStats, ProbeStats, StoreStats, WriteStats
from lsmstate.store import BatchLike, KeyBounds, KeyNames, Mutation, StreamSchema
from lsmstate.store_base.batch_limits import checked_mutations
from lsmstate.store_base.checks import (
    check_same_streams,
    checked_entries,
    checked_keys,
    refuse_advance,
    stream_of,
    streams_by_name,
)
from lsmstate.store_base.guard import StoreGuard, do_all
from lsmstate.store_base.key_range import key_range
from lsmstate.store_base.snapshot import Snapshot, Snapshots
from lsmstate.store_base.writes import AdmittedWrites

_log = logging.getLogger("lsmstate")

_SNAPSHOT = "snapshot-"
_LEVEL_0 = "rocksdb.num-files-at-level0"
#: So many files are not too many, however small they are.
_MANY_FILES = 64
#: How often an opening checks whether RocksDB has merged enough.
_LOOK_SECONDS = 0.001


class RocksStore(AdmittedWrites):
    """A store on RocksDB; ``open_attempt`` and ``open`` are the two ways to own one."""

    _backend = "rocksdb"
    _reader: RocksReader

    def __init__(
        self,
        directory: str,
        streams: Sequence[StreamSchema],
        options: Options,
        *,
        path: str,
        checkpoint: str | None,
        lock: DirectoryLock | None,
    ) -> None:
        """Make a store. ``checkpoint`` is the path of the future commit; None if one process owns
        the store."""
        self._directory = directory
        self._streams = streams_by_name(streams)
        self._reader = RocksReader(path, self._streams)
        self._options = options
        self._path = path
        self._checkpoint = checkpoint
        #: The pointer at which an attempt was opened.
        self._parent: str | None = None
        self._batch_id = 0
        self._lock = lock
        self._guard = StoreGuard(directory)
        self._peak_bytes = 0
        self._snapshots = Snapshots()
        #: The database and its column families, as far as they are open.
        self._parts: list[rocksdict.Rdict] = []
        self._cache = rocksdict.Cache(options.memory_bytes * 3 // 4)
        try:
            with rocks_errors(path):
                self._open_database()
            self._check_streams()
        except BaseException:
            self._close_database()
            raise

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
    ) -> "RocksStore":
        """Open a task attempt's private store at a commit pointer; None: empty.

        Cost: a hard link per table, a copy of the manifest, the opening of a database.
        """
        files = RocksAttempts(directory)
        source = None if pointer is None else files.check(pointer)
        work, commit = files.new_names(batch_id, attempt_id)
        try:
            if source is not None:
                link_files(source, work)
            else:
                os.makedirs(work)
            store = cls(directory, streams, options, path=work, checkpoint=commit, lock=None)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        store._parent, store._batch_id = pointer, batch_id
        return store

    @classmethod
    def open(
        cls, directory: str, streams: Sequence[StreamSchema], *, options: Options
    ) -> "RocksStore":
        """Open the store that this process alone owns; RocksDB's own log keeps every write."""
        os.makedirs(directory, exist_ok=True)
        lock = DirectoryLock(directory)
        try:
            path = os.path.join(directory, "db")
            for name in os.listdir(directory):
                if name.startswith(_SNAPSHOT):  # left by a killed process
                    shutil.rmtree(os.path.join(directory, name))
            options = options.of_one_process()
            store = cls(directory, streams, options, path=path, checkpoint=None, lock=lock)
        except BaseException:
            lock.release()
            raise
        try:
            store._catch_up()
        except BaseException:
            store.close()
            raise
        return store

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
            return self._make([Mutation("append", stream, keys, rows)])

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
            return self._make([Mutation("retract", stream, keys, rows)])

    def write(self, mutations: Sequence[Mutation]) -> int:
        with self.calling():
            self._guard.check_writable()
            mutations = checked_mutations(self._streams, mutations, self._options)
            return self._make(mutations)

    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Return a context that raises what one of the writes would raise, before the first is
        made."""
        self._guard.check_writable()
        for mutations in parts:
            for _, stream, keys, rows in mutations:
                if not isinstance(keys, KeyBounds):
                    self._reader.encoded(stream, keys)
                if rows is not None:
                    self._reader.row_bytes(stream, rows)
        return nullcontext()

    def _make(self, mutations: Sequence[Mutation]) -> int:
        batch = PendingWrite()
        with rocks_errors(self._path):
            appended = sum(self._stage(batch, mutation) for mutation in mutations)
            self._write(batch.writes)
        self._reader.counters["appended_rows"] += appended
        return appended

    def _stage(self, batch: PendingWrite, mutation: Mutation) -> int:
        """Add one mutation to a write that may hold others; return the number of rows it stores."""
        kind, stream, keys, rows = mutation
        if isinstance(keys, KeyBounds):
            number = list(self._streams).index(stream)
            wanted = key_range(self._streams[stream], *keys).in_stream(number)
            assert wanted.high is not None, "stream numbers end below the last one"
            families = (self._counts_family, self._rows_family)
            batch.delete_range(wanted.low, wanted.high, families)
            return 0
        encoded = self._reader.encoded(stream, keys)
        distinct, starts = encoded.distinct()
        names = self._reader.names(stream, distinct)
        old = batch.entries(names, self._reader.entries(names))
        if kind in ("put", "delete"):
            for name, entry in zip(names, old, strict=True):
                self._delete(batch, name, entry)
            old = [None] * len(names)
        if rows is None:
            return 0
        values = self._reader.row_bytes(stream, rows)
        order = encoded.order.tolist()
        add = self._take if kind == "retract" else self._add
        for g, name in enumerate(names):
            add(batch, name, old[g], [values[row] for row in order[starts[g] : starts[g + 1]]])
        return int(encoded.n_valid)

    def delete(
        self, stream: str, keys: BatchLike | KeyBatch, *, key: KeyNames | None = None
    ) -> None:
        with self.calling():
            self._guard.check_writable()
            keys = checked_keys(stream_of(self._streams, stream), keys, key)
            self._make([Mutation("delete", stream, keys)])

    def snapshot(self) -> Snapshot:
        """Return a snapshot: a RocksDB checkpoint that is read in place.

        rocksdict's own snapshots do not survive being iterated over. Cost: a flush, a hard link per
        table, the opening of a database.
        """
        with self.calling():
            return self._snapshot()

    def _snapshot(self) -> Snapshot:
        name = f"{_SNAPSHOT}{uuid.uuid4().hex}"
        if self._checkpoint is None:
            path = os.path.join(self._directory, name)
        else:  # has the attempt's name, so it is deleted if this process is killed
            path = f"{self._path}-{name}"
        with rocks_errors(self._path):
            rocksdict.Checkpoint(self._database).create_checkpoint(path)
        parts: list[rocksdict.Rdict] = []
        reader = RocksReader(path, self._streams)

        def release() -> None:
            reader.close_iterators()
            do_all(partial(close_parts, path, parts), partial(_remove_tree, path))

        try:
            with rocks_errors(path):
                database = rocksdict.Rdict(
                    path,
                    self._families["default"],
                    column_families=self._families,
                    access_type=rocksdict.AccessType.read_only(),
                )
                parts.append(database)
                for name in ("counts", "rows"):
                    parts.append(database.get_column_family(name))
                _, reader.counts, reader.rows = parts
        except BaseException:
            release()
            raise
        where = f"{self._directory}, kept in {os.path.basename(path)}"
        return self._snapshots.add(Snapshot(where, self.streams, reader, reader.stats, release))

    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """Refuse: ExpiringStore handles streams with an expiry."""
        refuse_advance(self._streams, stream, watermark)

    def commit(self) -> str:
        with self.calling(), rocks_errors(self._path):
            if self._checkpoint is None:
                self._database.flush_wal(self._options.syncs_commits)
                return f"db@{self._database.latest_sequence_number()}"
            if not self._guard.is_sealed:
                self._seal(self._checkpoint)
                self._collect()
        return os.path.basename(self._checkpoint)

    def _seal(self, commit: str) -> None:
        """Write the commit; after an error there is none, and it can be tried again."""
        try:
            # It flushes the memtables first: attempts write no log.
            rocksdict.Checkpoint(self._database).create_checkpoint(commit)
            RocksAttempts(self._directory).seal(commit, self._parent)
        except BaseException:
            shutil.rmtree(commit, ignore_errors=True)
            raise
        self._guard.seal()

    def _collect(self) -> None:
        files, retained = RocksAttempts(self._directory), self._options.retained_batches
        try:
            collect_now_and_then(files, set(), self._parent, self._batch_id, retained)
        except OSError as error:
            # The commit is done. Remaining files only cost space until the next time.
            _log.warning("old files of %s were not deleted: %s", self._directory, str(error))

    def stats(self) -> StoreStats:
        with self.calling():
            return self._stats()

    def _stats(self) -> StoreStats:
        self._note_memory()
        disk = self._property("rocksdb.total-sst-files-size")
        seen = counted(self._families["default"])
        return StoreStats(
            memory=self._memory(),
            peak_memory_bytes=self._peak_bytes,
            disk_bytes=disk,
            spilled_bytes=disk,
            counters=dict(self._reader.counters),
            memory_limit_bytes=self._options.memory_bytes,
            cache=CacheStats(seen["block.cache.hit"], seen["block.cache.miss"]),
            filters=filter_stats(seen),
            probes=ProbeStats(self._reader.counters["probed_keys"]),
            writes=WriteStats(
                self._reader.counters["appended_rows"],
                flushed_bytes=seen["flush.write.bytes"],
                merged_bytes=seen["compact.write.bytes"],
            ),
        )

    def close(self) -> None:
        self._guard.close(
            self._snapshots.close, self._close_database, self._remove_work, self._release_lock
        )

    def _remove_work(self) -> None:
        if self._checkpoint is not None:
            _remove_tree(self._path)

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _delete(self, batch: PendingWrite, name: bytes, old: bytes | None) -> None:
        """Remove one key's entry and chunks in a write."""
        if old is not None:
            batch.changed[name] = None
            batch.writes.delete(name, self._counts_family)
            for number in range(unpack_entry(old).chunks):
                batch.writes.delete(chunk_name(name, number), self._rows_family)
            self._put_pending(batch, name, unpack_entry(old), [])

    def _take(
        self, batch: PendingWrite, name: bytes, old: bytes | None, wanted: list[bytes]
    ) -> None:
        """Take rows of one key from its chunks, oldest first; absent ones stay pending."""
        entry = unpack_entry(old)
        missing = list(wanted)
        rows, size = entry.rows, entry.row_bytes
        for number in range(entry.chunks):
            found = self._chunk(batch, chunk_name(name, number)) if missing else []
            kept = [row for row in found if not _remove(missing, row)]
            rows -= len(found) - len(kept)
            size -= sum(map(len, found)) - sum(map(len, kept))
            if len(kept) < len(found):
                self._put_chunk(batch, chunk_name(name, number), kept)
        pending = self._pending(batch, name, entry) + missing
        self._put_pending(batch, name, entry, pending)
        self._put_entry(batch, name, Entry(rows, size, entry.chunks, len(pending)))

    def _pending(self, batch: PendingWrite, name: bytes, entry: Entry) -> list[bytes]:
        """Return a key's pending retractions."""
        return self._chunk(batch, chunk_name(name, PENDING_CHUNK)) if entry.pending else []

    def _chunk(self, batch: PendingWrite, name: bytes) -> list[bytes]:
        """Return the rows of a chunk, as stored or as changed since."""
        found = batch.chunks.get(name)
        return self._reader.chunk(name) if found is None else found

    def _put_chunk(self, batch: PendingWrite, name: bytes, rows: list[bytes]) -> None:
        batch.chunks[name] = rows
        batch.writes.put(name, pack_chunk(rows), self._rows_family)

    def _put_pending(
        self, batch: PendingWrite, name: bytes, entry: Entry, pending: list[bytes]
    ) -> None:
        if pending:
            self._put_chunk(batch, chunk_name(name, PENDING_CHUNK), pending)
        elif entry.pending:
            batch.writes.delete(chunk_name(name, PENDING_CHUNK), self._rows_family)

    def _put_entry(self, batch: PendingWrite, name: bytes, entry: Entry) -> None:
        batch.changed[name] = entry.pack()
        batch.writes.put(name, entry.pack(), self._counts_family)

    def _add(self, batch: PendingWrite, name: bytes, old: bytes | None, rows: list[bytes]) -> None:
        """Add one key's rows to a write: new chunks, and the key's new entry."""
        entry = unpack_entry(old)
        pending = list(self._pending(batch, name, entry))
        rows = [row for row in rows if not _remove(pending, row)]
        if entry.pending:
            self._put_pending(batch, name, entry, pending)
        chunks = entry.chunks
        for part in cut(rows) if rows else ():
            self._put_chunk(batch, chunk_name(name, chunks), part)
            chunks += 1
        size = entry.row_bytes + sum(map(len, rows))
        self._put_entry(batch, name, Entry(entry.rows + len(rows), size, chunks, len(pending)))

    def _write(self, batch: rocksdict.WriteBatch) -> None:
        if self._lock is not None:
            self._lock.check_held()
        self._guard.writes += 1  # inside ``calling``, whose lock keeps reads out
        self._database.write(batch, self._write_options)
        if self._lock is not None:
            self._lock.check_untaken()
        self._note_memory()

    def _check_streams(self) -> None:
        """Write the schemas into a new database, or compare them with those of an old one."""
        with rocks_errors(self._path):
            kept = self._database.get(STREAMS_KEY)
        if kept is None:
            entry = pack_streams(self._streams)
            with rocks_errors(self._path):
                self._database.put(STREAMS_KEY, entry, write_opt=self._write_options)
            return
        check_same_streams(self._directory, unpack_streams(kept, self._path), self._streams)

    def _open_database(self) -> None:
        buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            self._options.memtable_limit_bytes, False, self._cache
        )
        default = database_options(self._options, self._cache, buffers, with_filter=True)
        rows = database_options(self._options, self._cache, buffers, with_filter=False)
        if self._checkpoint is not None:
            default.enable_statistics()
        self._write_options = rocksdict.WriteOptions()
        # The stub calls this attribute a method.
        options: Any = self._write_options
        options.disable_wal = self._checkpoint is not None
        options.sync = self._options.syncs_writes and self._checkpoint is None
        self._families = {"default": default, "counts": default, "rows": rows}
        check_fork()
        self._database = rocksdict.Rdict(self._path, default, column_families=self._families)
        self._parts.append(self._database)
        self._reader.counts = self._database.get_column_family("counts")
        self._parts.append(self._reader.counts)
        self._reader.rows = self._database.get_column_family("rows")
        self._parts.append(self._reader.rows)
        self._counts_family = self._database.get_column_family_handle("counts")
        self._rows_family = self._database.get_column_family_handle("rows")
        watch(self)

    def database_parts(self) -> list[object]:
        """Return the objects whose end would close the database; none once it is closed."""
        names = ("_database", "_counts_family", "_rows_family", "_snapshots", "_reader", "_parts")
        return [vars(self)[name] for name in names if name in vars(self)]

    def _close_database(self) -> None:
        """Close what is open of the database; nothing of it is open after an error."""
        self._reader.close_iterators()
        for name in ("_counts_family", "_rows_family"):
            vars(self).pop(name, None)  # a second close may come after an interrupt
        close_parts(self._path, self._parts)

    def _catch_up(self) -> None:
        """Wait until RocksDB has merged what earlier sessions left, if that is too many files.

        RocksDB merges in the background, and abandons it when it is closed. Short sessions would
        never merge. Files whose keys follow one another are not even merged then, but moved: once
        there are many, and most are small, all are merged.
        """
        while (
            self._most_files() > self._options.max_runs
            and (
                self._property("rocksdb.compaction-pending")
                or self._property("rocksdb.num-running-compactions")
            )
            and not self._property("rocksdb.background-errors")
        ):
            time.sleep(_LOOK_SECONDS)
        files = len(self._database.live_files())
        size = self._property("rocksdb.total-sst-files-size")
        if files > max(_MANY_FILES, 4 * size // self._options.file_bytes):
            everything = rocksdict.CompactOptions()
            everything.set_bottommost_level_compaction(
                rocksdict.BottommostLevelCompaction.force_optimized()
            )
            with rocks_errors(self._path):
                for family in (self._reader.counts, self._reader.rows):
                    family.compact_range(None, None, everything)

    def _most_files(self) -> int:
        """Return the files on level 0 of a column family, all of which a probe visits."""
        with rocks_errors(self._path):
            found = [f.property_value(_LEVEL_0) for f in (self._reader.counts, self._reader.rows)]
        return max(int(files or 0) for files in found)

    def _memory(self) -> dict[str, int]:
        # Write buffers are charged to the cache; they are listed separately for readers.
        memtables = self._property("rocksdb.cur-size-all-mem-tables")
        return {
            "memtables": memtables,
            "block_cache": max(0, int(self._cache.get_usage()) - memtables),
            "table_readers": self._property("rocksdb.estimate-table-readers-mem"),
        }

    def _note_memory(self) -> None:
        self._peak_bytes = max(self._peak_bytes, sum(self._memory().values()))

    def _property(self, name: str) -> int:
        with rocks_errors(self._path):
            return sum(
                f.property_int_value(name) or 0 for f in (self._reader.counts, self._reader.rows)
            )


def _remove_tree(path: str) -> None:
    """Remove a directory that may be gone."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def _remove(rows: list[bytes], row: bytes) -> bool:
    """Remove one equal row; return whether there was one."""
    if row in rows:
        rows.remove(row)
        return True
    return False
