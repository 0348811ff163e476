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


def pick(runs: Sequence[Run], options: Options, busy: int = 0) -> Task | None:
    """The merge that is due, or None. Runs stand oldest first, with levels that never grow. The
    oldest ``busy`` ones are left alone: a merge of them is under way, and they count as one."""
    for level in sorted({run.level for run in runs[busy:]}):
        members = [i for i, run in enumerate(runs) if i >= busy and run.level == level]
        if len(members) >= options.fanout:
            start, end = members[0], members[-1] + 1
            if busy:
                return Task(start, end, min(level + 1, runs[start - 1].level))
            return _into_bottom(runs, start, end, level + 1, options)
    free = runs[busy:]
    surplus = len(free) + (busy > 0) - options.max_runs
    if surplus > 0 and len(free) > 1:
        least = min(surplus + 1, len(free))
        start, end = _best_window([max(1, run.size) for run in free], least)
        return Task(busy + start, busy + end, free[start].level)
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
