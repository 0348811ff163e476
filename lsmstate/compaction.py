"""Which runs to merge next: a pure function of the version and the options.

Lazy leveling (Dayan and Idreos, "Dostoevsky", SIGMOD 2018, section 4): up to ``fanout`` runs a
level above one single bottom run. Writing costs as much as tiering above the bottom, and a
probe of mostly-bottom data visits few runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lsmstate.options import Options
from lsmstate.version import Run


@dataclass(frozen=True, slots=True)
class Task:
    """Merge runs[start:end] (oldest first) into one of ``level``; ``bottom``: nothing is older."""

    start: int
    end: int
    level: int

    @property
    def bottom(self) -> bool:
        return self.start == 0


def pick(runs: Sequence[Run], options: Options) -> Task | None:
    """The merge that is due, or None. Runs stand oldest first, with levels that never grow."""
    for level in sorted({run.level for run in runs}):
        members = [i for i, run in enumerate(runs) if run.level == level]
        if len(members) >= options.fanout:
            return _into_bottom(runs, members[0], members[-1] + 1, level + 1, options)
    surplus = len(runs) - options.max_runs
    if surplus > 0:
        start, end = _best_window([max(1, run.size) for run in runs], surplus + 1)
        return Task(start, end, runs[start].level)
    return None


def _best_window(sizes: Sequence[int], least: int) -> tuple[int, int]:
    """The neighbours, at least so many, whose merge rewrites least for each byte that gets into a
    larger run. The cheapest neighbours alone would be the newest two every time: one run that is
    rewritten at every flush."""
    best, place = float("inf"), (0, len(sizes))
    for start in range(len(sizes)):
        for end in range(start + least, len(sizes) + 1):
            total = sum(sizes[start:end])
            cost = total / (total - max(sizes[start:end]))
            if cost < best:
                best, place = cost, (start, end)
    return place


def _into_bottom(runs: Sequence[Run], start: int, end: int, level: int, options: Options) -> Task:
    """Take the bottom run along where what comes down is no longer small beside it."""
    arriving = sum(run.size for run in runs[start:end])
    if start == 1 and arriving * options.fanout >= runs[0].size:
        return Task(0, end, max(level, runs[0].level))
    return Task(start, end, min(level, runs[start - 1].level) if start else level)
