"""The set of runs that make up a store at one instant: values, never changed in place."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FileMeta:
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


@dataclass(frozen=True, slots=True)
class Run:
    """Sorted entries in one or more files with ascending, disjoint key ranges.

    ``number`` is given once per lineage of a store; ``level`` grows with each merge.
    """

    number: int
    level: int
    files: tuple[FileMeta, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


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

    def replaced(self, start: int, end: int, files: tuple[FileMeta, ...], level: int) -> "Version":
        """A version in which one run of these files stands for runs[start:end] (no files: none
        does). ``start == end == len(runs)`` adds the newest run."""
        made = (Run(self.next_run, level, files),) if files else ()
        return Version(
            self.runs[:start] + made + self.runs[end:],
            self.next_sequence,
            self.next_run + len(made),
        )

    def at_sequence(self, next_sequence: int) -> "Version":
        """The same runs, with the number the next write gets."""
        return replace(self, next_sequence=next_sequence)

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
            assert run.files, f"run {run.number} has no files"
            for left, right in zip(run.files, run.files[1:], strict=False):
                assert left.max_key < right.min_key, f"run {run.number}: key ranges overlap"
