"""One merge under way: read the runs of a task, write one, slice by slice.

A merge can be paid for in proportion to what is written, so that no append waits for a whole run.
Until it is installed the version does not know of it: readers and commits use the old runs, and
its files are nobody's. Closed before its end it leaves nothing.
"""

from collections.abc import Sequence

from cython_ext.entries import EntrySource
from cython_ext.merging_iter import MergingSource
from lsmstate.compaction import Task
from lsmstate.table_files import TableWriter
from lsmstate.version import FileMeta, Run


class Merge:
    """Runs are named by their place: only newer ones may be added while it goes on."""

    def __init__(
        self,
        task: Task,
        runs: Sequence[Run],
        sources: Sequence[EntrySource],
        files: TableWriter,
    ) -> None:
        self.task = task
        #: Bytes of rows and keys to be read, roughly.
        self.total_bytes = sum(
            file.raw_bytes + 32 * file.keys for run in runs for file in run.files
        )
        self.files: list[FileMeta] = []
        #: All files begun so far, also the one being written.
        self.names: list[str] = []
        base = min((f.min_sequence for r in runs for f in r.files if f.rows), default=0)
        source = MergingSource(sources)
        #: What the runs together delete from all older ones.
        self.deleted = source.deleted
        self._slices = files.write_slices(source, base, self.files, self.names, bottom=task.bottom)

    def step(self, max_bytes: int) -> bool:
        """Go on for about so many bytes; True when all is written."""
        done = 0
        for written in self._slices:
            done += written
            if done >= max_bytes:
                return False
        return True

    def abandon(self) -> None:
        """Delete what was written; a second call does nothing."""
        self._slices.close()
