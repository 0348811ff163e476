"""Deleting the attempts' files of one bucket that no restart can need, wherever they lie."""

import os
from typing import Protocol

from lsmstate.errors import CorruptionError
from lsmstate.file_names import parse_attempt_file
from lsmstate.memory_budget import process_memory
from lsmstate.recovery import named_files
from lsmstate.retention import collectable, kept_batches
from lsmstate.table_cache import table_cache


class AttemptFiles(Protocol):
    """The files of one bucket's attempts. Errors of the file system pass through as OSError."""

    def names(self) -> list[str]:
        """Of all files that are there, whoever wrote them."""
        ...

    def named_by(self, commit: str) -> set[str]:
        """The files a commit needs. CorruptionError if it was never sealed."""
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

    def named_by(self, commit: str) -> set[str]:
        return named_files(self._tables, self._directory, commit)

    def remove(self, name: str) -> None:
        self._tables.delete(self._directory, name)


def collect(files: AttemptFiles, live: set[str], current_batch: int, retained: int) -> int:
    """Delete what no restart can need (see ``retention``); how many files. ``live`` are files to
    be kept besides. Cost: one listing, and one small read per kept commit. An error leaves the
    rest to the next time; it deletes nothing that is needed, as reading comes first."""
    found = [f for f in map(parse_attempt_file, files.names()) if f is not None]
    commits = [file for file in found if file.kind == "commit"]
    kept = kept_batches({file.batch_id for file in commits}, current_batch, retained)
    needed = set(live)
    for commit in commits:
        if commit.batch_id in kept:
            needed |= _named_by(files, commit.name)
    unneeded = collectable(found, needed, kept, current_batch)
    for name in unneeded:
        files.remove(name)
    return len(unneeded)


def _named_by(files: AttemptFiles, commit: str) -> set[str]:
    """None if it was never sealed: no pointer can name it."""
    try:
        return files.named_by(commit)
    except CorruptionError:
        return set()
