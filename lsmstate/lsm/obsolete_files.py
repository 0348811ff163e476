"""Deletion of the attempts' files of one bucket that no restart can need, on any file system."""

import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Protocol

from lsmstate.errors import CorruptionError
from lsmstate.lsm.file_names import AttemptFile, Written, parse_attempt_file
from lsmstate.lsm.recovery import Named, named_by
from lsmstate.lsm.retained_files import collectable, kept_batches
from lsmstate.lsm.table_cache import table_cache
from lsmstate.process.memory_budget import process_memory


class AttemptFiles(Protocol):
    """The files of one bucket's attempts. Errors of the file system pass through as OSError."""

    def names(self) -> list[str]:
        """Return the names of all files, whoever wrote them."""
        ...

    def parse(self, name: str) -> Written | None:
        """Parse a name; None if attempts do not give such names."""
        ...

    def named_by(self, commit: str) -> Named:
        """Return what a commit needs, and its parent. CorruptionError if it was never sealed."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file that nobody can need."""
        ...


class LocalFiles:
    """Files in a local directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._tables = table_cache(process_memory())

    def names(self) -> list[str]:
        return os.listdir(self._directory)

    def parse(self, name: str) -> AttemptFile | None:
        return parse_attempt_file(name)

    def named_by(self, commit: str) -> Named:
        return named_by(partial(self._tables.peek, self._directory), commit)

    def remove(self, name: str) -> None:
        self._tables.delete(self._directory, name)


def collect_now_and_then(
    files: AttemptFiles, live: set[str], parent: str | None, current_batch: int, retained: int
) -> None:
    """Call ``collect`` after a commit, four times per ``retained`` micro-batches, whichever attempt
    comes first: a bucket may have no rows in a particular micro-batch."""
    before = None if parent is None else files.parse(parent)
    period = max(1, retained // 4)
    if before is not None and current_batch // period != before.batch_id // period:
        collect(files, live, parent, current_batch, retained)


def collect(
    files: AttemptFiles, live: set[str], parent: str | None, current_batch: int, retained: int
) -> int:
    """Delete the files that no restart can need (see ``retained_files``), and return how many.

    ``live`` are further files to keep. ``parent`` is the commit that the current batch was opened
    at. Cost: one listing, and one small read per kept commit. All reads come first: an error leaves
    the rest for the next call and deletes nothing that is needed.
    """
    read = cache(files.named_by)
    found = [file for file in map(files.parse, files.names()) if file is not None]
    commits = [file for file in found if file.kind == "commit"]
    batches = {file.batch_id for file in commits}
    kept = kept_batches(batches, current_batch, retained, _ancestors(files, read, parent))
    needed = set(live)
    for commit in commits:
        if commit.batch_id in kept:
            needed |= _needed_by(read, commit.name)
    unneeded = collectable(found, needed, kept, current_batch)
    for name in unneeded:
        files.remove(name)
    return len(unneeded)


def _ancestors(
    files: AttemptFiles, read: Callable[[str], Named], commit: str | None
) -> Iterator[int]:
    """Yield the micro-batches of a commit, of its parent, and so on. They end at the first one, at
    one that is gone, or at one of a release that named no parents."""
    while commit is not None:
        file = files.parse(commit)
        if file is None:
            return
        yield file.batch_id
        try:
            commit = read(commit).parent
        except FileNotFoundError:
            return  # deleted when fewer micro-batches were retained


def _needed_by(read: Callable[[str], Named], commit: str) -> frozenset[str]:
    """Return the files of a commit; none if it was never sealed, since no pointer can name it."""
    try:
        return read(commit).files
    except CorruptionError:
        return frozenset()
