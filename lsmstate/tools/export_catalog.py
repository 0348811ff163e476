"""Export catalog: the description of an exported state, one small file that is written last.

An export directory holds the files of any number of exports. A file's name ends with the checksum
of its footer: equal names are equal files, which exports share. Each export has a catalog,
``EXPORT-<number>-<name>``. An export without a complete catalog does not exist.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.lsm.checksummed_text import seal_text, unseal_text
from lsmstate.lsm.file_names import parse_attempt_file, parse_numbered
from lsmstate.lsm.manifest import Pointer, parse_pointer
from lsmstate.remote.directory import PIECE_BYTES, DurableDir
from lsmstate.store_base.checks import nearest

CATALOG_VERSION = 1

_CATALOG = re.compile(r"EXPORT-(\d{10})-([A-Za-z0-9_.-]{1,128})")
_INCOMPLETE = "it was interrupted, or its catalog was cut short or zeroed"
_REMEDY = "restore another export by its name; delete this one and export the state again"
#: Longer catalogs are not read: at 20 bytes per MiB of state this is several terabytes.
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One SSTable of an export: ``stored`` is its name there, ``pieces`` the XXH3 of each
    PIECE_BYTES."""

    file: Pointer
    stored: str
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Description of one exported state.

    Attributes:
        name: Name of the export.
        number: Exports at a place are numbered in order.
        pointer: The pointer of its commit.
        files: Its files.
        is_standalone: Whether the state is a standalone store's or an attempt's.
    """

    name: str
    number: int
    pointer: str
    files: tuple[ExportedFile, ...]

    @property
    def is_standalone(self) -> bool:
        return parse_numbered(parse_pointer(self.pointer).name) is not None

    @property
    def size(self) -> int:
        """Bytes of all its files; other exports may share them."""
        return sum(each.file.size for each in self.files)

    @property
    def file_name(self) -> str:
        return f"EXPORT-{self.number:010d}-{self.name}"


def stored_name(file: Pointer) -> str:
    """Return the name of a file in an export directory, which only equal files share."""
    return f"{file.name}.{file.checksum:016x}"


def check_export_name(name: str) -> None:
    """Raise InvalidArgumentError unless the name can be part of a file name."""
    if not isinstance(name, str) or _CATALOG.fullmatch(f"EXPORT-{0:010d}-{name}") is None:
        raise InvalidArgumentError(
            f"export name {name!r}: use 1 to 128 letters, digits and the characters _ . -"
        )


class ReadCatalog(NamedTuple):
    """The content of one export's catalog, or why it cannot be read."""

    number: int
    name: str
    file_name: str
    said: Catalog | CorruptionError | FormatVersionError

    def catalog(self) -> Catalog:
        """Return the catalog. CorruptionError, FormatVersionError."""
        if isinstance(self.said, Catalog):
            return self.said
        raise self.said


def chosen(
    read: list[ReadCatalog], name: str | None, where: str, sizes: dict[str, int]
) -> ReadCatalog:
    """Return the export of that name, or the newest.

    Raises:
        InvalidArgumentError: There is none; the message suggests the nearest name.
        CorruptionError: No name was given and a newer export is incomplete, so that the older state
            must not be taken for the newest.
    """
    begun = _begun(sizes)
    if not begun:
        raise InvalidArgumentError(
            f"{where} holds no export and no checkpoint; give the place that exports were written "
            "to, or the directory of a store with checkpoints"
        )
    found = [each for each in read if name in (None, each.name)]
    complete = {each.file_name for each in found}
    last = found[-1].number if found else 0
    newer = [each for each in begun if each.number >= last and each.file_name not in complete]
    if name is None and newer:
        known = ", ".join(catalog.name for catalog in whole(found)) or "none"
        raise CorruptionError(
            f"the newest export is incomplete ({_INCOMPLETE}); restore another by its name "
            f"(complete: {known}), or export the state again",
            os.path.join(where, newer[-1].file_name),
            sizes[newer[-1].file_name],
        )
    if found:
        return found[-1]
    for each in begun:
        if each.name == name:
            raise InvalidArgumentError(
                f"{where} holds no complete export {name!r}: {each.file_name} is incomplete "
                f"({_INCOMPLETE}); delete it, and restore another or export the state again"
            )
    others = sorted(each.name for each in begun)
    raise InvalidArgumentError(
        f"{where} holds no complete export {name!r}{nearest(name or '', others)}"
    )


