"""The set of runs that make up a store at one instant: values, never changed in place."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lsmstate.cython_ext.entries.key_ranges import KeyRanges

NOTHING = KeyRanges()


class FileMeta(NamedTuple):
    """One sealed SSTable, as the manifest knows it. Sizes in bytes; keys as stored."""

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
        """Of its keys and rows, roughly: as ``SstWriter.consume`` counts what it writes."""
        return self.raw_bytes + self.keys * (32 + (len(self.min_key) + len(self.max_key)) // 2)


@dataclass(frozen=True, slots=True)
class Run:
    """Sorted entries in one or more files with ascending, disjoint key ranges.

    ``number`` is given once per lineage of a store; ``level`` grows with each merge. ``deleted``
    are ranges of stored keys that count no more in any older run.
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
        """Keys of which it hides what older runs have, beside those in ``deleted``."""
        return sum(file.tombstones for file in self.files)


@dataclass(frozen=True, slots=True)
class PartialMerge:
    """A merge that was not done when an attempt committed: of which runs, by number, into which
    level, and the files it has written, with ascending keys, rows that were retracted left out if
    it is ``retracting``. Readers use the runs."""

    runs: tuple[int, ...]
    level: int
    files: tuple[FileMeta, ...]
    retracting: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """Runs from the oldest to the newest. Invariant: levels never grow from old to new, and of
    two runs the older one's rows all arrived earlier."""

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
        """A version in which one run of these files stands for runs[start:end] (none does if there
        are neither files nor deleted ranges). ``start == end == len(runs)`` adds the newest run.
        Below the oldest run there is nothing to delete."""
        if start == 0:
            deleted = NOTHING
        made = (Run(self.next_run, level, files, deleted),) if files or len(deleted) else ()
        return Version(
            self.runs[:start] + made + self.runs[end:],
            self.next_sequence,
            self.next_run + len(made),
        )

    def at_sequence(self, next_sequence: int) -> "Version":
        """The same runs, with the number the next write gets."""
        return replace(self, next_sequence=next_sequence)

    def without_deleted(self) -> "Version":
        """The same version without the files whose keys were all deleted by newer runs."""
        kept: list[Run] = []
        deleted = NOTHING
        for run in reversed(self.runs):
            files = tuple(f for f in run.files if not deleted.contain_all(f.min_key, f.max_key))
            deleted = deleted.joined(run.deleted)
            if files or len(run.deleted):
                kept.append(run if len(files) == len(run.files) else replace(run, files=files))
        if len(kept) and len(kept[-1].deleted):
            kept[-1] = replace(kept[-1], deleted=NOTHING)  # nothing is older than the oldest
            if not kept[-1].files:
                kept.pop()
        return replace(self, runs=tuple(reversed(kept)))

    def with_ranges(self, change: Callable[[KeyRanges], KeyRanges]) -> "Version":
        """The same version, each run's deleted ranges as ``change`` gives them back."""
        runs = (replace(run, deleted=change(run.deleted)) for run in self.runs)
        return replace(self, runs=tuple(runs))

    def with_file(self, before: FileMeta, after: FileMeta) -> "Version":
        """The same version with a file's description completed."""
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
    """Whether there are keys of a stream of this number or a higher one in the files."""
    front = number.to_bytes(2, "big")
    return any(run.files[-1].max_key[:2] >= front for run in runs if run.files)
