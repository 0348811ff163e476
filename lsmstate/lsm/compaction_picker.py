"""Which runs to merge next: a pure function of the version and the options.

Lazy leveling (Dayan and Idreos, "Dostoevsky", SIGMOD 2018, section 4): up to ``fanout`` runs a
level above one single bottom run. Writing costs as much as tiering above the bottom, and a
probe of mostly-bottom data visits few runs. A level that is small beside the bottom may hold
twice as many: few keys have rows in any of them, so they cost probes little, and what is written
is merged less often. A state that memory does not hold pays a read for each run that has rows of a
key, so there all that lies above the bottom goes down into it at once, whatever its levels, as soon
as it is large beside it. Attempts leave such a merge to one another, and until it is done the runs
in it are merged with nothing else; so without a worker only the level next to the bottom goes down.
Leveled keeps one run a level, which costs more writes and spares probes; tiered up to ``fanout``
runs on every level, the reverse.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import attrgetter

from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.lsm.version import NOTHING, FileMeta, Run
from lsmstate.options import Options

#: Of the bottom run of lazy leveling. Were its level that of the runs above, it would be merged
#: with as few of them as make that level full, however large it is.
BOTTOM_LEVEL = 63
#: A level with fewer bytes than this part of the bottom run is small beside it.
SMALL_PART = 1 / 4
#: What lies above the bottom run and holds this part of it is large beside it.
LARGE_PART = 1 / 4
#: A level next to it that does is, where there is no worker.
LARGE_LEVEL_PART = 1 / 3
#: What ``compact`` leaves unmerged: runs that hold less than this part of the bottom run together.
UNMERGED_PART = 1 / 16
#: Where newer runs delete this part of what there is, all that is merged: only the bottom forgets
#: deletions, and with them what they delete.
DELETED_PART = 1 / 2
#: But not before they hold this part of the oldest run: that much is written for each such merge,
#: and goes into it.
PAYING_PART = 1 / 8
#: A run with less of all bytes is not worth joining ranges for, to see what they delete of it.
SMALL_RUN_PART = 1 / 32

_min_key, _max_key = attrgetter("min_key"), attrgetter("max_key")


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
    due = _leveled if options.merging == "leveled" else _by_level
    task = due(runs, options, busy)
    if task is not None:
        return task
    free = runs[busy:]
    if not busy and _delete_much(runs):
        return Task(0, len(runs), max(1, runs[0].level))
    if not busy and sum(run.deleted.nbytes for run in runs) > options.memory_bytes // 32:
        # Only the bottom forgets deleted ranges: those of the run with most of them go there.
        most = max(range(len(runs)), key=lambda place: runs[place].deleted.nbytes)
        return Task(0, most + 1, max(1, runs[0].level))
    surplus = len(free) + (busy > 0) - options.max_runs
    return pick_beside(runs, busy, surplus) if surplus > 0 else None


def pick_beside(runs: Sequence[Run], busy: int, surplus: int = 1) -> Task | None:
    """The cheapest merge that leaves so many runs less, or one, without the oldest ``busy``, of
    which a merge is under way; None where fewer than two are newer."""
    sizes = [max(1, run.size) for run in runs[busy:]]
    if len(sizes) < 2:
        return None
    start, end = _best_window(sizes, min(surplus + 1, len(sizes)))
    return Task(busy + start, busy + end, runs[busy + start].level)


def pick_for_reading(runs: Sequence[Run], *, has_pairs: bool = False) -> Task | None:
    """The merge of all runs into one, unless they nearly are and delete nothing: what probes gain
    most by, and all that frees what was deleted. Also of one run, if it has deletions, or
    ``has_pairs`` of rows and what retracted them: reading them is what costs then."""
    above = sum(run.size for run in runs[1:])
    if (
        has_pairs
        or _hold_deletions(runs)
        or (len(runs) > 1 and above >= UNMERGED_PART * runs[0].size)
    ):
        return Task(0, len(runs), BOTTOM_LEVEL)
    return None


def _delete_much(runs: Sequence[Run]) -> bool:
    """Whether newer runs delete much of what there is, and are themselves large enough to pay for
    merging all of it. A deletion of keys that are not there looks like any other, so it is the
    second that bounds what is merged."""
    if not _are_large(runs[1:], PAYING_PART, runs) or not _hold_deletions(runs[1:]):
        return False
    return deleted_bytes(runs) >= DELETED_PART * sum(run.size for run in runs)


def _hold_deletions(runs: Iterable[Run]) -> bool:
    return any(run.deleted or run.tombstones for run in runs)


def deleted_bytes(runs: Sequence[Run]) -> float:
    """About how many bytes of files newer runs delete: the deleted keys of a file are among those
    of each older run's files around it, in equal parts; a deleted range counts by how far it covers
    a file's. Cost: each file is passed once, and the older ones around it are found by halving."""
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
    """Of the keys of each file of a run, which part the deleted keys of newer files are."""
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
    """Lazy and tiered: a level that is full becomes one run of the next. Lazy takes the bottom run
    along where what comes down is no longer small beside it."""
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
    """Whether these hold that part of the bottom run."""
    return len(some) > 0 and sum(run.size for run in some) >= part * runs[0].size


def _most_small(options: Options) -> int:
    """Runs of a level that is small: twice as many, if they are not all that there may be."""
    return max(options.fanout, min(2 * options.fanout, options.max_runs - 1))


def _leveled(runs: Sequence[Run], options: Options, busy: int) -> Task | None:
    """Enough new runs are merged into the next older run, and on into older ones, until one is
    ``fanout`` times as large as what would be merged into it: one run a level."""
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