class _Begun(NamedTuple):
    """An export by the name of its catalog, whatever its content is."""

    number: int
    name: str
    file_name: str


def _begun(sizes: dict[str, int]) -> list[_Begun]:
    """Return all exports that were begun in a directory with these files, oldest first."""
    found = filter(None, map(_CATALOG.fullmatch, sizes))
    return sorted(_Begun(int(each[1]), each[2], each[0]) for each in found)


def next_number(sizes: dict[str, int]) -> int:
    """Return the number of the next export: the highest is the newest, complete or not."""
    return 1 + max((each.number for each in _begun(sizes)), default=0)


def write_catalog(place: DurableDir, catalog: Catalog) -> None:
    """Write the catalog, the last step of an export."""
    place.write(catalog.file_name, [seal_text(_packed(catalog))])
    place.force()


def read_each_catalog(
    place: DurableDir, sizes: dict[str, int], name: str | None = None
) -> list[ReadCatalog]:
    """Return for each complete export (of that name) in a directory with these files, oldest first,
    its catalog or its error. Torn catalogs belong to unfinished exports."""
    read: list[ReadCatalog] = []
    for each in _begun(sizes):
        if name not in (None, each.name):
            continue
        said: Catalog | CorruptionError | FormatVersionError | None
        try:
            size = sizes[each.file_name]
            said = _read(place, each.file_name, each.name, each.number, size)
        except (CorruptionError, FormatVersionError) as error:
            said = error
        if said is not None:
            read.append(ReadCatalog(each.number, each.name, each.file_name, said))
    return read


def whole(read: Iterable[ReadCatalog]) -> list[Catalog]:
    """Return the readable catalogs."""
    return [each.said for each in read if isinstance(each.said, Catalog)]


def all_whole(read: Iterable[ReadCatalog]) -> list[Catalog]:
    """Return all catalogs. CorruptionError, FormatVersionError: one cannot be read."""
    return [each.catalog() for each in read]


def _packed(catalog: Catalog) -> bytes:
    return json.dumps(
        {
            "format": CATALOG_VERSION,
            "pointer": catalog.pointer,
            "piece_bytes": PIECE_BYTES,
            "files": [
                {
                    "file": str(each.file),
                    "stored": each.stored,
                    "pieces": [f"{piece:016x}" for piece in each.pieces],
                }
                for each in catalog.files
            ],
        }
    ).encode()


def _read(place: DurableDir, file_name: str, name: str, number: int, size: int) -> Catalog | None:
    path = os.path.join(place.where, file_name)
    text = unseal_text(place.read(file_name, 0, min(size, _MOST_BYTES)), path, _REMEDY)
    if text is None:
        return None
    try:
        found = json.loads(text)
        if (found["format"], found["piece_bytes"]) != (CATALOG_VERSION, PIECE_BYTES):
            raise FormatVersionError(
                f"{path}: export format {found['format']} with pieces of {found['piece_bytes']} "
                f"bytes, this release reads {CATALOG_VERSION} with {PIECE_BYTES}; restore it with "
                "the release that wrote it or a later one"
            )
        files = tuple(_unpacked(entry) for entry in found["files"])
        return Catalog(name, number, str(parse_pointer(found["pointer"])), files)
    except (CorruptionError, KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"the content is invalid ({error!r}); {_REMEDY}", path, 0) from error


def _unpacked(entry: dict[str, object]) -> ExportedFile:
    file = parse_pointer(str(entry["file"]))
    if parse_attempt_file(file.name) is None and parse_numbered(file.name) is None:
        raise ValueError(f"file name {file.name!r}")
    if entry["stored"] != stored_name(file):
        raise ValueError(f"{file.name} is stored as {entry['stored']!r}")
    listed = entry["pieces"]
    if not isinstance(listed, list) or len(listed) != -(-file.size // PIECE_BYTES):
        raise ValueError(f"the checksums of {file.name} do not fit its {file.size} bytes")
    return ExportedFile(file, stored_name(file), tuple(int(str(piece), 16) for piece in listed))
