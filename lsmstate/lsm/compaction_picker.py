"""Compaction picker: which runs to merge next. A pure function of the version and the options.

Lazy leveling (Dayan and Idreos, "Dostoevsky", SIGMOD 2018, section 4) has up to ``fanout`` runs per
level above a single bottom run.

- Writing costs as much as tiering above the bottom. A probe of mostly-bottom data visits few runs.
- A level that is small beside the bottom may hold twice as many runs. Few keys have rows in them,
  so they cost probes little, and rows are merged less often.
- State that does not fit in memory costs a read for each run that has rows of a key. There, all
  runs above the bottom are merged into it together, whatever their levels, as soon as they are
  large beside it.
- Attempts continue such a merge one after another. Until it is done, its runs take part in no other
  merge. Without a worker, therefore, only the level next to the bottom is merged into it.

Leveled keeps one run per level: more writes, cheaper probes. Tiered keeps up to ``fanout`` runs on
every level: the reverse.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import attrgetter

from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.lsm.version import NOTHING, FileMeta, Run
from lsmstate.options import Options

#: Level of the bottom run in lazy leveling. If its level followed from the runs above, it would be
#: merged with a few runs that fill that level, however large it is.
BOTTOM_LEVEL = 63
#: A level with less than this part of the bottom run is small beside it.
SMALL_PART = 1 / 4
#: Runs above the bottom run that hold this part of it are large beside it.
LARGE_PART = 1 / 4
#: The level next to the bottom is large from this part on, if there is no worker.
LARGE_LEVEL_PART = 1 / 3
#: ``compact`` does not merge runs that together hold less than this part of the bottom run.
UNMERGED_PART = 1 / 16
#: If newer runs delete this part of the data, all of it is merged: only the bottom drops tombstones
#: and the rows they delete.
DELETED_PART = 1 / 2
#: But only if they hold this part of the oldest run: such a merge writes and reads that much.
PAYING_PART = 1 / 8
#: A run with a smaller part of all bytes is not worth joining ranges to estimate what they delete.
SMALL_RUN_PART = 1 / 32

#: Runs that one merge reads at most, whatever the memory cap: ``max_runs`` and ``fanout`` of the
#: options at their limits.
MOST_MERGED = 48

_min_key, _max_key = attrgetter("min_key"), attrgetter("max_key")


@dataclass(frozen=True, slots=True)
class Task:
    """Merge runs[start:end] (oldest first) into one of ``level``; ``bottom``: no run is older."""

    start: int
    end: int
    level: int

    @property
    def bottom(self) -> bool:
        return self.start == 0


def pick(runs: Sequence[Run], options: Options, busy: int = 0) -> Task | None:
    """Return the merge that is due, or None.

    Runs are ordered oldest first, with levels that never grow. The oldest ``busy`` runs are already
    being merged: they are left alone and count as one. A merge reads at most ``most_runs`` runs,
    for which memory suffices: a store that has more gets there by several merges.
    """
    most = options.most_runs
    free = len(runs) - busy
    if free <= 2 * most:
        task = _due(runs, options, busy)
        if task is None or task.end - task.start <= most:
            return task
    return pick_beside(runs, busy, min(free, most) - 1, most)


def _due(runs: Sequence[Run], options: Options, busy: int) -> Task | None:
    """Return the merge that is due, of any number of runs, or None."""
    due = _leveled if options.merging == "leveled" else _by_level
    task = due(runs, options, busy)
    if task is not None:
        return task
    free = runs[busy:]
    if not busy and _delete_much(runs):
        return Task(0, len(runs), max(1, runs[0].level))
    if not busy and sum(run.deleted.nbytes for run in runs) > options.memory_bytes // 32:
        # Only the bottom drops deleted ranges: the run with most of them is merged into it.
        most = max(range(len(runs)), key=lambda place: runs[place].deleted.nbytes)
        return Task(0, most + 1, max(1, runs[0].level))
    surplus = len(free) + (busy > 0) - options.max_runs
    return pick_beside(runs, busy, surplus, options.most_runs) if surplus > 0 else None


def pick_beside(
    runs: Sequence[Run], busy: int, surplus: int = 1, most: int = MOST_MERGED
) -> Task | None:
    """Return the cheapest merge of at most ``most`` runs that leaves ``surplus`` fewer runs, or one
    fewer.

    The oldest ``busy`` runs are being merged and left alone. None: fewer than two runs are newer.
    """
    sizes = [max(1, run.size) for run in runs[busy:]]
    if len(sizes) < 2:
        return None
    start, end = _best_window(sizes, min(surplus + 1, len(sizes), most), most)
    return Task(busy + start, busy + end, runs[busy + start].level)


def pick_for_reading(runs: Sequence[Run], *, has_pairs: bool = False) -> Task | None:
    """Return the merge of all runs into one; None if they nearly are one and delete nothing.

    It makes probes cheapest and frees the space of all deleted rows. A single run is merged too if
    it has tombstones, or ``has_pairs`` of rows and their retractions, which make reads expensive.
    """
    above = sum(run.size for run in runs[1:])
    if (
        has_pairs
        or _hold_deletions(runs)
        or (len(runs) > 1 and above >= UNMERGED_PART * runs[0].size)
    ):
        return Task(0, len(runs), BOTTOM_LEVEL)
    return None


def _delete_much(runs: Sequence[Run]) -> bool:
    """Test whether newer runs delete much of the data, and are large enough to justify merging all
    of it.

    The deletion of an absent key looks like any other. The size condition therefore bounds what is
    merged.
    """
    if not _are_large(runs[1:], PAYING_PART, runs) or not _hold_deletions(runs[1:]):
        return False
    return deleted_bytes(runs) >= DELETED_PART * sum(run.size for run in runs)


def _hold_deletions(runs: Iterable[Run]) -> bool:
    return any(run.deleted or run.tombstones for run in runs)


def deleted_bytes(runs: Sequence[Run]) -> float:
    """Estimate how many bytes of files the newer runs delete.

    The deleted keys of a file are assumed to be spread evenly over the overlapping files of each
    older run. A deleted range counts by the part of a file that it covers. Cost: each file is
    visited once; overlapping older files are found by binary search.
    """
    total = sum(run.size for run in runs)
    ranges, others, deleting = NOTHING, list[KeyRanges](), list[FileMeta]()
    found = 0.0
    for run in reversed(runs):
        files = run.files
        if others and run.size >= SMALL_RUN_PART * total:
            ranges = KeyRanges(chain(ranges.items, *(each.items for each in others)))
            others = []
        parts = _deleted_parts(files, deleting) if deleting else repeat(0.0)
        for file, part in zip(files, parts, strict=False):
            covered = ranges.part_of(file.min_key, file.max_key) if ranges else 0.0
            found += file.size * min(1.0, part + covered)
        if run.deleted:
            others.append(run.deleted)
        deleting += [file for file in files if file.tombstones]
    return found


def _deleted_parts(files: Sequence[FileMeta], deleting: Iterable[FileMeta]) -> Iterable[float]:
    """Estimate for each file of a run which part of its keys the newer files delete."""
    keys_before = [0, *accumulate(file.keys for file in files)]
    begins = [0.0] * (len(files) + 1)
    for each in deleting:
        start = bisect_left(files, each.min_key, key=_max_key)
        end = bisect_right(files, each.max_key, lo=start, key=_min_key)
        part = each.tombstones / max(1, keys_before[end] - keys_before[start])
        begins[start] += part
        begins[end] -= part
    return accumulate(begins[:-1])


def _by_level(runs: Sequence[Run], options: Options, busy: int) -> Task | None:
    """Lazy and tiered: a full level becomes one run of the next level. Lazy includes the bottom run
    if the merged runs are no longer small beside it."""
    is_lazy = options.merging == "lazy"
    goes_down = is_lazy and busy == 0 and sum(run.size for run in runs) > options.memory_bytes
    if goes_down and options.background and _are_large(runs[1:], LARGE_PART, runs):
        return Task(0, len(runs), BOTTOM_LEVEL)
    for level in sorted({run.level for run in runs[busy:]}):
        members = [i for i, run in enumerate(runs) if i >= busy and run.level == level]
        start, end = members[0], members[-1] + 1
        arriving = sum(run.size for run in runs[start:end])
        is_small = is_lazy and start > 0 and arriving < SMALL_PART * runs[0].size
        full = _most_small(options) if is_small else options.fanout
        is_early = goes_down and start == 1 and _are_large(runs[1:end], LARGE_LEVEL_PART, runs)
        if len(members) < full and not is_early:
            continue
        takes_bottom = start == 0 or (start == 1 and arriving * options.fanout >= runs[0].size)
        if is_early or (is_lazy and busy == 0 and takes_bottom):
            return Task(0, end, BOTTOM_LEVEL)
        return Task(start, end, min(level + 1, runs[start - 1].level) if start else level + 1)
    return None


def _are_large(some: Sequence[Run], part: float, runs: Sequence[Run]) -> bool:
    """Test whether these runs hold that part of the bottom run."""
    return len(some) > 0 and sum(run.size for run in some) >= part * runs[0].size


def _most_small(options: Options) -> int:
    """Return how many runs a small level may have: twice as many, if that is not the limit of all
    runs."""
    return max(options.fanout, min(2 * options.fanout, options.max_runs - 1))


def _leveled(runs: Sequence[Run], options: Options, busy: int) -> Task | None:
    """Leveled: enough new runs are merged into the next older run, and so on, until a run is
    ``fanout`` times as large as what would be merged into it."""
    start = len(runs)
    while start > busy and runs[start - 1].level == 0:
        start -= 1
    if len(runs) - start < options.fanout:
        return None
    size = sum(run.size for run in runs[start:])
    while start > busy and runs[start - 1].size < options.fanout * size:
        start -= 1
        size += runs[start].size
    return Task(start, len(runs), max(1, runs[start].level))


def _best_window(sizes: Sequence[int], least: int, most: int) -> tuple[int, int]:
    """Return the neighbours, ``least`` to ``most`` of them, whose merge rewrites least per byte
    that moves into a larger run. The cheapest neighbours alone would always be the newest two: one
    run that each flush rewrites."""
    best, place = float("inf"), (0, min(most, len(sizes)))
    for start in range(len(sizes) - least + 1):
        for end in range(start + least, min(start + most, len(sizes)) + 1):
            total = sum(sizes[start:end])
            cost = total / (total - max(sizes[start:end]))
            if cost < best:
                best, place = cost, (start, end)
    return place
