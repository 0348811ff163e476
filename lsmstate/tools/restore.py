"""Restore of an export, or of a checkpoint in a store's own directory, to a new directory.

Nothing is overwritten. The directory is built under another name beside it. Every piece is checked,
and the pointer is followed to the last file. One rename then gives the directory its name. An
interrupted restore leaves ``<directory>.restoring-<random>``.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyarrow.fs import FileSystem

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.cython_ext.base.file import sync_directory
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.local_directory import directory_path
from lsmstate.lsm.checksummed_text import seal_text
from lsmstate.lsm.file_names import holds_standalone_store, numbered, parse_numbered
from lsmstate.lsm.recovery import needed_files
from lsmstate.lsm.table_cache import TableCache
from lsmstate.process.memory_budget import process_memory
from lsmstate.remote.directory import (
    PIECE_BYTES,
    DurableDir,
    LocalDir,
    durable_dir,
    piece_memory,
    write_file,
)
from lsmstate.tools.export import Place, checkpoint_catalog
from lsmstate.tools.export_catalog import Catalog, ExportedFile, chosen, read_each_catalog

_REMEDY = "restore another export, or export the state again"


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore.

    Attributes:
        name: Name of the export or checkpoint.
        pointer: Opens the state, if it is an attempt's.
        files: Number of files.
        size: Their bytes.
        linked_files: Number of files that are hard links, not copies.
    """

    name: str
    pointer: str
    files: int
    size: int
    linked_files: int


def restore(
    source: Place,
    directory: str | os.PathLike[str],
    *,
    filesystem: FileSystem | None = None,
    name: str | None = None,
) -> Restored:
    """Restore an export or a checkpoint into a new directory.

    A standalone store is then opened with ``open_store``, an attempt's state with its pointer.
    Files are hard-linked if source and target are local and on one device.

    Args:
        source: The place of exports (a local path, a URI, or a path in ``filesystem``), or a
            standalone store's directory with checkpoints.
        directory: A new or empty directory.
        filesystem: A file system of ``pyarrow.fs``.
        name: Name of the export or checkpoint; default: the newest.

    Returns:
        What was restored.

    Raises:
        InvalidArgumentError: The directory is not empty, or there is no such export.
        CorruptionError: A file is missing or differs from the catalog, or no name was given and the
            newest export is incomplete. File and offset are named.
        FormatVersionError: The export has a format that this release cannot read.
        OSError: The file system failed. After any error there is no directory, unless only the last
            step failed, which makes the new name durable.

    Cost:
        Everything is read once.
    """
    directory = os.path.abspath(directory_path(directory))
    if os.path.exists(directory) and os.listdir(directory):
        raise InvalidArgumentError(
            f"{directory} exists and is not empty; restore overwrites nothing, so choose another"
        )
    place = durable_dir(source, filesystem)
    if isinstance(place, LocalDir) and holds_standalone_store(place.where):
        catalog, pin = checkpoint_catalog(place.where, name)
        release: Callable[[], None] = pin.release
    else:
        sizes = place.sizes()
        read = read_each_catalog(place, sizes, name)
        catalog = chosen(read, name, place.where, sizes).catalog()
        release = _nothing
    building = f"{directory}.restoring-{os.urandom(6).hex()}"
    try:
        os.makedirs(building)
        with piece_memory():
            linked = _build(place, catalog, building)
        os.rename(building, directory)
        sync_directory(os.path.dirname(directory))
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)  # the rest has a name of its own
        raise
    finally:
        release()
    return Restored(catalog.name, catalog.pointer, len(catalog.files), catalog.size, linked)


def _build(place: DurableDir, catalog: Catalog, building: str) -> int:
    """Fill an empty directory; return how many files are hard links."""
    sizes = place.sizes()
    linked = 0
    for each in catalog.files:
        found = sizes.get(each.stored)
        path = os.path.join(place.where, each.stored)
        if found is None:
            raise CorruptionError(f"this file of the export is missing; {_REMEDY}", path, 0)
        if found != each.file.size:
            raise CorruptionError(
                f"it has {found} bytes, the catalog says {each.file.size}; {_REMEDY}",
                path,
                min(found, each.file.size),
            )
        target = os.path.join(building, each.file.name)
        if place.link_to(each.stored, target):
            linked += 1
            for _ in _checked(place, each, path):
                pass
        else:
            write_file(target, _checked(place, each, path))
    _check_whole(catalog, building, os.path.join(place.where, catalog.file_name))
    if catalog.is_standalone:
        numbers = [found[1] for found in map(parse_numbered, os.listdir(building)) if found]
        manifest = os.path.join(building, numbered("MANIFEST", 1 + max(numbers)))
        write_file(manifest, [seal_text(catalog.pointer.encode())])
    sync_directory(building)
    return linked


def _checked(place: DurableDir, each: ExportedFile, path: str) -> Iterator[bytes]:
    """Yield the pieces of a file, each compared with its checksum."""
    done = 0
    for number, piece in enumerate(place.pieces(each.stored)):
        expected = each.pieces[number] if number < len(each.pieces) else None
        if checksum(piece) != expected:
            raise CorruptionError(
                f"a byte of the {len(piece)} from here on is wrong; {_REMEDY}",
                path,
                number * PIECE_BYTES,
            )
        done += len(piece)
        yield piece
    if done != each.file.size:
        raise CorruptionError(f"the file ends here; {_REMEDY}", path, done)


def _check_whole(catalog: Catalog, building: str, path: str) -> None:
    """Raise CorruptionError or FormatVersionError unless the pointer leads to
    exactly these files."""
    tables = TableCache(process_memory())
    needed = set(needed_files(tables, building, catalog.pointer))
    brought = {each.file for each in catalog.files}
    if needed != brought:
        names = ", ".join(sorted(file.name for file in needed ^ brought)[:5])
        raise CorruptionError(
            f"this catalog and its commit's manifest differ in {names}; {_REMEDY}", path, 0
        )
    for file in brought:
        tables.open_commit(building, file.name, file.size, file.checksum)


def _nothing() -> None:
    """Do nothing: an export need not be held."""
