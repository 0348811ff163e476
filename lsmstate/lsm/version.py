"""Version: the runs that make up a store at one moment. Versions are values and never change."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lsmstate.cython_ext.entries.key_ranges import KeyRanges

NOTHING = KeyRanges()


class FileMeta(NamedTuple):
    """One sealed SSTable, as the manifest describes it. Sizes are in bytes, keys as stored."""

    name: str
    size: int
    checksum: int
    uid: int
    keys: int
    rows: int
    tombstones: int
    raw_bytes: int
    min_key: bytes
    max_key: bytes
    min_sequence: int
    max_sequence: int

    @property
    def entry_bytes(self) -> int:
        """Estimate the bytes of its keys and rows, in the way ``SstWriter.consume`` counts them."""
        return self.raw_bytes + self.keys * (32 + (len(self.min_key) + len(self.max_key)) // 2)


@dataclass(frozen=True, slots=True)
class Run:
    """Sorted entries in one or more files with ascending, disjoint key ranges.

    ``number`` is unique in the history of a store. ``level`` grows with each merge. ``deleted`` are
    ranges of stored keys whose entries in older runs are dead.
    """

    number: int
    level: int
    files: tuple[FileMeta, ...]
    deleted: KeyRanges = NOTHING

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def tombstones(self) -> int:
        """Number of keys whose entries in older runs it hides, beside those in ``deleted``."""
        return sum(file.tombstones for file in self.files)


@dataclass(frozen=True, slots=True)
class PartialMerge:
    """An unfinished merge at an attempt's commit: the numbers of its runs, the level of the result,
    and the files written so far, with ascending keys. ``retracting``: retracted rows are left out.
    Reads use the runs."""

    runs: tuple[int, ...]
    level: int
    files: tuple[FileMeta, ...]
    retracting: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """Runs from the oldest to the newest.

    Invariants: levels never grow from old to new. Of two runs, all rows of the older one arrived
    earlier.
    """

    runs: tuple[Run, ...] = ()
    next_sequence: int = 1
    next_run: int = 1

    @property
    def size(self) -> int:
        return sum(run.size for run in self.runs)

    @property
    def files(self) -> tuple[FileMeta, ...]:
        return tuple(file for run in self.runs for file in run.files)

    def replaced(
        self,
        start: int,
        end: int,
        files: tuple[FileMeta, ...],
        level: int,
        deleted: KeyRanges = NOTHING,
    ) -> "Version":
        """Return a version in which one run of these files replaces runs[start:end].

        Without files and deleted ranges no run replaces them. ``start == end == len(runs)`` adds
        the newest run. Nothing is older than the oldest run, so its deleted ranges are dropped.
        """
        if start == 0:
            deleted = NOTHING
        made = (Run(self.next_run, level, files, deleted),) if files or len(deleted) else ()
        return Version(
            self.runs[:start] + made + self.runs[end:],
            self.next_sequence,
            self.next_run + len(made),
        )

    def at_sequence(self, next_sequence: int) -> "Version":
        """Return the same runs, with the sequence number of the next write."""
        return replace(self, next_sequence=next_sequence)

    def without_deleted(self) -> "Version":
        """Return the version without the files whose keys newer runs have all deleted."""
        kept: list[Run] = []
        deleted = NOTHING
        for run in reversed(self.runs):
            files = tuple(f for f in run.files if not deleted.contain_all(f.min_key, f.max_key))
            deleted = deleted.joined(run.deleted)
            if files or len(run.deleted):
                kept.append(run if len(files) == len(run.files) else replace(run, files=files))
        if len(kept) and len(kept[-1].deleted):
            kept[-1] = replace(kept[-1], deleted=NOTHING)  # nothing is older than the oldest run
            if not kept[-1].files:
                kept.pop()
        return replace(self, runs=tuple(reversed(kept)))

    def with_ranges(self, change: Callable[[KeyRanges], KeyRanges]) -> "Version":
        """Return the version with ``change`` applied to each run's deleted ranges."""
        runs = (replace(run, deleted=change(run.deleted)) for run in self.runs)
        return replace(self, runs=tuple(runs))

    def with_file(self, before: FileMeta, after: FileMeta) -> "Version":
        """Return the version with a file's description completed."""
        return replace(
            self,
            runs=tuple(
                replace(run, files=tuple(after if f is before else f for f in run.files))
                for run in self.runs
            ),
        )

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        for older, newer in zip(self.runs, self.runs[1:], strict=False):
            assert older.level >= newer.level, f"run {newer.number} is deeper than an older one"
        for run in self.runs:
            assert run.files or len(run.deleted), f"run {run.number} holds nothing"
            for left, right in zip(run.files, run.files[1:], strict=False):
                assert left.max_key < right.min_key, f"run {run.number}: key ranges overlap"


def hold_hidden(runs: Iterable[Run], number: int) -> bool:
    """Test whether the files hold keys of a stream with this number or a higher one."""
    front = number.to_bytes(2, "big")
    return any(run.files[-1].max_key[:2] >= front for run in runs if run.files)
