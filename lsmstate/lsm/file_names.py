"""The names of a store's files. A name is given once and never again; no name is taken from a file
but that of a checkpoint which is being written.

An attempt's file says which micro-batch and which attempt wrote it, so that what may be deleted
can be told from names alone: ``commit-0000000007-<attempt>-0002.sst``. A standalone store has one
writer and counts: ``run-0000000042.sst``, ``MANIFEST-0000000041``, ``changelog-0000000043``.
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
    """What the name of an attempt's file says. ``kind`` is "run" or "commit"."""

    kind: str
    batch_id: int
    attempt_id: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.batch_id:010d}-{self.attempt_id}-{self.number:04d}.sst"


class Written(Protocol):
    """What the name of something says that an attempt wrote, whatever the backend."""

    @property
    def kind(self) -> str:
        """``commit`` for what a pointer names."""
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
    """None if the name is not that of an attempt's file."""
    found = _ATTEMPT_FILE.fullmatch(name)
    if found is None:
        return None
    parsed = AttemptFile(found[1], int(found[2]), found[3], int(found[4]))
    return parsed if parsed.name == name else None


def check_attempt_id(attempt_id: str) -> str:
    """InvalidArgumentError unless the id can be part of a file name."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", attempt_id):
        raise InvalidArgumentError(
            f"attempt_id={attempt_id!r}: use 1 to 128 letters, digits and the characters _ . -"
        )
    return attempt_id


def numbered(kind: str, number: int) -> str:
    """The name of a standalone store's file: kind "run", "MANIFEST", "CHECKPOINT" or
    "changelog"."""
    return f"{kind}-{number:010d}" + (".sst" if kind == "run" else "")


def parse_numbered(name: str) -> tuple[str, int] | None:
    """(kind, number), or None if the name is not the one that ``numbered`` gives."""
    found = _NUMBERED.fullmatch(name)
    if found is None or numbered(found[1], int(found[2])) != name:
        return None
    return found[1], int(found[2])


def unfinished(name: str) -> str:
    """What a numbered file is called until it is whole."""
    return name + _UNFINISHED


def is_unfinished(name: str) -> bool:
    """Whether the name is one that ``unfinished`` gives."""
    stem = name.removesuffix(_UNFINISHED)
    return stem != name and parse_numbered(stem) is not None


def holds_standalone_store(directory: str) -> bool:
    """Whether a directory has, or had, a standalone store; by names, whatever is in the files."""
    if not os.path.isdir(directory):
        return False
    found = [parse_numbered(name) for name in os.listdir(directory)]
    return any(each is not None and each[0] in ("MANIFEST", "CHECKPOINT") for each in found)
