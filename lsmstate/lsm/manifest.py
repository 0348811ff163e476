"""The manifest: the runs of a commit. It is part of the commit's own file, as a version edit.

- An edit lists the runs from the oldest to the newest.
- A run that the *base* commit (an earlier one with a complete edit) describes is listed by number
  only. A commit thus writes in proportion to what changed, and opening reads two files at most.
- The commit's own run is described without size and checksum, which the pointer and the footer
  have.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgpack

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.lsm.version import FileMeta, PartialMerge, Run, Version

#: Format 2 has deleted ranges and retractions; an edit without any is written as format 1.
EDIT_VERSION = 2

_POINTER = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9_.-]{0,250}):([0-9]{1,18}):([0-9a-f]{16})")

#: Up to this many files an edit is always complete: a few kilobytes, and one read to open.
SMALL_MANIFEST_FILES = 64

#: The fields of a file, in the order in which the manifest lists them.
_KINDS = tuple(FileMeta.__annotations__.values())
_NUMBERS = tuple(place for place, kind in enumerate(_KINDS) if kind is int)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A commit pointer: the commit's file, its size in bytes and the checksum of its footer."""

    name: str
    size: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.name}:{self.size}:{self.checksum:016x}"


def parse_pointer(text: str) -> Pointer:
    """Parse a pointer; raise CorruptionError if the text is not one."""
    found = _POINTER.fullmatch(text)
    if found is None:
        raise CorruptionError(f"{text[:300]!r} is not a commit pointer")
    return Pointer(found[1], int(found[2]), int(found[3], 16))


def asked_pointer(text: str) -> Pointer:
    """Parse a pointer that a caller gave; raise InvalidArgumentError if the text is not one."""
    try:
        return parse_pointer(text)
    except CorruptionError as error:
        raise InvalidArgumentError(
            f"{error}; give one that commit returned, <file>:<bytes>:<checksum>"
        ) from None


@dataclass(frozen=True, slots=True)
class Edit:
    """The version edit in a commit's file. Only a complete edit has ``schemas``."""

    version: Version
    base: str | None
    schema_digest: int
    schemas: str
    replay_from: tuple[int, int]
    """Write-ahead log (standalone): the first write that is not in the runs, and where in it."""
    merge: PartialMerge | None = None
    parent: str | None = None
    """Pointer of the commit that the attempt was opened at, if known."""

    @property
    def files(self) -> tuple[FileMeta, ...]:
        """Return all files that the edit names: those of the runs and those of an interrupted
        merge."""
        return self.version.files + (self.merge.files if self.merge is not None else ())


def changes_base(version: Version, base_runs: Mapping[int, Run]) -> bool:
    """Whether the next edit is to be complete: the manifest is small, or half as many files as it
    has are not in the base. The cost of an edit thus stays in proportion to what changed."""
    files = len(version.files)
    if files <= SMALL_MANIFEST_FILES or not base_runs:
        return True
    new = sum(len(run.files) for run in version.runs if base_runs.get(run.number) != run)
    return 2 * new >= files


def pack_edit(edit: Edit, base_runs: Mapping[int, Run], streams: int = 1 << 16) -> bytes:
    """Pack the edit section of a commit's file; runs in ``base_runs`` are listed by number.

    Stored keys of the hidden streams begin with a number of ``streams`` or more.
    """
    return bytes(
        msgpack.packb(
            {
                "format": _format_of(edit.version, streams),
                "base": edit.base,
                "runs": [
                    run.number if base_runs.get(run.number) == run else _pack_run(run)
                    for run in edit.version.runs
                ],
                "next_sequence": edit.version.next_sequence,
                "next_run": edit.version.next_run,
                "schema_digest": edit.schema_digest,
                "schemas": edit.schemas,
                "replay_from": list(edit.replay_from),
                "merge": None if edit.merge is None else _pack_merge(edit.merge),
                "parent": edit.parent,
            }
        )
    )


def unpack_edit(data: bytes, pointer: Pointer, base_runs: Mapping[int, Run], path: str) -> Edit:
    """Invert ``pack_edit``; raise CorruptionError if the section is invalid."""
    with _making_sense(path):
        found = _unpacked(data, path)
        runs = [
            base_runs[entry] if isinstance(entry, int) else _unpack_run(entry, pointer)
            for entry in found["runs"]
        ]
        replay_sequence, replay_place = found["replay_from"]
        return Edit(
            Version(tuple(runs), int(found["next_sequence"]), int(found["next_run"])),
            _pointer_text(found["base"]),
            int(found["schema_digest"]),
            str(found["schemas"]),
            (int(replay_sequence), int(replay_place)),
            _unpack_merge(found.get("merge"), pointer),
            _pointer_text(found.get("parent")),
        )


