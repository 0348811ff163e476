"""LsmStore: the store contract (``lsmstate/store.py``) on a log-structured merge tree.

- A write goes to the active memtable. Full memtables are flushed into a run. Compaction merges
  runs.
- A commit flushes the memtables into one file whose edit section is the manifest; its pointer names
  that file.
- The owner (``ownership.py``) decides how commits are found again and whether writes are logged.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date, datetime
from typing import Self

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.rows.row_codec import RowBatch
from lsmstate.cython_ext.wal.wal_record import largest_entry
from lsmstate.errors import CorruptionError, FormatVersionError
from lsmstate.lsm.checkpoints import Checkpoint, Checkpoints
from lsmstate.lsm.decoded_checks import check_write
from lsmstate.lsm.manifest import asked_pointer, parse_pointer
from lsmstate.lsm.obsolete_files import LocalFiles
from lsmstate.lsm.ownership import (
    AttemptOwner,
    CheckpointReader,
    CommitReader,
    Owner,
    ProcessOwner,
    RemoteBucket,
)
from lsmstate.lsm.reader import LsmReader, TierHolds, Tiers
from lsmstate.lsm.recovery import check_replayed
from lsmstate.lsm.table_cache import table_cache
from lsmstate.lsm.version_set import RunSet
from lsmstate.lsm.wal import APPEND, RETRACT, Write
from lsmstate.lsm.write_path import WritePath
from lsmstate.lsm.write_planner import WritePlanner, checked_entry, encoded_bytes, held_bytes
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.stats import CacheStats, PauseRecorder, StoreStats, WriteStats
from lsmstate.store import BatchLike, KeyNames, Mutation, StreamSchema
from lsmstate.store_base.batch_limits import check_row_sizes, checked_mutations, part_bytes
from lsmstate.store_base.checks import (
    check_same_streams,
    checked_entries,
    checked_keys,
    refuse_advance,
    stream_of,
    streams_by_name,
)
from lsmstate.store_base.guard import StoreGuard
from lsmstate.store_base.key_parts import check_keys, is_cut, key_parts
from lsmstate.store_base.snapshot import Snapshot, Snapshots
from lsmstate.store_base.writes import AdmittedWrites

_log = logging.getLogger(__name__)


class LsmStore(AdmittedWrites):
    """A store in one directory. One thread at a time may use it; other threads may use other
    stores."""

    _reader: LsmReader
    #: Other threads may request its memory as soon as it is registered, before it has any.
    _gives_memory = False

    def __init__(
        self, directory: str, streams: Sequence[StreamSchema], options: Options, owner: Owner
    ) -> None:
        self._streams = streams_by_name(streams)
        self._planner = WritePlanner(self._streams)
        self._directory = directory
        self._options = options
        self._owner = owner
        self._memory = process_memory()
        self._runs = RunSet(directory, self._streams, options, owner)
        self._reader = self._reader_of(self._tiers)
        self._guard = StoreGuard(
            directory, find_damage=self._reader.find_damage, turns=self._memory.turns
        )
        self._snapshots = Snapshots()
        self._holds = TierHolds(directory, self._memory)
        self._sequence = 0
        self._appended_rows = self._appended_bytes = 0
        #: For those who wait for a commit.
        self._commit_pauses = PauseRecorder()
        try:
            self._memory.enter(self, options.memory_bytes)
            self._writes = WritePath(
                self,
                self._runs,
                self._memory,
                options,
                self._guard,
                lambda: self._snapshots.named(self._holds.nbytes_beside(())),
                single_commit=owner.single_commit,
            )
        except BaseException:
            self._memory.leave(self)
            raise
        self._memtables = self._writes.memtables

    @classmethod
    def open_attempt(
        cls,
        directory: str | RemoteBucket,
        streams: Sequence[StreamSchema],
        *,
        pointer: str | None = None,
        batch_id: int,
        attempt_id: str,
        options: Options,
    ) -> Self:
        """Open an attempt's store; see ``opening.open_attempt``. Cost: one or two small reads."""
        if pointer is not None:
            asked_pointer(pointer)
        if isinstance(directory, str):
            if pointer is None:
                os.makedirs(directory, exist_ok=True)  # the first of its bucket
            owner = AttemptOwner(LocalFiles(directory), batch_id, attempt_id)
        else:
            owner = directory.attempt_owner(batch_id, attempt_id)
            directory = directory.directory
        return cls._opened(
            directory, lambda: streams, options, owner, lambda store: store._start_at(pointer)
        )

    @classmethod
    def open(cls, directory: str, streams: Sequence[StreamSchema], *, options: Options) -> Self:
        """Open a standalone store; see ``opening.open_store``. Cost: as ``open_attempt``, and the
        write-ahead log is replayed."""
        options = options.of_one_process()
        owner = ProcessOwner(directory, options)

        def begin(store: Self) -> None:
            store._start_at(owner.pointer)
            if owner.pointer is None:
                store.commit()  # fixes the streams: no log is ever read with other ones
            for write in owner.replay():
                check_write(write, list(store._streams.values()))
                store._apply(write)
            store._check_replayed()
            owner.check_replayed()
            store._runs.keep_up()  # more runs may have been left than a probe has memory for
            if options.syncs_commits or owner.has_many_logs or store._runs.has_changed:
                # As with the manifest: the log of a killed process may not be on disk, so it is
                # written again before more is acknowledged. Each opening begins another log.
                store.commit()
                owner.renew_manifest()

        return cls._opened(directory, lambda: streams, options, owner, begin)

    @classmethod
    def open_commit(cls, directory: str | RemoteBucket, pointer: str, *, options: Options) -> Self:
        """Open a commit for reading; see ``opening.open_commit``. Cost: as ``open_attempt``."""
        asked_pointer(pointer)
        if isinstance(directory, str):
            owner = CommitReader(LocalFiles(directory), directory, pointer)
        else:
            owner = directory.commit_reader(pointer)

        def begin(store: Self) -> None:
            store._start_at(pointer)
            store._guard.seal(f"is read-only, at commit {pointer}; open an attempt to write")

        return cls._opened(owner.directory, owner.known_streams, options, owner, begin)

    @classmethod
    def open_checkpoint(
        cls,
        directory: str,
        name: str,
        streams: Sequence[StreamSchema] | None = None,
        *,
        options: Options,
    ) -> Self:
        """Open a checkpoint for reading; see ``opening.open_checkpoint``. Cost: as
        ``open_attempt``."""
        owner = CheckpointReader(directory, name)

        def begin(store: Self) -> None:
            if streams is not None:
                check_same_streams(directory, owner.streams, streams_by_name(streams))
            store._start_at(owner.pointer)
            store._guard.seal(
                f"is read-only, at checkpoint {name!r}; open the store itself to write"
            )

        return cls._opened(directory, owner.known_streams, options, owner, begin)

    @classmethod
    def _opened(
        cls,
        directory: str,
        streams: Callable[[], Sequence[StreamSchema]],
        options: Options,
        owner: Owner,
        begin: Callable[[Self], None],
    ) -> Self:
        """Return a store after ``begin``; on an error release everything."""
        store = None
        try:
            owner.take()
            store = cls(directory, streams(), options, owner)
            begin(store)
        except BaseException:
            if store is not None:
                store.close()
            owner.release()
            _close_tables(directory, owner)
            raise
        store._gives_memory = True  # not earlier: replayed writes must not be flushed
        return store

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        return self._streams

    @property
    def memtable_bytes(self) -> int:
        """Bytes of slabs that the memtables hold."""
        return self._memtables.nbytes if self._gives_memory else 0

    @property
    def is_busy(self) -> bool:
        """Whether another thread is inside a call."""
        return self._guard.lock.is_held_elsewhere

    # Writing ------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Store rows under their keys."""
        return self._store(APPEND, stream, rows, keys, key)

    def retract(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Take back rows under their keys."""
        return self._store(RETRACT, stream, rows, keys, key)

    def _store(
        self,
        kind: int,
        stream: str,
        given: BatchLike,
        given_keys: BatchLike | KeyBatch | None,
        key: KeyNames | None,
    ) -> int:
        schema = stream_of(self._streams, stream)
        with self.calling():
            self._guard.check_writable()
            return self._store_rows(kind, stream, *checked_entries(schema, given, given_keys, key))

    def _store_rows(
        self, kind: int, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch
    ) -> int:
        def made(part: tuple[KeyBatch, RowBatch]) -> int:
            return self._make([self._planner.stored(kind, stream, self._sequence + 1, *part)])

        size = self._planner.sizes[stream].total(rows, keys)
        if size <= part_bytes(self._options):  # so none of its rows is too large
            with self._writes.settling():
                return made(self._planner.encoded_part(stream, rows, keys)) if rows.num_rows else 0
        check_row_sizes(rows, self._options)
        with self._writes.settling():
            # All or nothing: what refuses a later part is found before the first part is stored.
            parts, largest, held = self._planner.measured(stream, rows, keys, self._options)
            encoded = self._planner.encoded(stream, rows, keys, self._options)
            if parts == 1:
                return sum(map(made, encoded))  # each is admitted by itself, once
            stored = 0
            self._writes.announce(largest)
            with self._writes.reserving(largest, held):
                for count in map(made, encoded):
                    stored += count
                    self._writes.settle()
            return stored

    def _plan(self, mutations: Sequence[Mutation]) -> list[Write]:
        with self._guard.lock:  # another thread's flush moves rows between tiers
            tiers = self._tiers()
        return self._planner.mutations(mutations, self._sequence + 1, tiers)

    def write(self, mutations: Sequence[Mutation]) -> int:
        """Make several writes atomically."""
        with self.calling():
            self._guard.check_writable()
            mutations = checked_mutations(self._streams, mutations, self._options)
            check_keys(mutations, self._options)
            with self._writes.settling():
                return self._make(self._plan(mutations))

    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Return a context that raises what one of the writes would raise, before the first is
        made."""
        self._guard.check_writable()
        largest = held = 0
        for mutations in parts:
            writes = self._plan(mutations)
            for write in writes:
                largest = max(largest, checked_entry(write.keys, write.rows, self._options))
            held = max(held, held_bytes(writes))
        self._writes.announce(largest)
        return self._writes.reserving(largest, held)

    def _make(self, writes: Sequence[Write]) -> int:
        """Log new writes atomically, then apply them; return the number of rows stored."""
        if not writes:
            return 0
        largest = max(checked_entry(write.keys, write.rows, self._options) for write in writes)
        held = held_bytes(writes)
        appended = sum(w.keys.n_valid for w in writes if w.rows is not None)
        self._writes.announce(largest)
        with self._writes.reserving(largest, held), self._guard.whole_or_nothing():
            self._writes.catch_up()
            self._owner.log(writes)
            for write in writes:
                self._sequence = write.sequence
                self._guard.writes += 1
                self._writes.insert(write)
            self._writes.pace(held)
        self._appended_rows += appended
        self._appended_bytes += held
        return appended

    def delete(
        self, stream: str, keys: BatchLike | KeyBatch, *, key: KeyNames | None = None
    ) -> None:
        """Remove all rows of the keys."""
        with self.calling():
            self._guard.check_writable()
            keys = checked_keys(stream_of(self._streams, stream), keys, key)
            if not is_cut(keys):
                self.write([Mutation("delete", stream, keys)])
                return
            with self.admitting([Mutation("delete", stream, part)] for part in key_parts(keys)):
                for part in key_parts(keys):
                    self.write([Mutation("delete", stream, part)])

    def _apply(self, write: Write) -> None:
        """Apply a logged write, as far as the runs do not hold it."""
        sequence, place = self._writes.replay_from
        if write.sequence < sequence:
            return
        if write.sequence > sequence:
            self._check_replayed(write)
        self._sequence = write.sequence
        largest = largest_entry(write.keys, write.rows)
        held = encoded_bytes(write.keys, write.rows)
        self._writes.written_bytes += held
        self._writes.announce(largest)
        with self._writes.reserving(largest, held, is_promised=True):
            self._writes.insert(write, place if write.sequence == sequence else 0)
        self._writes.settle()

    def _check_replayed(self, following: Write | None = None) -> None:
        """Raise CorruptionError if writes are missing before this one, or a partial
        one at the end."""
        assert self._runs.pointer is not None
        commit = os.path.join(self._directory, parse_pointer(self._runs.pointer).name)
        check_replayed(commit, self._writes.replay_from, following)

    def flush(self) -> None:
        """Flush the memtables into one run and free their memory, except what snapshots retain."""
        with self.calling():
            self._flush()

    def _flush(self) -> None:
        if self._memtables:
            with self._guard.whole_or_nothing():
                self._writes.flush()

    def try_flush(self) -> bool:
        """Flush, unless the store is in use, being read, failed or empty; return whether it was
        done."""
        with self._guard.lock.tried() as has_it:
            guard = self._guard
            if not has_it or not guard.is_usable or guard.is_being_read or not self._memtables:
                return False
            self._flush()
        return True

    def compact(self, *, due_only: bool = False) -> None:
        """Merge all runs into one, unless the largest holds nearly everything; probes are then
        cheapest.

        Deleted and retracted rows are always dropped, however few they are and however large the
        largest run is; memtables are flushed for that. A standalone store is committed, so that
        merged files are deleted.

        Args:
            due_only: Do only the merges that are due now, which the next appends would otherwise
                do.

        Cost:
            Everything that is merged is read and written once.
        """
        with self.calling():
            self._guard.check_writable()
            self._compact(due_only=due_only)

    def _compact(self, *, due_only: bool) -> None:
        with self._guard.whole_or_nothing():
            self._writes.end_flush()
            if not due_only and self._tiers().may_delete(len(self._streams)):
                self._writes.flush()  # only a merge of runs drops deleted and retracted rows
            self._runs.compact(due_only=due_only)
            if self._runs.has_changed and not self._owner.single_commit:
                self._writes.commit()
        if not self._owner.single_commit:
            self._collect()

    # Reading ------------------------------------------------------------------------------

    def _tiers(self) -> Tiers:
        return Tiers(self._runs.version.runs, self._memtables.all)

    def _reader_of(self, tiers: Callable[[], Tiers]) -> LsmReader:
        planner = self._planner
        codecs = (planner.key_codecs, planner.row_codecs)
        return LsmReader(self._directory, self._streams, *codecs, self._memory, tiers)

    def snapshot(self) -> Snapshot:
        """Return a snapshot. Cost: none, or a flush if the memtables that snapshots retain would
        exceed the store's share."""
        with self.calling(), self._guard.reading():
            kept = self._holds.nbytes_beside(self._memtables.all) + self._memtables.nbytes
            if self._holds.nbytes_beside(()) and kept > self._memtables.limit_bytes:
                self._flush()
            tiers = Tiers(self._runs.version.runs, self._memtables.seal())
            hold = self._holds.hold(tiers)
            reader = self._reader_of(lambda: tiers)
            where = f"{self._directory} as of write {self._sequence}"
            return self._snapshots.add(
                Snapshot(
                    where,
                    self._streams,
                    reader,
                    reader.stats,
                    hold.release,
                    reader.find_damage,
                    self._memory.turns,
                )
            )

    # Committing ---------------------------------------------------------------------------

    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """Refuse: ExpiringStore handles streams with an expiry."""
        refuse_advance(self._streams, stream, watermark)

    def commit(self) -> str:
        """Make all writes durable and return the commit pointer."""
        with self.calling():
            return self._commit()

    def _commit(self) -> str:
        if self._guard.is_committed:  # an interrupt may have kept the pointer from being returned
            assert self._runs.pointer is not None
            return self._runs.pointer
        self._guard.check_writable()
        with self._commit_pauses.measured(), self._guard.whole_or_nothing():
            if self._owner.single_commit:
                self._runs.compact_for(self._writes.written_bytes)
            if self._runs.has_changed or not self._writes.is_committed:
                self._writes.commit()
        if self._owner.single_commit:
            self._guard.seal()
        self._collect()
        assert self._runs.pointer is not None
        return self._runs.pointer

    def checkpoint(self, name: str) -> Checkpoint:
        """Commit, and keep the commit's files under a name until the checkpoint is deleted.

        Only a standalone store has checkpoints. Cost: that of a commit.

        Raises:
            InvalidArgumentError: The name is taken or invalid.
        """
        # Under the lock: no other thread may flush meanwhile and delete named files.
        with self.calling(), self._guard.lock:
            self._guard.check_writable()
            self.checkpoints.check_free(name)
            return self.checkpoints.create(name, self.commit())

    @property
    def checkpoints(self) -> Checkpoints:
        """The named checkpoints of a standalone store: iterate over them, or ``delete`` one."""
        self._guard.check_writable()
        return self._owner.checkpoints

    def _collect(self) -> None:
        live = {file.name for file in self._runs.version.files}
        try:
            self._owner.collect(live, self._runs.opened_at, self._options.retained_batches)
        except (OSError, CorruptionError, FormatVersionError) as error:
            # The commit is sealed. Remaining files only cost space until the next time.
            _log.warning("old files of %s were not deleted: %s", self._directory, str(error))

    def _start_at(self, pointer: str | None) -> None:
        """Load the state of a pointer."""
        if pointer is None:
            return
        edit = self._runs.recover(pointer)
        self._sequence = edit.version.next_sequence - 1
        self._writes.start_at(edit.replay_from)

    # Housekeeping -------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """Return the counters as of now; memory is that of the process, to which
        the cap applies."""
        with self.calling():
            return self._stats()

    def _stats(self) -> StoreStats:
        cache, runs, found = self._memory.cache, self._runs, self._reader.stats()
        merged_bytes = runs.counters["merged_bytes"]
        return replace(
            found,
            spilled_bytes=runs.spilled_bytes,
            counters={**runs.counters, **found.counters},
            memory_limit_bytes=self._memory.budget.limit,
            cache=CacheStats(cache.hits, cache.misses, cache.evicted_bytes),
            writes=WriteStats(
                self._appended_rows,
                self._appended_bytes,
                runs.spilled_bytes - merged_bytes,
                merged_bytes,
                runs.counters["flushes"],
                runs.counters["merges"],
            ),
            append_pauses=self._writes.pauses.stats(),
            commit_pauses=self._commit_pauses.stats(),
        )

    def close(self) -> None:
        """Release memory and locks. A second call does nothing."""
        self._guard.close(
            self._snapshots.close,
            self._holds.close,
            lambda: self._memory.leave(self),
            self._writes.close,
            self._runs.abandon_merge,
            self._discard_uncommitted,
            self._owner.release,
            lambda: _close_tables(self._directory, self._owner),
        )

    def _discard_uncommitted(self) -> None:
        if self._owner.single_commit and not self._guard.is_sealed:
            self._runs.discard_uncommitted()

    def check(self) -> None:
        """Check every invariant and every block. Cost: the whole state is read."""
        with self.calling():
            self._memtables.check()
            self._runs.check()


def _close_tables(directory: str, owner: Owner) -> None:
    """Close the tables of a store that is closed, or whose files are gone: an open file keeps its
    disk after it was deleted."""
    tables = table_cache(process_memory())
    if owner.keeps_tables:
        tables.close_deleted(directory)
    else:
        tables.close_all(directory)
