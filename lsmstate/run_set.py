"""The runs of one store: which there are, how they are written, merged, committed and found again.

Versions are values: a change builds a new one and swaps one reference. What a commit needs on
disk is never touched; what an attempt wrote and merged away again before its commit is deleted at
once, because no pointer can name it.
"""

import os
from collections.abc import Mapping, Sequence

from cython_ext.entries import EntrySource
from cython_ext.file import sync_directory
from cython_ext.key_ranges import KeyRanges
from cython_ext.memtable import Memtable
from cython_ext.merging_iter import MergingSource
from cython_ext.retraction_merge import RetractingSource
from lsmstate.background import SLICE_BYTES, worker
from lsmstate.compaction import pick
from lsmstate.compactor import EVERYTHING, Flush, Merge
from lsmstate.errors import CorruptionError
from lsmstate.file_names import parse_attempt_file
from lsmstate.manifest import Edit, Pointer, changes_base, pack_edit, schema_digest
from lsmstate.memory_budget import process_memory
from lsmstate.memtables import deleted_by
from lsmstate.options import Options
from lsmstate.owners import Owner
from lsmstate.recovery import named_files, packed_schemas, recover
from lsmstate.retention import collectable, kept_batches
from lsmstate.store import StreamSchema
from lsmstate.table_cache import table_cache
from lsmstate.table_files import TableWriter
from lsmstate.version import FileMeta, Run, Version


