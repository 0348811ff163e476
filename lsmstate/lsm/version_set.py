"""The runs of one store: they are flushed, merged, committed and recovered here.

Versions are values: a change builds a new one and replaces one reference. Files that a commit needs
are never touched. Files that an attempt wrote and merged before its commit are deleted at once,
because no pointer can name them.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial

from lsmstate.cython_ext.base.file import sync_directory
from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.cython_ext.iterators.merging_iter import MergingSource
from lsmstate.cython_ext.iterators.retraction_merge import RetractingSource
from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.cython_ext.sstable.sst_check import verify
from lsmstate.errors import CorruptionError
from lsmstate.lsm.compaction_picker import Task, pick, pick_beside, pick_for_reading
from lsmstate.lsm.decoded_checks import check_rows
from lsmstate.lsm.jobs import EVERYTHING, Flush, Merge, entry_bytes_of
from lsmstate.lsm.manifest import (
    Edit,
    Pointer,
    changes_base,
    pack_edit,
    parse_pointer,
    schema_digest,
)
from lsmstate.lsm.memtables import deleted_by
from lsmstate.lsm.merge_pacing import Pace
from lsmstate.lsm.ownership import Owner
from lsmstate.lsm.recovery import packed_schemas, recover
from lsmstate.lsm.retractions import most_table_bytes
from lsmstate.lsm.table_cache import table_cache
from lsmstate.lsm.table_writer import TableWriter, zone_columns
from lsmstate.lsm.version import FileMeta, PartialMerge, Run, Version, hold_hidden
from lsmstate.options import MIB, Options
from lsmstate.process.background_worker import worker
from lsmstate.process.memory_budget import process_memory
from lsmstate.schema.codecs import codecs_of
from lsmstate.store import StreamSchema
from lsmstate.store_base.guard import do_all

#: An attempt reads this many bytes for merges per byte it writes. That is more than lazy leveling
#: needs in the long run (five, simulated; seven if expiry drops the bottom run), so that a large
#: merge is done before the next is due.
MERGES_PER_WRITE = 8
#: Least bytes that an attempt reads for merges: about 40 ms.
LEAST_MERGE_BYTES = 4 * MIB
#: Bytes that the first commit of a session reads to merge small runs: a few milliseconds.
TINY_MERGE_BYTES = 1 * MIB
#: Bytes merged in one step of a thread that does a whole merge.
TURN_BYTES = 8 * MIB
#: A commit continues a merge to the end of a file, so files of an interrupted merge are no larger.
MOST_PART_BYTES = 8 * MIB


class RunSet:
    """The runs of one store."""

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
        #: The pointer at which the store was opened.
        self.opened_at: str | None = None
        self.spilled_bytes = 0
        self.counters = {"flushes": 0, "merges": 0, "merged_bytes": 0}
        self._directory = directory
        self._streams = streams
        self._schemas = packed_schemas(streams)
        self._options = options
        self._owner = owner
        self._tables = table_cache(memory)
        zones = zone_columns(streams.values())
        self._files = TableWriter(directory, options, memory.budget, owner, zones)
        self._base: Pointer | None = None
        self._base_runs: Mapping[int, Run] = {}
        self._own_files: set[str] = set()
        #: As of the last commit.
        self._committed = self.version
        self._merge: Merge | None = None
        #: Whether an earlier store left the current merge: the worker does not have it yet.
        self._is_left = False
        #: The result of ``pick`` for a version, since every append asks for it.
        self._picked: tuple[Version, Task | None] = self.version, None
        self._pace = Pace(options)
        #: Bytes of merges that ``compact_for`` and ``pay_ahead`` have read so far.
        self._paid_bytes = 0

    @property
    def has_changed(self) -> bool:
        """Whether runs changed since the last commit, or there was none yet."""
        return self.pointer is None or self.version is not self._committed

    def recover(self, pointer: str) -> Edit:
        """Load the state of a pointer. CorruptionError, InvalidArgumentError."""
        found = recover(self._tables, self._directory, pointer, self._streams, self._schemas)
        self.version = self._committed = found.edit.version.with_ranges(self._charged)
        self._base = found.base
        # An edit has the digest of its base's schemas: if their text differs, the next edit is
        # complete.
        self._base_runs = found.base_runs if found.schemas == self._schemas else {}
        self.pointer = self.opened_at = pointer
        if found.edit.merge is not None:
            self._merge = self._continued(found.edit.merge)
            self._is_left = True
            self._pace.begin_merge(len(self.version.runs))
        return found.edit

    # Writing ------------------------------------------------------------------------------

    def begin_flush(
        self, memtables: tuple[Memtable, ...], replay_from: tuple[int, int], kind: str
    ) -> Flush:
        """Begin to write memtables, oldest first, as the newest run.

        The file is of its own (kind "run", for ``add``) or that of a commit (kind "commit", for
        ``commit``).
        """
        return Flush(memtables, replay_from, self._files, kind)

    def add(self, flush: Flush) -> None:
        """Install a flush of kind "run"; finish it first if necessary."""
        table = flush.finish()
        files: tuple[FileMeta, ...] = ()
        try:
            if table.described().keys:
                files = (self._files.seal(table, b""),)
        finally:
            if not files:
                self._files.remove(flush.names)
        flush.keep()
        self.counters["flushes"] += 1
        place = len(self.version.runs)
        self._own_files.update(file.name for file in files)
        self.spilled_bytes += sum(file.size for file in files)
        self._install(place, place, files, 0, deleted_by(flush.memtables))
        self._pace.run_came()

    def compact(self, *, due_only: bool) -> None:
        """Do all merges that are due.

        Before that, unless ``due_only``, merge all runs into one, if the runs above the bottom are
        not small beside it, or something was deleted or retracted.
        """
        if self._merge is not None:
            self._step(EVERYTHING)
        self.keep_up()  # so that memory suffices for what follows
        has_pairs = not due_only and self._has_pairs()
        while (
            task := (None if due_only else pick_for_reading(self.version.runs, has_pairs=has_pairs))
            or self._due()
        ):
            self._begin(task, EVERYTHING)
            self._step(EVERYTHING)
            has_pairs = False  # the first merge covered all runs and left no pairs

    def _has_pairs(self) -> bool:
        """Test whether there are rows together with their retractions."""
        runs = self.version.runs
        return (
            hold_hidden(runs, len(self._streams))
            and self._retracting(self._entries(runs, b""), runs).has_pairs()
        )

    def compact_for(self, written_bytes: int) -> None:
        """Before the commit of an attempt, and the first one of a standalone store: work on due
        merges in proportion to what was written since the opening. The next opening continues a
        large merge, so runs stay few however short the sessions are."""
        left = max(LEAST_MERGE_BYTES, MERGES_PER_WRITE * written_bytes) - self._paid_bytes
        if self._merge is not None and self._merge.is_inside_file:
            left -= self._pay(self._merge, 1)  # an unfinished file would be wasted
        while left > 0 and (merge := self._due_merge(left)) is not None:
            # A commit names one unfinished merge: another one is completed, or its work is wasted.
            left -= self._pay(merge, left if merge is self._merge else EVERYTHING)

    def pay_ahead(self, appended_bytes: int, written_bytes: int) -> None:
        """Attempts that write more than a memtable: do this append's part of the work that
        ``compact_for`` would do for all writes so far. The work is thus spread over the appends and
        the commit."""
        due = MERGES_PER_WRITE * written_bytes - self._paid_bytes
        part = min(due, MERGES_PER_WRITE * appended_bytes)
        if part > 0 and (merge := self.begin_merge(due, may_be_left=True)) is not None:
            self._pay(merge, part, to_file_end=False)

    def _pay(self, merge: Merge, max_bytes: int, *, to_file_end: bool = True) -> int:
        """Advance a merge; return how many bytes were read, at least one."""
        before = merge.done_bytes
        self._step(max_bytes, merge, to_file_end=to_file_end)
        paid = max(1, merge.done_bytes - before)
        self._paid_bytes += paid
        return paid

    def _due_merge(self, left: int) -> Merge | None:
        """Return the next merge to work on. While a large one is in progress, smaller merges of
        newer runs come first, if they can be done at once or runs would become too many."""
        if self._merge is None:
            return self.begin_merge(left)
        busy = self._merge.task.end
        task = pick(self.version.runs, self._options, busy)
        if task is None:
            return self._merge
        runs = self.version.runs[task.start : task.end]
        if entry_bytes_of(runs) > left and len(self.version.runs) - busy < self._options.max_runs:
            return self._merge
        return self._new_merge(task)

    def _continued(self, begun: PartialMerge) -> Merge:
        """Continue a merge that another attempt left; raise CorruptionError if its runs are
        missing."""
        numbers = [run.number for run in self.version.runs]
        start = numbers.index(begun.runs[0]) if begun.runs[0] in numbers else 0
        end = start + len(begun.runs)
        if tuple(numbers[start:end]) != begun.runs:
            raise CorruptionError(
                f"a merge of the runs {begun.runs} is in progress, but the runs are {numbers}",
                os.path.join(self._directory, parse_pointer(str(self.pointer)).name),
                0,
            )
        task = Task(start, end, begun.level)
        return self._new_merge(task, begun, file_bytes=self._part_bytes())

    def _part_bytes(self, left: int = LEAST_MERGE_BYTES) -> int:
        """Return the size of files of a merge that may be interrupted between two of them: several
        files are paid for at a time."""
        if not self._owner.single_commit:  # one file per session, at most, is not paid for
            return min(self._options.file_bytes, MOST_PART_BYTES)
        return min(self._options.file_bytes, MOST_PART_BYTES, max(2 * MIB, left // 4))

    def pace(self, appended_bytes: int) -> None:
        """After an append of this size: work on the current or due merge, as far as nobody else
        did; see ``merge_pacing``."""
        self._pace.count(appended_bytes)
        if self._is_left and self._merge is not None and self._options.background:
            worker().submit(self._merge)
        self._is_left = False
        if (merge := self.begin_merge()) is not None:
            payment = self._pace.payment(
                appended_bytes,
                len(self.version.runs),
                merge.total_bytes,
                merge.done_bytes,
            )
            if payment.max_bytes or merge.is_over:
                self._step(payment.max_bytes, patience=payment.patience)

    def keep_up(self, arriving: int = 0) -> None:
        """Complete overdue work if runs are too many, with those that are ``arriving``. If the new
        runs are small, as those of commits, some of them are merged instead where that is cheaper.

        A standalone store does so before a commit, which then records it: a store that is closed
        right after a commit would do the same work again.
        """
        most = self._options.most_runs - arriving
        while len(self.version.runs) > most and (merge := self.begin_merge()) is not None:
            self._step(EVERYTHING, self._merge_beside(merge.total_bytes - merge.done_bytes))

    def merge_tiny_runs(self) -> None:
        """Before the first commit of a session adds a run: merge some that are small, if there
        would be more than ``max_runs``. Larger ones have until there are ``most_runs``."""
        while len(self.version.runs) + 1 > self._options.max_runs:
            busy = 0 if self._merge is None else self._merge.task.end
            task = pick_beside(self.version.runs, busy, most=self._options.most_runs)
            if task is None:
                return
            runs = self.version.runs[task.start : task.end]
            if entry_bytes_of(runs) > TINY_MERGE_BYTES:
                return
            self._step(EVERYTHING, self._new_merge(task))

    def _merge_beside(self, most_bytes: int) -> Merge | None:
        """Return a merge of runs newer than the current merge's, if it reads no more."""
        if self._merge is None or self._merge.is_over:
            return None
        most = self._options.most_runs
        task = pick_beside(self.version.runs, self._merge.task.end, most=most)
        if task is None:
            return None
        runs = self.version.runs[task.start : task.end]
        if entry_bytes_of(runs) > most_bytes:
            return None
        return self._new_merge(task)

    def begin_merge(self, left: int = EVERYTHING, *, may_be_left: bool = False) -> Merge | None:
        """Return the current merge, or begin the one that is due.

        An attempt pays for ``left`` bytes of it. If it ``may_be_left``, the attempt need not
        complete it.
        """
        if self._merge is None and (task := self._due()) is not None:
            self._begin(task, left, may_be_left=may_be_left)
        return self._merge

    def _due(self) -> Task | None:
        """Return the merge that is due if none is in progress."""
        if self._picked[0] is not self.version:
            self._picked = self.version, pick(self.version.runs, self._options)
        return self._picked[1]

    def _begin(self, task: Task, left: int, *, may_be_left: bool = False) -> None:
        runs = self.version.runs[task.start : task.end]
        is_partial = may_be_left or entry_bytes_of(runs) > left
        self._merge = self._new_merge(
            task, file_bytes=self._part_bytes(left) if is_partial else None
        )
        self._pace.begin_merge(len(self.version.runs))
        if self._options.background:
            worker().submit(self._merge)

    def _new_merge(
        self, task: Task, begun: PartialMerge | None = None, *, file_bytes: int | None = None
    ) -> Merge:
        """Make a merge, or the rest of one.

        Retractions and the rows they remove are dropped if no run is older. The runs determine what
        is dropped, so another store drops the same beyond any key. A merge that began without
        dropping them continues so: the retractions of the rows it kept must stay.
        """
        runs = self.version.runs[task.start : task.end]
        done = begun.files if begun is not None else ()
        source: EntrySource = self._entries(runs, done[-1].max_key if done else b"")
        retracting = task.bottom and hold_hidden(runs, len(self._streams))
        if begun is not None:
            retracting = begun.retracting
        if retracting:
            source = self._retracting(source, runs)
        return Merge(
            task,
            runs,
            source,
            self._files,
            done=done,
            file_bytes=file_bytes,
            retracting=retracting,
        )

    def _entries(self, runs: Sequence[Run], low: bytes) -> EntrySource:
        """Return all entries of the files that have any from a key on."""
        return MergingSource(
            [
                self._tables.source(
                    self._directory, [f for f in run.files if f.max_key >= low], run.deleted
                )
                for run in runs
            ]
        )

    def _retracting(self, source: EntrySource, runs: Sequence[Run]) -> RetractingSource:
        """Return the entries of runs without retractions and the rows they remove;
        no run is older."""
        return RetractingSource(
            source,
            partial(self._entries, runs),
            len(self._streams),
            self._files.budget,
            most_table_bytes(self._files.budget),
        )

    def _step(
        self,
        max_bytes: int,
        merge: Merge | None = None,
        *,
        to_file_end: bool = False,
        patience: float | None = None,
    ) -> None:
        """Advance the current merge, or another one of newer runs; before a commit that records it,
        to the end of a file. ``patience``: see FileJob.advance."""
        merge = merge or self._merge
        assert merge is not None
        if to_file_end:
            is_over = merge.step_to_file_end(max_bytes)
        else:
            is_over = merge.step(min(max_bytes, TURN_BYTES), patience)
            while not is_over and max_bytes > TURN_BYTES:
                process_memory().turns.pass_on()
                max_bytes -= TURN_BYTES
                is_over = merge.step(min(max_bytes, TURN_BYTES), patience)
        if not is_over:
            return
        # After an error ``close`` abandons it: the worker may still be working on it.
        if merge is self._merge:
            self._merge = None
        self.counters["merges"] += 1
        self._count_merged(merge.new_files)
        task = merge.task
        self._install(task.start, task.end, tuple(merge.files), task.level, merge.deleted)

    def _count_merged(self, files: Sequence[FileMeta]) -> None:
        merged_bytes = sum(file.size for file in files)
        self.counters["merged_bytes"] += merged_bytes
        self.spilled_bytes += merged_bytes
        self._own_files.update(file.name for file in files)

    def abandon_merge(self) -> None:
        """Abandon the current merge; the runs it read still exist."""
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
        made = before.replaced(start, end, files, level, self._charged(deleted))
        self.version = self._without_deleted(made)
        kept = {file.name for file in self.version.files}
        gone = [file.name for file in before.files if file.name not in kept]
        self._tables.uncache(self._directory, gone)
        if self._owner.single_commit:
            for name in gone:
                if name in self._own_files:
                    self._drop(name)

    def _charged(self, deleted: KeyRanges) -> KeyRanges:
        return deleted.of_a_run(self._files.budget) if len(deleted) else deleted

    def _without_deleted(self, version: Version) -> Version:
        """Drop the files of which every key was deleted. The current merge knows runs by position,
        so it is completed first."""
        if self._merge is None and any(len(run.deleted) for run in version.runs):
            return version.without_deleted()
        return version

    def commit(self, flush: Flush) -> None:
        """Seal a flush of kind "commit" and the manifest into one file, which becomes the store's
        state; finish the flush first if necessary."""
        table = flush.finish()
        own, name = table.described(), table.name
        place = len(self.version.runs)
        deleted = self._charged(deleted_by(flush.memtables))
        version = self.version.replaced(place, place, (own,) if own.keys else (), 0, deleted)
        sequence, reached = flush.replay_from
        version = self._without_deleted(version).at_sequence(sequence + (reached > 0))
        begun = self._merge_so_far()
        full = changes_base(version, self._base_runs)
        edit = Edit(
            version,
            None if full else str(self._base),
            schema_digest(self._schemas),
            self._schemas if full else "",
            flush.replay_from,
            begun,
            self.opened_at if self._owner.single_commit else None,
        )
        try:
            packed = pack_edit(edit, {} if full else self._base_runs, len(self._streams))
            sealed = self._files.seal(table, packed)
            if self._options.syncs_commits:
                sync_directory(self._directory)
        except BaseException:
            self._files.remove(flush.names)
            raise
        flush.keep()
        if own.keys:
            version = version.with_file(own, sealed)
            # An attempt's only commit does not count as a flush; a standalone store's flushes are
            # commits.
            self.counters["flushes"] += not self._owner.single_commit
        pointer = Pointer(name, sealed.size, sealed.checksum)
        base = pointer if full or self._base is None else self._base
        live = {file.name for file in edit.files} | {name, base.name}
        if self._merge is not None:
            live |= {file.name for file in self._merge.files}
        self._owner.committed(str(pointer), live, sequence)
        if full:
            self._base, self._base_runs = pointer, {run.number: run for run in version.runs}
        self.version = self._committed = version
        self._pace.run_came()
        self.pointer = str(pointer)
        self.spilled_bytes += sealed.size
        for unneeded in sorted(self._own_files - live):
            self._drop(unneeded)
        self._own_files.clear()

    def _merge_so_far(self) -> PartialMerge | None:
        """Return what a commit records of the current merge. An attempt ends with its commit, so
        its merge is interrupted."""
        merge = self._merge
        if merge is None:
            return None
        before = merge.recorded
        if self._owner.single_commit:
            self._merge = None
            begun = merge.leave()
        else:
            begun = merge.record()
        self._count_merged(begun.files[before:])
        return begun if begun.files else None

    def check(self) -> None:
        """Check the version's invariants, every block and every row. Cost: the whole state is read
        and decoded."""
        self.version.check()
        for file in self.version.files:
            table = self._tables.open(self._directory, file)
            found = verify(table, [codecs_of(stream).rows for stream in self._streams.values()])
            if (found["keys"], found["rows"]) != (file.keys, file.rows):
                raise CorruptionError(
                    f"{found} were found, the manifest says {file.keys} keys, {file.rows} rows",
                    table.path,
                    0,
                )
            check_rows(table, list(self._streams.values()), process_memory().budget)

    def discard_uncommitted(self) -> None:
        """Delete what this store wrote since its last commit: no pointer names it."""
        do_all(*[partial(self._drop, name) for name in sorted(self._own_files)])

    def _drop(self, name: str) -> None:
        self._tables.delete(self._directory, name)
        self._owner.forget(name)
        self._own_files.discard(name)
