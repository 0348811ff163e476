"""Merge pacing: how much of the current merge an append pays for.

A flush adds a run. If that would be one run too many, the flush waits for the rest of the merge.
The merge is therefore due evenly over the bytes that fill the next ``fanout`` memtables. Half as
many count if appends do all the work, since probes then visit fewer runs. Fewer count if runs would
become too many. The size of recent memtables is the estimate. The worker does what it can
meanwhile, and an append pays for what is due and not done.
"""

import math
from typing import NamedTuple

from lsmstate.options import Options
from lsmstate.process.background_worker import SLICE_BYTES

#: An append waits for the worker, which may be in an fsync, for this time multiplied by the part of
#: the merge that is overdue: the later the merge is, the more appends are delayed.
PATIENCE_SECONDS = 0.1
#: An append pays at most this many times its part of a merge, if earlier ones left theirs.
CATCH_UP = 2


class Payment(NamedTuple):
    """Bytes of a merge to read now, 0 if none are due, and seconds to wait for the worker; None: no
    limit."""

    max_bytes: int
    patience: float | None


class Pace:
    """The pace of one store that commits many times."""

    def __init__(self, options: Options) -> None:
        self._most_runs = options.most_runs
        self._more_runs = options.fanout if options.background else max(1, options.fanout // 2)
        #: Number of runs at which the current merge is to be done: whole runs, and a part of the
        #: next one.
        self._end_runs = float(options.most_runs)
        #: Bytes appended per run: a running mean in which the last run counts half. Before the
        #: first run: a third of a memtable is not keys and rows.
        self._run_bytes = options.memtable_limit_bytes * 2 // 3
        #: Bytes appended since the last new run.
        self._arrived_bytes = 0
        #: Bytes of the current merge that should have been read by now.
        self.due_bytes = 0

    def begin_merge(self, runs: int) -> None:
        """Note the start of another merge, while there are ``runs`` runs."""
        self._end_runs = min(float(self._most_runs), self._place(runs) + self._more_runs)
        self.due_bytes = 0

    def count(self, appended_bytes: int) -> None:
        """Count appended bytes."""
        self._arrived_bytes += appended_bytes

    def run_came(self) -> None:
        """Note that memtables became a run; ignored if nothing was appended."""
        if self._arrived_bytes:
            self._run_bytes = (self._run_bytes + self._arrived_bytes) // 2
            self._arrived_bytes = 0

    @property
    def _expected_bytes(self) -> int:
        """Estimate the bytes appended for the next run, those that have arrived included."""
        return max(self._run_bytes, self._arrived_bytes, 1)

    def _place(self, runs: int) -> float:
        """Return the number of runs, plus the part of the next run that has arrived."""
        return runs + self._arrived_bytes / self._expected_bytes

    def payment(self, appended_bytes: int, runs: int, total_bytes: int, done_bytes: int) -> Payment:
        """Return what an append, which was counted, pays for; ``done_bytes`` of the merge's
        ``total_bytes`` are read."""
        place = self._place(runs)
        # Past its end, because runs came sooner than estimated, the merge still has time. The last
        # eighth of a memtable is a reserve for errors of the estimate.
        end = self._end_runs if place < self._end_runs else max(self._most_runs, runs + 1)
        room = self._expected_bytes * max(end - place - 1 / 8, 1 / 16)
        part = min(1.0, appended_bytes / room)
        self.due_bytes += math.ceil((total_bytes - self.due_bytes) * part)
        # The merge may read a little more than estimated, or nothing: ranges were deleted.
        left = max(total_bytes - done_bytes, 1)
        behind = self.due_bytes - done_bytes if done_bytes < total_bytes else left
        # A smaller step is not worthwhile, except the last one: it is made once half of it is due.
        if behind < min(SLICE_BYTES, (left + 1) // 2):
            return Payment(0, 0.0)
        most = max(SLICE_BYTES, int(left * part * CATCH_UP))
        is_last_run = runs >= self._most_runs
        patience = None if is_last_run else PATIENCE_SECONDS * min(1.0, behind / (total_bytes or 1))
        return Payment(min(max(behind, SLICE_BYTES), most), patience)
