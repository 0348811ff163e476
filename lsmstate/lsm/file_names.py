"""Names of a store's files.

- A name is given once. A file keeps its name, except a checkpoint that is being written.
- An attempt's file names its micro-batch and attempt: ``commit-0000000007-<attempt>-0002.sst``.
  Names alone thus tell which files may be deleted.
- A standalone store has one writer and counts: ``run-0000000042.sst``, ``MANIFEST-0000000041``,
  ``changelog-0000000043`` (a write-ahead log).
"""

import os
import re
from dataclasses import dataclass
from typing import Protocol

from lsmstate.errors import InvalidArgumentError

_ATTEMPT_FILE = re.compile(r"(run|commit)-(\d{10})-([A-Za-z0-9_.-]+)-(\d{4,})\.sst")
_NUMBERED = re.compile(r"(run|MANIFEST|CHECKPOINT|changelog)-(\d{10,})(?:\.sst)?")

_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class AttemptFile:
    """Parts of the name of an attempt's file. ``kind`` is "run" or "commit"."""

    kind: str
    batch_id: int
    attempt_id: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.batch_id:010d}-{self.attempt_id}-{self.number:04d}.sst"


class Written(Protocol):
    """Parts of the name of a file or directory that an attempt wrote, whatever the backend."""

    @property
    def kind(self) -> str:
        """Return ``commit`` for something that a pointer names."""
        ...

    @property
    def batch_id(self) -> int: ...

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file or directory of an attempt whose backend is not ``lsm``."""

    kind: str
    batch_id: int
    name: str


def parse_attempt_file(name: str) -> AttemptFile | None:
    """Parse the name of an attempt's file; None if it is something else."""
    found = _ATTEMPT_FILE.fullmatch(name)
    if found is None:
        return None
    parsed = AttemptFile(found[1], int(found[2]), found[3], int(found[4]))
    return parsed if parsed.name == name else None


def check_attempt_id(attempt_id: str) -> str:
    """Raise InvalidArgumentError unless the id can be part of a file name."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", attempt_id):
        raise InvalidArgumentError(
            f"attempt_id={attempt_id!r}: use 1 to 128 letters, digits and the characters _ . -"
        )
    return attempt_id


def numbered(kind: str, number: int) -> str:
    """Return the name of a standalone store's file of kind "run", "MANIFEST", "CHECKPOINT" or
    "changelog"."""
    return f"{kind}-{number:010d}" + (".sst" if kind == "run" else "")


def parse_numbered(name: str) -> tuple[str, int] | None:
    """Return (kind, number), or None if ``numbered`` does not give this name."""
    found = _NUMBERED.fullmatch(name)
    if found is None or numbered(found[1], int(found[2])) != name:
        return None
    return found[1], int(found[2])


def unfinished(name: str) -> str:
    """Return the name of a numbered file while it is incomplete."""
    return name + _UNFINISHED


def is_unfinished(name: str) -> bool:
    """Test whether ``unfinished`` gives this name."""
    stem = name.removesuffix(_UNFINISHED)
    return stem != name and parse_numbered(stem) is not None


def holds_standalone_store(directory: str) -> bool:
    """Test by file names whether a directory has, or had, a standalone store."""
    if not os.path.isdir(directory):
        return False
    found = [parse_numbered(name) for name in os.listdir(directory)]
    return any(each is not None and each[0] in ("MANIFEST", "CHECKPOINT") for each in found)