def base_in(data: bytes, path: str) -> str | None:
    """Return the pointer of an edit's base, which describes the runs listed by number.
    CorruptionError. Cost: small beside unpacking the edit."""
    with _making_sense(path):
        return _pointer_text(_unpacked(data, path)["base"])


def names_in(data: bytes, path: str) -> tuple[set[str], str | None, str | None]:
    """Return what an edit names: the files of the runs it describes and of an interrupted merge,
    its base, and its parent. CorruptionError. Cost: a third of unpacking the edit."""
    with _making_sense(path):
        found = _unpacked(data, path)
        described = [entry[2] for entry in found["runs"] if not isinstance(entry, int)]
        if found.get("merge") is not None:
            described.append(found["merge"][2])
        names = {str(file[0]) for files in described for file in files}
        return names, _pointer_text(found["base"]), _pointer_text(found.get("parent"))


def _pointer_text(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and _POINTER.fullmatch(value)):
        raise ValueError(f"a pointer {value!r}")
    return value


def _unpacked(data: bytes, path: str) -> Any:
    found = msgpack.unpackb(data, strict_map_key=True)
    if found["format"] not in (1, EDIT_VERSION):
        raise FormatVersionError(
            f"{path}: manifest format {found['format']}, this release reads up to "
            f"{EDIT_VERSION}; open it with the release that wrote it or a later one"
        )
    return found


@contextmanager
def _making_sense(path: str) -> Iterator[None]:
    try:
        yield
    except (
        *(AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError),
        msgpack.UnpackException,
    ) as error:
        raise CorruptionError(
            f"the manifest does not make sense: {repr(error)[:200]}", path, 0
        ) from error


def schema_digest(schemas: str) -> int:
    return checksum(schemas.encode())


def _format_of(version: Version, streams: int) -> int:
    """Return the format that a release must know to read the version correctly. An older release
    must refuse it, since it would show rows that a range deleted or a retraction removed."""
    hidden = any(int.from_bytes(file.max_key[:2], "big") >= streams for file in version.files)
    return EDIT_VERSION if hidden or any(len(run.deleted) for run in version.runs) else 1


def _pack_run(run: Run) -> list[Any]:
    files = _pack_files(run.files)
    deleted = [[list(range_) for range_ in run.deleted.items]] if len(run.deleted) else []
    return [run.number, run.level, files, *deleted]


def _unpack_run(entry: list[Any], pointer: Pointer) -> Run:
    number, level, files, *deleted = entry
    unpacked = _unpack_files(files, pointer)
    return Run(int(number), int(level), unpacked, _unpack_ranges(*deleted))


def _pack_merge(merge: PartialMerge) -> list[Any]:
    packed = [list(merge.runs), merge.level, _pack_files(merge.files)]
    return [*packed, True] if merge.retracting else packed


def _unpack_merge(entry: list[Any] | None, pointer: Pointer) -> PartialMerge | None:
    if entry is None:
        return None
    runs, level, files, *retracting = entry
    numbers = tuple(map(int, runs))
    return PartialMerge(numbers, int(level), _unpack_files(files, pointer), retracting == [True])


def _pack_files(files: Sequence[FileMeta]) -> list[FileMeta]:
    return [*files]  # a named tuple is packed as a list of its values


def _unpack_files(entries: Sequence[Sequence[Any]], pointer: Pointer) -> tuple[FileMeta, ...]:
    unpacked: list[FileMeta] = []
    for values in entries:
        file = described(values)
        if file.name == pointer.name:
            file = file._replace(size=pointer.size, checksum=pointer.checksum)
        if "/" in file.name or "\0" in file.name or file.name.startswith("."):
            raise ValueError(f"file name {file.name!r}")
        if unpacked and file.min_key <= unpacked[-1].max_key:
            raise ValueError(f"{file.name} does not follow {unpacked[-1].name} in key order")
        unpacked.append(file)
    return tuple(unpacked)


def described(values: Sequence[Any]) -> FileMeta:
    """Build a file's description from its fields. TypeError, ValueError if they are invalid."""
    file = FileMeta._make(values)
    numbers: list[Any] = [file[place] for place in _NUMBERS]
    is_right = tuple(map(type, file)) == _KINDS and min(numbers) >= 0
    if not is_right or max(numbers) >= 1 << 64 or file.size >= 1 << 63:
        raise ValueError(
            f"file {file.name!r} is described by {file!r}, in which a field has a wrong type or a "
            "number is out of range"
        )
    return file


def _unpack_ranges(entry: Sequence[Sequence[bytes]] = ()) -> KeyRanges:
    for low, high in entry:
        if not isinstance(low, bytes) or not isinstance(high, bytes):
            raise TypeError(
                f"a deleted range has the ends {low!r} and {high!r}, which are not bytes"
            )
    return KeyRanges((low, high) for low, high in entry)
