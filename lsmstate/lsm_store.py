"""LsmStore: the contract of store.py on our log-structured merge tree.

A write goes to the memtable; a full memtable becomes a run; compaction merges runs. A commit
seals the memtable into one file whose edit section is the manifest; the pointer names that file.
How commits are found again, and whether writes are logged, is the owner's (owners.py).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cython_ext.changelog_record import largest_row
from cython_ext.entries import EntrySource
from cython_ext.file import remove, sync_directory
from cython_ext.key_codec import KeyBatch, KeyCodec
from cython_ext.memtable import Memtable
from cython_ext.merging_iter import ChainSource, MergingSource
from cython_ext.probe import Cursor, Lookup, Scanner
from cython_ext.row_codec import RowBatch, RowCodec
from lsmstate.arrow_sizes import row_sizes
from lsmstate.changelog import APPEND, DELETE, Write
from lsmstate.compaction import Task, pick
from lsmstate.errors import CorruptionError, MemoryLimitError
from lsmstate.manifest import Edit, Pointer, changes_base, pack_edit, schema_digest
from lsmstate.memory_budget import process_memory
from lsmstate.options import Options
from lsmstate.owners import AttemptOwner, Owner, ProcessOwner
from lsmstate.recovery import packed_schemas, recover
from lsmstate.store import Matches, Positions, StoreStats, StreamSchema
from lsmstate.store_checks import (
    StoreGuard,
    check_rows,
    checked_positions,
    encoded_keys,
    stream_of,
    streams_by_name,
)
from lsmstate.table_cache import table_cache
from lsmstate.table_files import TableWriter, described
from lsmstate.version import FileMeta, Run, Version


class LsmProbe:
    """Where the rows of some keys lie; see store.Probe."""

    def __init__(self, lookup: Lookup, guard: StoreGuard) -> None:
        self._lookup = lookup
        self._guard = guard
        self._writes = guard.writes
        self.counts: npt.NDArray[np.int64]
        self.row_bytes: npt.NDArray[np.int64]
        self.counts, self.row_bytes = lookup.count()

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """See store.Probe.fetch."""
        self._guard.check_probe(self._writes)
        asked = checked_positions(self.counts, positions)
        return self._pieces(self._lookup.cursor(asked), max_bytes)

    def _pieces(self, cursor: Cursor, max_bytes: int) -> Iterator[Matches]:
        self._guard.check_probe(self._writes)
        while (piece := cursor.next_piece(max_bytes)) is not None:
            yield Matches(*piece)
            self._guard.check_probe(self._writes)


class LsmStore:
    """One store in one directory. Not thread-safe."""

    def __init__(
        self, directory: str, streams: Sequence[StreamSchema], options: Options, owner: Owner
    ) -> None:
        self._streams = streams_by_name(streams)
        self._numbers = {name: number for number, name in enumerate(self._streams)}
        self._key_codecs = {s.name: KeyCodec(s.key) for s in streams}
        self._row_codecs = {s.name: RowCodec(s.rows) for s in streams}
        self._schemas = packed_schemas(self._streams)
        self._directory = directory
        self._options = options
        self._owner = owner
        self._guard = StoreGuard(directory)
        self._memory = process_memory()
        self._tables = table_cache(self._memory)
        self._files = TableWriter(directory, options, self._memory.budget, self._new_name)
        self._version = Version()
        self._pointer: str | None = None
        self._base: Pointer | None = None
        self._base_runs: Mapping[int, Run] = {}
        self._sequence = 0
        #: The first write that is not wholly in the runs, and the place in its key order.
        self._replay_from = (1, 0)
        self._own_files: set[str] = set()
        self._counters = {"flushes": 0, "merges": 0, "merged_bytes": 0, "probed_keys": 0}
        self._spilled_bytes = 0
        self._memory.enter(self, options.memory_bytes)
        self._memtable = self._new_memtable()

    @classmethod
    def open_attempt(
        cls,
        directory: str,
        streams: Sequence[StreamSchema],
        *,
        pointer: str | None = None,
        batch_id: int,
        attempt_id: str,
        options: Options,
    ) -> Self:
        """See backends.open_attempt. Cost: one or two small reads, whatever the state's size."""
        store = cls(directory, streams, options, AttemptOwner(batch_id, attempt_id))
        store._start_at(pointer)
        return store

    @classmethod
    def open(
        cls, directory: str, streams: Sequence[StreamSchema], *, options: Options
    ) -> Self:
        """See backends.open_store. Cost: as open_attempt, and the changelog is replayed."""
        owner = ProcessOwner(directory, options.sync)
        try:
            store = cls(directory, streams, options, owner)
        except BaseException:
            owner.release()
            raise
        store._start_at(owner.pointer)
        try:
            for write in owner.replay():
                store._apply(write)
        except BaseException:
            store.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        return self._streams

    @property
    def memtable_bytes(self) -> int:
        """Bytes of slabs the memtable holds."""
        return self._memtable.nbytes

    # Writing ------------------------------------------------------------------------------

    def append(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch
    ) -> int:
        """See store.StateStore.append."""
        schema = stream_of(self._streams, stream)
        self._guard.check_writable()
        check_rows(schema, rows, keys)
        self._check_row_sizes(rows)
        stored = 0
        for part, part_keys in self._parts(rows, keys):
            encoded = encoded_keys(schema, self._key_codecs[stream], part_keys)
            stored += self._append(stream, self._row_codecs[stream].encode(part), encoded)
        return stored

    def _append(self, stream: str, rows: RowBatch, keys: KeyBatch) -> int:
        self._check_largest(largest_row(rows))
        held = rows.nbytes + keys.nbytes
        self._memory.budget.hold("frames", held)
        try:
            keys.set_stream_number(self._numbers[stream])
            sequence = self._sequence + 1
            self._owner.log(APPEND, self._numbers[stream], sequence, keys, rows)
            self._sequence = sequence
            self._guard.writes += 1
            self._insert(keys, sequence, lambda place: self._memtable.append(
                keys, rows, sequence, place
            ))
        finally:
            self._memory.budget.hold("frames", -held)
        return keys.n_valid

    def delete(self, stream: str, keys: pa.RecordBatch | KeyBatch) -> None:
        """See store.StateStore.delete."""
        schema = stream_of(self._streams, stream)
        self._guard.check_writable()
        encoded = encoded_keys(schema, self._key_codecs[stream], keys)
        encoded.set_stream_number(self._numbers[stream])
        sequence = self._sequence + 1
        self._owner.log(DELETE, self._numbers[stream], sequence, encoded, None)
        self._sequence = sequence
        self._guard.writes += 1
        self._insert(encoded, sequence, lambda place: self._memtable.delete(
            encoded, sequence, place
        ))

    def _apply(self, write: Write) -> None:
        """Redo a logged write, as far as it is not in the runs."""
        if (write.sequence, 0) < (self._replay_from[0], 0):
            return
        start = self._replay_from[1] if write.sequence == self._replay_from[0] else 0
        self._sequence = write.sequence
        keys, rows = write.keys, write.rows
        keys.set_stream_number(write.stream)
        if rows is None:
            self._insert(keys, write.sequence, lambda place: self._memtable.delete(
                keys, write.sequence, place
            ), start)
        else:
            self._insert(keys, write.sequence, lambda place: self._memtable.append(
                keys, rows, write.sequence, place
            ), start)

    def _insert(
        self, keys: KeyBatch, sequence: int, insert: Callable[[int], int], start: int = 0
    ) -> None:
        """Drive one write into the memtable, flushing whenever it is full."""
        place = start
        while True:
            reached = insert(place)
            if reached >= keys.n_valid:
                self._replay_from = (sequence + 1, 0)
                return
            if reached == place and len(self._memtable) == 0:
                if not self._memory.relieve(self):
                    raise MemoryLimitError(
                        f"no room for one more row: {self._memory.budget.usage()} of the cap of "
                        f"{self._memory.budget.limit} bytes are in use; raise memory_bytes"
                    )
                continue
            place = reached
            self._replay_from = (sequence, place)
            self.flush()

    def flush(self) -> None:
        """Write the memtable out as a run and give its memory back."""
        if len(self._memtable) == 0:
            return
        self._counters["flushes"] += 1
        if not self._owner.single_commit:
            self._commit()
            return
        files = self._files.write_run(
            self._memtable.source(), self._memtable.first_sequence, bottom=False, cut=False
        )
        self._install(len(self._version.runs), len(self._version.runs), files, 0)
        self._memtable.clear()
        self._memtable = self._new_memtable()
        self._compact()

    def _compact(self) -> None:
        while (task := pick(self._version.runs, self._options)) is not None:
            self._merge(task)

    def _merge(self, task: Task) -> None:
        """Run one task: read its runs, write one, install it in their place."""
        runs = self._version.runs[task.start : task.end]
        source = MergingSource([self._run_source(run.files) for run in runs])
        base = min((f.min_sequence for r in runs for f in r.files if f.rows), default=0)
        files = self._files.write_run(source, base, bottom=task.bottom)
        self._counters["merges"] += 1
        self._counters["merged_bytes"] += sum(file.size for file in files)
        self._install(task.start, task.end, files, task.level)

    def _install(self, start: int, end: int, files: tuple[FileMeta, ...], level: int) -> None:
        gone = self._version.runs[start:end]
        self._version = self._version.replaced(start, end, files, level)
        self._own_files.update(file.name for file in files)
        self._spilled_bytes += sum(file.size for file in files)
        for run in gone:
            for file in run.files:
                # What this very attempt wrote and merged away no pointer can name.
                if self._owner.single_commit and file.name in self._own_files:
                    self._drop(file.name)

    # Reading ------------------------------------------------------------------------------

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> LsmProbe:
        """See store.StateStore.probe."""
        schema = stream_of(self._streams, stream)
        self._guard.check_readable()
        encoded = encoded_keys(schema, self._key_codecs[stream], keys)
        asked_for = None if positions is None else checked_positions(encoded, positions)
        lookup = Lookup(
            encoded,
            self._numbers[stream],
            asked_for,
            self._row_codecs[stream],
            self._memory.budget,
            len(self._version.runs),
        )
        self._counters["probed_keys"] += (
            encoded.n_valid if asked_for is None else len(asked_for)
        )
        asked = lookup.key_range()
        if asked is not None:
            for run in self._version.runs:
                lookup.search_run(self._files_between(run.files, *asked))
            lookup.search_memtable(self._memtable)
        return LsmProbe(lookup, self._guard)

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
        """See store.StateStore.scan."""
        number = self._numbers[stream_of(self._streams, stream).name]
        self._guard.check_readable()
        writes = self._guard.writes
        low, high = number.to_bytes(2, "big"), number.to_bytes(2, "big") + b"\xff" * 8
        sources: list[EntrySource] = [
            self._run_source(
                [f for f in run.files if f.max_key >= low and f.min_key[:2] <= high[:2]]
            )
            for run in self._version.runs
        ]
        scanner = Scanner(
            MergingSource([*sources, self._memtable.source()]),
            number,
            self._row_codecs[stream],
            self._memory.budget,
        )
        return self._scanned(scanner, writes, max_bytes)

    def _scanned(
        self, scanner: Scanner, writes: int, max_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        self._guard.check_probe(writes)
        while (piece := scanner.next_piece(max_bytes)) is not None:
            yield piece
            self._guard.check_probe(writes)

    def _files_between(
        self, files: Sequence[FileMeta], low: bytes, high: bytes
    ) -> list[object]:
        return [
            self._tables.open(self._directory, file)
            for file in files
            if file.max_key >= low and file.min_key <= high
        ]

    def _run_source(self, files: Sequence[FileMeta]) -> ChainSource:
        return ChainSource([partial(self._file_source, file) for file in files])

    def _file_source(self, file: FileMeta) -> EntrySource:
        return self._tables.open(self._directory, file).source()

    # Committing ---------------------------------------------------------------------------

    def commit(self) -> str:
        """See store.StateStore.commit."""
        self._guard.check_writable()
        self._compact()
        if self._pointer is None or self._guard.writes or self._own_files:
            self._commit()
        if self._owner.single_commit:
            self._guard.seal()
        assert self._pointer is not None
        return self._pointer

    def _commit(self) -> None:
        """Seal the memtable and the manifest into one file, and make it the store's state."""
        memtable = self._memtable
        writer, name = self._files.start_commit(memtable.source(), memtable.first_sequence)
        own = described(writer, name)
        place = len(self._version.runs)
        version = self._version.replaced(place, place, (own,) if own.keys else (), 0)
        version = version.at_sequence(self._sequence + 1)
        full = changes_base(version, self._base_runs)
        edit = Edit(
            version,
            None if full else str(self._base),
            schema_digest(self._schemas),
            self._schemas if full else "",
            self._replay_from,
        )
        try:
            sealed = self._files.seal(
                writer, name, pack_edit(edit, {} if full else self._base_runs)
            )
        except BaseException:
            remove(os.path.join(self._directory, name))
            raise
        if own.keys:
            version = version.with_file(own, sealed)
        if self._options.sync:
            sync_directory(self._directory)
        pointer = Pointer(name, sealed.size, sealed.checksum)
        if full:
            self._base, self._base_runs = pointer, {run.number: run for run in version.runs}
        assert self._base is not None
        self._version = version
        self._pointer = str(pointer)
        self._spilled_bytes += sealed.size
        live = {file.name for file in version.files} | {name, self._base.name}
        self._owner.committed(self._pointer, live, self._replay_from[0])
        self._forget_except(live)
        self._memtable.clear()
        self._memtable = self._new_memtable()
        self._guard.writes += 1  # probes hold places in the memtable that is gone
        if not self._owner.single_commit:
            self._compact()

    def _start_at(self, pointer: str | None) -> None:
        """Adopt the state a pointer names; on an error the store is closed."""
        if pointer is None:
            return
        try:
            found = recover(self._tables, self._directory, pointer, self._streams)
        except BaseException:
            self.close()
            raise
        self._version = found.edit.version
        self._base, self._base_runs = found.base, found.base_runs
        self._pointer = pointer
        self._sequence = found.edit.version.next_sequence - 1
        self._replay_from = found.edit.replay_from

    # Housekeeping -------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """See store.StateStore.stats. Memory is that of the process, which the cap is on."""
        self._guard.check_readable()
        cache = self._memory.cache
        return StoreStats(
            memory=self._memory.budget.usage(),
            peak_memory_bytes=self._memory.budget.peak_bytes,
            disk_bytes=self._version.size,
            spilled_bytes=self._spilled_bytes,
            counters={
                **self._counters,
                "runs": len(self._version.runs),
                "files": len(self._version.files),
                "rows": sum(run.rows for run in self._version.runs) + self._memtable.rows,
                "cache_hits": cache.hits,
                "cache_misses": cache.misses,
                "cache_evicted_bytes": cache.evicted_bytes,
            },
        )

    def close(self) -> None:
        """See store.StateStore.close."""
        if not self._guard.close():
            return
        self._memory.leave(self)
        self._memtable.clear()
        if self._owner.single_commit and not self._guard.is_sealed:
            for name in sorted(self._own_files):
                self._drop(name)
        self._owner.release()

    def check(self) -> None:
        """Verify every invariant and every block. Cost: the whole state is read."""
        self._version.check()
        self._memtable.check()
        for file in self._version.files:
            table = self._tables.open(self._directory, file)
            found = table.verify()
            if (found["keys"], found["rows"]) != (file.keys, file.rows):
                raise CorruptionError(
                    f"{found} were found, the manifest says {file.keys} keys, {file.rows} rows",
                    table.path,
                    0,
                )

    def _new_memtable(self) -> Memtable:
        limit = self._memory.memtable_limit(self._options.memtable_limit_bytes)
        return Memtable(self._memory.budget, limit)

    def _new_name(self, kind: str) -> str:
        return self._owner.new_name(kind)

    def _drop(self, name: str) -> None:
        self._own_files.discard(name)
        self._tables.forget(self._directory, name)
        remove(os.path.join(self._directory, name))

    def _forget_except(self, live: set[str]) -> None:
        """Files of this store that the commit does not need: deleted if they are an attempt's."""
        for name in sorted(self._own_files - live):
            self._drop(name)
        if self._owner.single_commit:
            return
        self._own_files.clear()

    def _check_row_sizes(self, rows: pa.RecordBatch) -> None:
        """Refuse a row over a quarter of the cap before anything of its batch is stored."""
        if rows.nbytes > self._options.memory_bytes // 4 and rows.num_rows:
            for position in np.flatnonzero(row_sizes(rows) > self._options.memory_bytes // 4):
                self._check_largest(rows.slice(int(position), 1).nbytes)

    def _check_largest(self, size: int) -> None:
        limit = self._options.memory_bytes // 4
        if size > limit:
            raise MemoryLimitError(
                f"a row of {size} bytes is larger than a quarter of the memory cap ({limit} "
                f"bytes); raise memory_bytes to {4 * size} or more"
            )

    def _parts(
        self, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | KeyBatch]]:
        """The batch in parts of a bounded number of bytes; whole if it is small, as it should."""
        most = max(256 * 1024, self._options.memory_bytes // 16)
        if rows.nbytes <= most:
            if rows.num_rows:
                yield rows, keys
            return
        width = max(1, rows.num_rows * most // rows.nbytes)
        encoded = keys.to_pylist() if isinstance(keys, KeyBatch) else None
        for start in range(0, rows.num_rows, width):
            part = rows.slice(start, width)
            yield part, (
                keys.slice(start, width)
                if encoded is None
                else KeyBatch.from_bytes(encoded[start : start + width])
            )
