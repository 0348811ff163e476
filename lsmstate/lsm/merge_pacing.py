"""How much of the merge under way an append pays for.

A flush adds a run, and where that would be one too many, whoever flushes waits for all that is left
of the merge. So a merge is due evenly over what fills the next ``fanout`` memtables (half as many
where appends do it alone: probes visit fewer runs), or fewer where runs would become too many, as
far as the last ones tell how much that is. The worker does what it can meanwhile; an append pays
for what is due and not done.
"""

import math
from typing import NamedTuple

from lsmstate.options import Options
from lsmstate.process.background_worker import SLICE_BYTES

#: An append waits for the worker, which may be forcing a file to the disk, for this times the part
#: of the merge that should be done and is not: the later it is, the more appends are held up.
PATIENCE_SECONDS = 0.1
#: An append pays for so many times its part of a merge, at most, where earlier ones left theirs.
CATCH_UP = 2


class Payment(NamedTuple):
    """Bytes of a merge to be read now, 0 if none are due; seconds to wait for the worker, which may
    be at it, None: as long as it takes."""

    max_bytes: int
    patience: float | None


class Pace:
    """Of one store that commits many times."""

    def __init__(self, options: Options) -> None:
        self._most_runs = options.most_runs
        self._more_runs = options.fanout if options.background else max(1, options.fanout // 2)
        #: When so many stand the merge under way is to be done: some, and a part of the next one.
        self._end_runs = float(options.most_runs)
        #: Appended for a run: a mean of the last ones, in which the last one counts half. Before
        #: there was one: of a memtable a third goes to what is not keys and rows.
        self._run_bytes = options.memtable_limit_bytes * 2 // 3
        #: Appended since the last run came.
        self._arrived_bytes = 0
        #: How many bytes of the merge under way should have been read by now.
        self.due_bytes = 0

    def begin_merge(self, runs: int) -> None:
        """Another merge is under way, of some of so many runs."""
        self._end_runs = min(float(self._most_runs), self._place(runs) + self._more_runs)
        self.due_bytes = 0

    def count(self, appended_bytes: int) -> None:
        """So much was appended."""
        self._arrived_bytes += appended_bytes

    def run_came(self) -> None:
        """Memtables were written out as a run; if nothing had arrived, it says nothing."""
        if self._arrived_bytes:
            self._run_bytes = (self._run_bytes + self._arrived_bytes) // 2
            self._arrived_bytes = 0

    @property
    def _expected_bytes(self) -> int:
        """To be appended for the next run, with what has arrived."""
        return max(self._run_bytes, self._arrived_bytes, 1)

    def _place(self, runs: int) -> float:
        """So many runs, and the part of the next one that has arrived."""
        return runs + self._arrived_bytes / self._expected_bytes

    def payment(self, appended_bytes: int, runs: int, total_bytes: int, done_bytes: int) -> Payment:
        """For an append that was counted, while there are so many runs, and of the merge's
        ``total_bytes`` were ``done_bytes`` read."""
        place = self._place(runs)
        # Behind its end, because runs came sooner than foretold, it has still time. The last eighth
        # of a memtable is left to what the estimate is short of.
        end = self._end_runs if place < self._end_runs else max(self._most_runs, runs + 1)
        room = self._expected_bytes * max(end - place - 1 / 8, 1 / 16)
        part = min(1.0, appended_bytes / room)
        self.due_bytes += math.ceil((total_bytes - self.due_bytes) * part)
        # What is read may be a little more than was foretold, or nothing: ranges were deleted.
        left = max(total_bytes - done_bytes, 1)
        behind = self.due_bytes - done_bytes if done_bytes < total_bytes else left
        # Less is not worth a step, but for the last one: it is made once half of it is due.
        if behind < min(SLICE_BYTES, (left + 1) // 2):
            return Payment(0, 0.0)
        most = max(SLICE_BYTES, int(left * part * CATCH_UP))
        is_last_run = runs >= self._most_runs
        patience = None if is_last_run else PATIENCE_SECONDS * min(1.0, behind / (total_bytes or 1))
        return Payment(min(max(behind, SLICE_BYTES), most), patience)
