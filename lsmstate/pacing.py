"""How much of the merge under way an append pays for.

A flush adds a run, and where that would be one too many, whoever flushes waits for all that is left
of the merge. So a merge is due evenly over what may be appended until there are as many runs as may
be, as far as the last memtables tell. The worker does what it can meanwhile; an append pays for
what is due and not done.
"""

from typing import NamedTuple

from lsmstate.background import SLICE_BYTES

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
    """Of one store that commits many times. ``haste``: how many times as fast as needed a merge is
    paid for."""

    def __init__(self, most_runs: int, haste: int) -> None:
        self._most_runs = most_runs
        self._haste = haste
        #: Appended since the last run came, and before that since the one before.
        self._arrived_bytes = 0
        self._run_bytes = 0
        #: How many bytes of the merge under way should have been read by now.
        self.due_bytes = 0

    def begin_merge(self) -> None:
        """Another merge is under way."""
        self.due_bytes = 0

    def count(self, appended_bytes: int) -> None:
        """So much was appended."""
        self._arrived_bytes += appended_bytes

    def run_came(self) -> None:
        """Memtables were installed as a run. A single small one, of a commit, is not the rule."""
        if self._arrived_bytes:
            before = self._run_bytes or self._arrived_bytes
            self._run_bytes = (before + self._arrived_bytes) // 2
            self._arrived_bytes = 0

    def payment(
        self, appended_bytes: int, memtable_bytes: int, runs: int, total_bytes: int, done_bytes: int
    ) -> Payment:
        """For an append that was counted, while there are so many runs, and of the merge's
        ``total_bytes`` were ``done_bytes`` read."""
        # Of a memtable a third goes to what is not keys and rows, until one tells more.
        run_bytes = self._run_bytes or memtable_bytes * 2 // 3
        runs_left = max(1, self._most_runs - runs)
        room = max(runs_left * run_bytes - self._arrived_bytes, run_bytes // 8, 1)
        part = min(1.0, appended_bytes / room)
        self.due_bytes += int((total_bytes - self.due_bytes) * min(1.0, self._haste * part))
        # What is read may be a little more than was foretold.
        left = max(total_bytes - done_bytes, SLICE_BYTES)
        behind = self.due_bytes - done_bytes if done_bytes < total_bytes else left
        if behind < SLICE_BYTES:
            return Payment(0, 0.0)
        most = max(SLICE_BYTES, int(left * part * CATCH_UP))
        patience = None if runs >= self._most_runs else PATIENCE_SECONDS * behind / total_bytes
        return Payment(min(behind, most), patience)
