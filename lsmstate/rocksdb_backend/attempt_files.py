"""Directories that attempts of the RocksDB backend leave in a bucket, and which of them may be
deleted.

- ``rocks-<batch>-<attempt>-<random>/`` is a commit: a database of its own that shares its tables
  with others by hard links. ``PARENT``, which is written last, holds the pointer at which its
  attempt was opened.
- ``work-...`` is where an attempt works. Only a killed attempt leaves it behind.
"""

import os
import re
import shutil
import uuid
from contextlib import suppress
from typing import Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.file_names import OtherFile
from lsmstate.lsm.recovery import Named

_NAME: Final = re.compile(r"(rocks|work)-(\d{12})-[\w-]*-[0-9a-f]{32}(\.tmp)?")
_PARENT: Final = "PARENT"


class RocksAttempts:
    """The attempts' directories of one bucket; an ``obsolete_files.AttemptFiles``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def new_names(self, batch_id: int, attempt_id: str) -> tuple[str, str]:
        """Return new unique paths: where an attempt works, and where its commit will be."""
        safe = "".join(c if c.isalnum() or c in "_-" else "_" for c in attempt_id)
        name = f"{batch_id:012d}-{safe}-{uuid.uuid4().hex}"
        work, commit = (f"{kind}-{name}" for kind in ("work", "rocks"))
        return os.path.join(self._directory, work), os.path.join(self._directory, commit)

    def check(self, pointer: str) -> str:
        """Return the path of a pointer's commit; raise InvalidArgumentError if no commit returns
        such pointers."""
        found = self.parse(pointer)
        if found is None or found.kind != "commit":
            raise InvalidArgumentError(
                f"pointer {pointer!r} is not one that a RocksDB store's commit returned"
            )
        return os.path.join(self._directory, pointer)

    def seal(self, commit: str, parent: str | None) -> None:
        """Record the commit's parent; the commit may be named from now on."""
        with open(os.path.join(commit, _PARENT), "x") as file:
            file.write(parent or "")

    def names(self) -> list[str]:
        return os.listdir(self._directory)

    def parse(self, name: str) -> OtherFile | None:
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        is_commit = found[1] == "rocks" and found[3] is None
        return OtherFile("commit" if is_commit else "work", int(found[2]), name)

    def named_by(self, commit: str) -> Named:
        path = os.path.join(self._directory, commit)
        try:
            with open(os.path.join(path, _PARENT)) as file:
                return Named(frozenset({commit}), file.read() or None)
        except FileNotFoundError:
            if not os.path.isdir(path):
                raise
            return Named(frozenset({commit}), None)  # of an earlier release, or never sealed

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # another attempt may delete files too
            shutil.rmtree(os.path.join(self._directory, name))


def link_files(source: str, target: str) -> None:
    """Make a private copy of a commit: tables are immutable and hard-linked, the rest is copied."""
    names = sorted(os.listdir(source))
    os.makedirs(target)
    for name in names:
        old, new = os.path.join(source, name), os.path.join(target, name)
        if name == _PARENT:
            continue
        if not name.endswith(".sst"):
            shutil.copyfile(old, new)
            continue
        try:
            os.link(old, new)
        except OSError:
            # The file system has no hard links.
            shutil.copyfile(old, new)
