"""Deleting the attempts' files of one bucket that no restart can need, wherever they lie."""

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
        """Of all files that are there, whoever wrote them."""
        ...

    def parse(self, name: str) -> Written | None:
        """What a name says; None if it is not one that attempts give."""
        ...

    def named_by(self, commit: str) -> Named:
        """What a commit needs, and its parent. CorruptionError if it was never sealed."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file that nobody can need."""
        ...


class LocalFiles:
    """In a directory of this machine."""

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
    """``collect``, after a commit, four times while as many micro-batches pass as are retained, by
    whichever attempt comes first: a bucket may have no rows in any particular one."""
    before = None if parent is None else files.parse(parent)
    period = max(1, retained // 4)
    if before is not None and current_batch // period != before.batch_id // period:
        collect(files, live, parent, current_batch, retained)


def collect(
    files: AttemptFiles, live: set[str], parent: str | None, current_batch: int, retained: int
) -> int:
    """Delete what no restart can need (see ``retained_files``); how many files. ``live`` are files
    to be kept besides, ``parent`` is the commit that the current batch's went on from. Cost: one
    listing, and one small read per kept commit. An error leaves the rest to the next time; it
    deletes nothing that is needed, as reading comes first."""
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
    """The micro-batches of a commit, of its parent, and so on. Ends at the first of all, at one
    that is there no more, or at one of a release that named no parents."""
    while commit is not None:
        file = files.parse(commit)
        if file is None:
            return
        yield file.batch_id
        try:
            commit = read(commit).parent
        except FileNotFoundError:
            return  # collected when fewer micro-batches were retained


def _needed_by(read: Callable[[str], Named], commit: str) -> frozenset[str]:
    """No files if it was never sealed: no pointer can name it."""
    try:
        return read(commit).files
    except CorruptionError:
        return frozenset()