class RunSet:
    """Owned by one store."""

    def __init__(
        self,
        directory: str,
        streams: Mapping[str, StreamSchema],
        options: Options,
        owner: Owner,
    ) -> None:
        memory = process_memory()
        self.version = Version()
        self.pointer: str | None = None
        self.spilled_bytes = 0
        self.counters = {"flushes": 0, "merges": 0, "merged_bytes": 0}
        self._directory = directory
        self._streams = streams
        self._schemas = packed_schemas(streams)
        self._options = options
        self._retained = options.retained_batches
        self._owner = owner
        self._tables = table_cache(memory)
        self._files = TableWriter(directory, options, memory.budget, owner.new_name)
        self._base: Pointer | None = None
        self._base_runs: Mapping[int, Run] = {}
        self._own_files: set[str] = set()
        self._merge: Merge | None = None
        #: How many bytes of it should have been read by now.
        self._due_bytes = 0

    @property
    def has_changed(self) -> bool:
        """Whether runs were written since the last commit, or there was none yet."""
        return self.pointer is None or bool(self._own_files)

    def recover(self, pointer: str) -> Edit:
        """Adopt the state a pointer names. CorruptionError, InvalidArgumentError."""
        found = recover(self._tables, self._directory, pointer, self._streams)
        self.version = found.edit.version
        self._base, self._base_runs = found.base, found.base_runs
        self.pointer = pointer
        return found.edit

    # Writing ------------------------------------------------------------------------------

    def begin_flush(
        self, memtables: tuple[Memtable, ...], replay_from: tuple[int, int], kind: str
    ) -> Flush:
        """Begin to write memtables, oldest first, out as the newest run, in a file of its own
        (kind "run", for ``add``) or in that of a commit ("commit", for ``commit``)."""
        return Flush(memtables, replay_from, self._files, kind)

    def add(self, flush: Flush) -> None:
        """Install a flush of kind "run", ending it if need be."""
        table = flush.finish()
        files: tuple[FileMeta, ...] = ()
        try:
            if table.described().keys:
                files = (self._files.seal(table, b""),)
        finally:
            if not files:
                self._files.remove(flush.names)
        self.counters["flushes"] += 1
        place = len(self.version.runs)
        self._install(place, place, files, 0, deleted_by(flush.memtables))

    def compact(self) -> None:
        """Run the merges that are due, to their end."""
        while self.begin_merge():
            self._step(EVERYTHING)

    def pace(self, appended_bytes: int, memtable_bytes: int) -> None:
        """Pay for the merge that is under way or due, as far as nobody else did: as large a part
        of it as ``appended_bytes`` are of what a memtable takes, so that it is done before the
        next run arrives."""
        if (merge := self.begin_merge()) is not None:
            # Alone it has to be twice as fast, to be done in time; the worker may use all of it.
            haste = 1 if self._options.background else 2
            share = min(1.0, haste * appended_bytes / memtable_bytes)
            self._due_bytes += int(merge.total_bytes * share)
            behind = self._due_bytes - merge.done_bytes
            if behind >= SLICE_BYTES or merge.is_over:
                self._step(behind)

    def keep_up(self) -> None:
        """After a new run: end what was not paid for in time, if runs would become too many."""
        while len(self.version.runs) > self._options.max_runs and self.begin_merge() is not None:
            self._step(EVERYTHING)

    def begin_merge(self) -> Merge | None:
        """The merge under way; begins the one that is due."""
        if self._merge is None:
            task = pick(self.version.runs, self._options)
            if task is not None:
                runs = self.version.runs[task.start : task.end]
                sources = [
                    self._tables.source(self._directory, run.files, run.deleted) for run in runs
                ]
                source: EntrySource = MergingSource(sources)
                if task.bottom:
                    source = self._without_retracted(source, runs)
                self._merge = Merge(task, runs, source, self._files)
                self._due_bytes = 0
                if self._options.background:
                    worker().submit(self._merge)
        return self._merge

    def _without_retracted(self, source: EntrySource, runs: Sequence[Run]) -> EntrySource:
        """The entries of a merge below which nothing is older, rows and their retractions gone."""
        first = len(self._streams).to_bytes(2, "big")
        hidden = [[file for file in run.files if file.max_key[:2] >= first] for run in runs]
        if not any(hidden):
            return source
        ahead = [
            self._tables.source(self._directory, files, run.deleted)
            for run, files in zip(runs, hidden, strict=True)
        ]
        return RetractingSource(source, MergingSource(ahead), len(self._streams))

    def _step(self, max_bytes: int) -> None:
        merge = self._merge
        assert merge is not None
        try:
            if not merge.step(max_bytes):
                return
        except BaseException:
            self._merge = None  # it has deleted its files
            raise
        self._merge = None
        self.counters["merges"] += 1
        self.counters["merged_bytes"] += sum(file.size for file in merge.files)
        task = merge.task
        self._install(task.start, task.end, tuple(merge.files), task.level, merge.deleted)

    def abandon_merge(self) -> None:
        """Give up the merge under way; the runs it read are still there."""
        if self._merge is not None:
            self._merge.abandon()
            self._merge = None

    def _install(
        self,
        start: int,
        end: int,
        files: tuple[FileMeta, ...],
        level: int,
        deleted: KeyRanges,
    ) -> None:
        before = self.version
        self.version = self._without_deleted(before.replaced(start, end, files, level, deleted))
        self._own_files.update(file.name for file in files)
        self.spilled_bytes += sum(file.size for file in files)
        if self._owner.single_commit:
            kept = {file.name for file in self.version.files}
            for file in before.files:
                if file.name in self._own_files and file.name not in kept:
                    self._drop(file.name)

    def _without_deleted(self, version: Version) -> Version:
        """Leave out files of which every key was deleted. A merge under way knows the runs by
        their place, so it is waited for."""
        if self._merge is None and any(len(run.deleted) for run in version.runs):
            return version.without_deleted()
        return version

    def commit(self, flush: Flush) -> None:
        """Seal a flush of kind "commit" and the manifest into one file, and make it the store's
        state; the flush is ended if need be."""
        table = flush.finish()
        own, name = table.described(), table.name
        place = len(self.version.runs)
        version = self.version.replaced(
            place, place, (own,) if own.keys else (), 0, deleted_by(flush.memtables)
        )
        sequence, reached = flush.replay_from
        version = self._without_deleted(version).at_sequence(sequence + (reached > 0))
        full = changes_base(version, self._base_runs)
        edit = Edit(
            version,
            None if full else str(self._base),
            schema_digest(self._schemas),
            self._schemas if full else "",
            flush.replay_from,
        )
        try:
            packed = pack_edit(edit, {} if full else self._base_runs, len(self._streams))
            sealed = self._files.seal(table, packed)
            if self._options.syncs_commits:
                sync_directory(self._directory)
        except BaseException:
            self._files.remove(flush.names)
            raise
        if own.keys:
            version = version.with_file(own, sealed)
        pointer = Pointer(name, sealed.size, sealed.checksum)
        base = pointer if full or self._base is None else self._base
        live = {file.name for file in version.files} | {name, base.name}
        self._owner.committed(str(pointer), live, sequence)
        if full:
            self._base, self._base_runs = pointer, {run.number: run for run in version.runs}
        self.version = version
        self.pointer = str(pointer)
        self.spilled_bytes += sealed.size
        for unneeded in sorted(self._own_files - live):
            self._drop(unneeded)
        self._own_files.clear()

    def check(self) -> None:
        """Verify the version's invariants and every block. Cost: the whole state is read."""
        self.version.check()
        for file in self.version.files:
            table = self._tables.open(self._directory, file)
            found = table.verify()
            if (found["keys"], found["rows"]) != (file.keys, file.rows):
                raise CorruptionError(
                    f"{found} were found, the manifest says {file.keys} keys, {file.rows} rows",
                    table.path,
                    0,
                )

    # Deleting -----------------------------------------------------------------------------

    def collect(self, current_batch: int) -> int:
        """Delete the attempts' files that no restart can need; how many. Cost: one small read
        per kept commit. What cannot be deleted now is left to the next time."""
        files = [f for f in map(parse_attempt_file, os.listdir(self._directory)) if f is not None]
        commits = [file for file in files if file.kind == "commit"]
        kept = kept_batches({f.batch_id for f in commits}, current_batch, self._retained)
        live: set[str] = set()
        for commit in commits:
            if commit.batch_id in kept:
                live |= self._named_by(commit.name)
        live |= {file.name for file in self.version.files}
        unneeded = collectable(files, live, kept, current_batch)
        for name in unneeded:
            self._drop(name)
        return len(unneeded)

    def _named_by(self, name: str) -> set[str]:
        """The files a commit needs; none if it was never sealed: no pointer can name it."""
        try:
            return named_files(self._tables, self._directory, name)
        except CorruptionError:
            return set()

    def discard_uncommitted(self) -> None:
        """Delete what this store wrote since its last commit: no pointer names it."""
        for name in sorted(self._own_files):
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._own_files.discard(name)
        self._tables.delete(self._directory, name)
