"""Flushes and merges in progress: files that one thread at a time writes slice by slice.

- Any thread may continue a job: the background worker, appends that pay for a merge in proportion
  to what they add, or a commit that needs the result.
- Until a job is installed, the version does not contain its files. Readers and commits use the old
  runs and memtables.
- An abandoned job leaves nothing.
"""

import logging
import threading
from collections.abc import Generator, Sequence

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.locks.locks import FairLock
from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.lsm.compaction_picker import Task
from lsmstate.lsm.memtables import source_of
from lsmstate.lsm.table_writer import TableWriter, UnsealedTable
from lsmstate.lsm.version import NOTHING, FileMeta, PartialMerge, Run

EVERYTHING = 1 << 62
#: From the first write to the last one of a file, as docs/design/disk-format.md has them.
MOST_SEQUENCES = (1 << 32) - 1

_log = logging.getLogger(__name__)


class FileJob:
    """A ``background_worker.Job``. ``slices`` yields the bytes of each slice."""

    is_urgent = False

    def __init__(
        self, slices: Generator[int, None, None], files: TableWriter, names: list[str]
    ) -> None:
        self._slices = slices
        self._files = files
        #: All files begun so far, including the one being written.
        self.names = names
        self._lock = FairLock()
        self._error: BaseException | None = None
        self._is_over = False
        self._is_abandoned = False
        #: The thread that is working on it.
        self._thread: int | None = None
        #: Approximate number of bytes read so far.
        self.done_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: done, failed or abandoned."""
        return self._is_over or self._is_abandoned

    def advance(self, max_bytes: int, patience: float | None = None) -> bool:
        """Process about ``max_bytes``; see ``background_worker.Job``.

        ``patience``: seconds to wait for another thread that works on it, before the job is left to
        that thread. None: wait until its slice is done.
        """
        with self._lock.within(patience) as has_it:
            if not has_it:
                return self.is_over
            limit = self.done_bytes + max_bytes
            self._thread = threading.get_ident()
            try:
                while not self.is_over and self.done_bytes < limit:
                    written = next(self._slices, None)
                    self._is_over = written is None
                    self.done_bytes += written or 0
            except BaseException as error:  # noqa: BLE001 - its store raises it, in step
                self._error = error
                self._is_over = True
            self._thread = None
            if self._is_abandoned:
                self._give_up()
            return self.is_over

    def step(self, max_bytes: int, patience: float | None = None) -> bool:
        """Advance the job for its own store: raise its error, whichever thread met it."""
        is_over = self.advance(max_bytes, patience)
        if self._error is not None:
            raise self._error
        return is_over

    def abandon(self) -> bool:
        """Stop the job, and delete what it wrote and still owns.

        False: this very thread is inside a slice (the garbage collector closes its store) and needs
        what the job reads. The slice is then the last one, and deletes what was written.
        """
        self._is_abandoned = True
        if self._thread == threading.get_ident():
            return False
        with self._lock:
            self._give_up()
        return True

    def _give_up(self) -> None:
        try:
            self._slices.close()
            self._files.remove(self.names)
        except OSError as error:
            # As text: a handler may keep the error, whose frames hold what was being written.
            _log.warning("unneeded files stay until the store is opened again: %s", str(error))
        self.names.clear()
        self._error = None  # its frames hold the buffers of the unfinished file


class Flush(FileJob):
    """The flush of memtables, oldest first, into one file, which is not sealed yet."""

    is_urgent = True

    def __init__(
        self,
        memtables: tuple[Memtable, ...],
        replay_from: tuple[int, int],
        files: TableWriter,
        kind: str,
    ) -> None:
        self.memtables = memtables
        self.kind = kind
        #: The first write that is not completely in the memtables, and the place reached in its key
        #: order.
        self.replay_from = replay_from
        self.table: UnsealedTable | None = None
        names: list[str] = []
        super().__init__(self._written(kind, files, names), files, names)

    def _written(
        self, kind: str, files: TableWriter, names: list[str]
    ) -> Generator[int, None, None]:
        first = self.memtables[0].first_sequence if self.memtables else 0
        self.table = yield from files.write_unsealed(source_of(self.memtables), first, kind, names)

    def _give_up(self) -> None:
        super()._give_up()
        self.table = None

    def finish(self) -> UnsealedTable:
        """Finish the flush; the caller seals the returned file."""
        self.step(EVERYTHING)
        assert self.table is not None
        return self.table

    def keep(self) -> None:
        """Give up ownership of the file: a commit or a version is about to name it."""
        self.names.clear()
        self.table = None


class Merge(FileJob):
    """A merge of runs, which are given by their positions: only newer runs may be added meanwhile.

    Between two files it can be interrupted, and another store can continue: it gets the result of
    ``leave`` as ``done``. ``retracting``: its source leaves retracted rows out.
    """

    def __init__(
        self,
        task: Task,
        runs: Sequence[Run],
        source: EntrySource,
        files: TableWriter,
        *,
        done: Sequence[FileMeta] = (),
        file_bytes: int | None = None,
        retracting: bool = False,
    ) -> None:
        self.task = task
        self._retracting = retracting
        self._runs = tuple(run.number for run in runs)
        #: Approximate number of bytes of rows and keys to be read in all.
        self.total_bytes = entry_bytes_of(runs)
        #: Files written so far, those of earlier stores included.
        self.files = list(done)
        #: How many of them a commit names: they are not this job's to delete.
        self.recorded = len(done)
        base = base_sequence_of(runs)
        #: Ranges that the runs together delete from all older runs.
        self.deleted = source.deleted if source.deleted is not None else NOTHING
        names: list[str] = []
        slices = self._written(
            source,
            self.files[-1].max_key if self.files else b"",
            files.write_slices(
                source, base, self.files, names, bottom=task.bottom, file_bytes=file_bytes
            ),
        )
        super().__init__(slices, files, names)

    def _written(
        self, source: EntrySource, after: bytes, slices: Generator[int, None, None]
    ) -> Generator[int, None, None]:
        if after:
            source.skip_behind(after)
        yield from slices

    def step_to_file_end(self, max_bytes: int) -> bool:
        """Advance the job, and then to the end of a file."""
        is_over = self.step(max_bytes)
        while not is_over and self.is_inside_file:
            is_over = self.step(1)
        return is_over

    @property
    def is_inside_file(self) -> bool:
        """Whether a file was begun and not sealed."""
        finished = self.files[-1].name if self.files else ""  # the first file may take more
        return bool(self.names) and self.names[-1] != finished

    @property
    def new_files(self) -> Sequence[FileMeta]:
        """Return those of ``files`` that no commit names yet."""
        return self.files[self.recorded :]

    def leave(self) -> PartialMerge:
        """Interrupt the merge and return its progress, for another store to continue. An unfinished
        file is deleted; the others belong to the caller."""
        with self._lock:
            self._is_over = True
            finished = {file.name for file in self.files}
            self.names[:] = [name for name in self.names if name not in finished]
            self._slices.close()
        return self._so_far(self.files)

    def record(self) -> PartialMerge:
        """Return the progress for a commit to name, and go on: another store can continue from
        there. The files so far belong to the caller. After an error there are none. While another
        thread works on it, which may take a disk seconds, the progress is that of the last time."""
        with self._lock.within(0.0) as has_it:
            if self._error is not None:
                return self._so_far(())
            if has_it:
                for file in self.new_files:
                    self.names.remove(file.name)
                self.recorded = len(self.files)
            return self._so_far(self.files[: self.recorded])

    def _so_far(self, files: Sequence[FileMeta]) -> PartialMerge:
        return PartialMerge(self._runs, self.task.level, tuple(files), self._retracting)


def base_sequence_of(runs: Sequence[Run]) -> int:
    """Return the base of the rows' sequence numbers in a file of all these runs. Sequence numbers
    in a file have limited room: older writes count as the base itself."""
    files = [file for run in runs for file in run.files if file.rows]
    first = min((file.min_sequence for file in files), default=0)
    return max(first, max((file.max_sequence for file in files), default=0) - MOST_SEQUENCES)


def entry_bytes_of(runs: Sequence[Run]) -> int:
    """Estimate how many bytes a merge of these runs reads."""
    return sum(file.entry_bytes for run in runs for file in run.files)
