"""Exports: copies of one committed state at another place, local or on any ``pyarrow.fs``.

- An export is incremental: a file that an earlier export sent, and that still has the right length
  and footer, is not sent again. Files are hard-linked if the destination is local and on the same
  device.
- Order of steps: the files, a check of all their sizes, the catalog last. An interrupted export
  leaves files that the next export uses or replaces, and all earlier exports complete.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyarrow.fs import FileSystem

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.cython_ext.sstable.sst_check import verify
from lsmstate.errors import InvalidArgumentError, StoreLockedError
from lsmstate.local_directory import check_is_there, directory_path
from lsmstate.lsm.checkpoints import CheckpointPin, list_checkpoints
from lsmstate.lsm.file_names import holds_standalone_store, parse_attempt_file
from lsmstate.lsm.manifest import Pointer, asked_pointer, parse_pointer
from lsmstate.lsm.recovery import needed_files
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.table_cache import TableCache
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.remote.directory import DurableDir, LocalDir, durable_dir, file_pieces, piece_memory
from lsmstate.tools.export_catalog import (
    Catalog,
    ExportedFile,
    ReadCatalog,
    all_whole,
    check_export_name,
    chosen,
    next_number,
    read_each_catalog,
    stored_name,
    whole,
    write_catalog,
)
from lsmstate.tools.inspection import find_standalone

_FOOTER_END = b"LSMSTATE"

Place = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export.

    Attributes:
        catalog: Description of the export.
        sent_files: Number of files that were not at the destination before.
        sent_bytes: Their bytes.
    """

    catalog: Catalog
    sent_files: int
    sent_bytes: int


def export(
    directory: str | os.PathLike[str],
    destination: Place,
    *,
    filesystem: FileSystem | None = None,
    name: str | None = None,
    checkpoint: str | None = None,
    pointer: str | None = None,
) -> Exported:
    """Copy one committed state to a destination that may hold earlier exports.

    Args:
        directory: A standalone store's directory, or a bucket's with ``pointer``.
        destination: A local path, a URI, or a path in ``filesystem``.
        filesystem: A file system of ``pyarrow.fs``.
        name: Name of the export; default: that of the checkpoint, else of the commit's file.
        checkpoint: Export this checkpoint, also while the store is open elsewhere; default: the
            newest state, for which the store is opened and committed.
        pointer: Export this commit of a bucket, given by its pointer.

    Returns:
        What was exported and sent.

    Raises:
        InvalidArgumentError: An argument is invalid; nothing was changed.
        StoreLockedError: The store is open in another process.
        CorruptionError: The source is damaged.
        OSError: Sending failed. Export again: files that were sent are not sent again.

    Cost:
        New files are read twice (each block is verified) and sent once; one request for each other
        file. Memory: two pieces of PIECE_BYTES, and what pyarrow buffers.

    Example:
        ```python
        export("orders-state", "s3://backups/orders", name="monday")
        ```
    """
    directory = directory_path(directory)
    check_is_there(directory)
    place = durable_dir(destination, filesystem)
    if isinstance(place, LocalDir) and os.path.realpath(place.where) == os.path.realpath(directory):
        raise InvalidArgumentError(f"{directory} cannot be exported into itself; choose another")
    if name is not None:
        check_export_name(name)
    with piece_memory(), _state(directory, checkpoint, pointer) as found:
        commit = parse_pointer(found)
        name = name or checkpoint or f"{commit.name.removesuffix('.sst')}-{commit.checksum:016x}"
        check_export_name(name)
        sizes = place.sizes()
        read = read_each_catalog(place, sizes)
        number = next_number(sizes)
        same = all_whole(each for each in read if each.name == name)
        if same and same[0].pointer != found:
            raise InvalidArgumentError(
                f"{place.where} holds an export {name!r} of another state; choose another name, "
                "or delete it"
            )
        sender = _Sender(directory, place, sizes, whole(read))
        tables = TableCache(process_memory())
        files = tuple(sender.send(file) for file in needed_files(tables, directory, found))
        _check_sizes(place, files)
        catalog = same[0] if same else Catalog(name, number, found, files)
        if not same:
            place.force()
            write_catalog(place, catalog)
    return Exported(catalog, sender.sent_files, sender.sent_bytes)


def list_exports(destination: Place, *, filesystem: FileSystem | None = None) -> list[Catalog]:
    """List the complete exports at a place, oldest first.

    Args:
        destination: A local path, a URI, or a path in ``filesystem``.
        filesystem: A file system of ``pyarrow.fs``.

    Returns:
        The catalog of each export.

    Raises:
        CorruptionError: A catalog is damaged; ``list_each_export`` lists the others.
        FormatVersionError: A catalog has a format that this release cannot read.

    Cost:
        One listing, and one read per export.
    """
    return all_whole(list_each_export(destination, filesystem=filesystem))


def list_each_export(
    destination: Place, *, filesystem: FileSystem | None = None
) -> list[ReadCatalog]:
    """List the exports at a place, oldest first; for an unreadable one its error."""
    place = durable_dir(destination, filesystem)
    return read_each_catalog(place, place.sizes())


def delete_export(destination: Place, name: str, *, filesystem: FileSystem | None = None) -> int:
    """Delete an export and the files that only it needs. Its own catalog may be damaged.

    If another catalog cannot be read, its files are unknown: all files stay until a later call. Do
    not call it while somebody exports to the same place.

    Args:
        destination: A local path, a URI, or a path in ``filesystem``.
        name: Name of the export.
        filesystem: A file system of ``pyarrow.fs``.

    Returns:
        The number of files deleted.

    Raises:
        InvalidArgumentError: There is no export of that name.
    """
    place = durable_dir(destination, filesystem)
    sizes = place.sizes()
    read = read_each_catalog(place, sizes)
    gone = chosen(read, name, place.where, sizes)
    others = [each for each in read if each is not gone]
    known = whole(others)
    place.remove(gone.file_name)
    place.force()
    if len(known) < len(others):
        return 0
    needed = {each.stored for catalog in known for each in catalog.files}
    unneeded = [stored for stored in sizes if _is_stored(stored) and stored not in needed]
    for stored in unneeded:
        place.remove(stored)
    return len(unneeded)


def checkpoint_catalog(directory: str, name: str | None) -> tuple[Catalog, CheckpointPin]:
    """Describe a checkpoint (None: the newest) as if it were an export of its store's own
    directory. Every block is verified. The pin holds the checkpoint until it is released."""
    if name is None:
        known = list_checkpoints(directory)
        if not known:
            raise InvalidArgumentError(
                f"{directory} has no checkpoint to restore; make one, or export the store"
            )
        name = known[-1].name
    pin = CheckpointPin(directory, name)
    try:
        tables = TableCache(process_memory())
        pointer = pin.checkpoint.pointer
        files = []
        for file in needed_files(tables, directory, pointer):
            _verify(tables, directory, file)
            files.append(
                ExportedFile(file, file.name, piece_sums(os.path.join(directory, file.name)))
            )
        return Catalog(pin.checkpoint.name, 0, pointer, tuple(files)), pin
    except BaseException:
        pin.release()
        raise


def piece_sums(path: str) -> tuple[int, ...]:
    """Return the XXH3 of each piece of a local file."""
    return tuple(checksum(piece) for piece in file_pieces(path))


@contextmanager
def _state(directory: str, checkpoint: str | None, pointer: str | None) -> Iterator[str]:
    """Yield the pointer to export, with its files held."""
    is_store = holds_standalone_store(directory)
    if pointer is not None:
        if checkpoint is not None or is_store:
            raise InvalidArgumentError(
                "pointer= exports a commit of a bucket; give a checkpoint of a standalone store, "
                "or nothing for its newest state"
            )
        yield str(asked_pointer(pointer))
    elif checkpoint is not None:
        pin = CheckpointPin(directory, checkpoint)
        try:
            yield pin.checkpoint.pointer
        finally:
            pin.release()
    else:
        with _opened(directory) as store:
            yield store.commit()


def _opened(directory: str) -> LsmStore:
    """Open the store itself, with its own streams."""
    state = find_standalone(directory, "to export a bucket, give the pointer of a commit")
    try:
        return LsmStore.open(directory, list(state.found.streams.values()), options=Options())
    except StoreLockedError as error:
        raise StoreLockedError(f"{error}; or export a checkpoint, which can be done now") from error


class _Sender:
    """Sends files to a place, unless they are there."""

    def __init__(
        self, directory: str, place: DurableDir, sizes: dict[str, int], catalogs: list[Catalog]
    ) -> None:
        self.sent_files = self.sent_bytes = 0
        self._directory = directory
        self._place = place
        self._sizes = sizes
        self._known = {each.stored: each for catalog in catalogs for each in catalog.files}
        self._tables = TableCache(process_memory())

    def send(self, file: Pointer) -> ExportedFile:
        """Send the file if necessary; return its description for the catalog."""
        stored = stored_name(file)
        known = self._known.get(stored)
        if known is not None and self._looks_right(known):
            return known
        _verify(self._tables, self._directory, file)
        path = os.path.join(self._directory, file.name)
        described = ExportedFile(file, stored, piece_sums(path))
        if self._sizes.get(stored) == file.size and self._has_same_bytes(described):
            return described  # an unfinished export sent it
        if stored in self._sizes:
            self._place.remove(stored)
        if not self._place.link_from(path, stored):
            self._place.write(stored, file_pieces(path))
        self.sent_files += 1
        self.sent_bytes += file.size
        return described

    def _looks_right(self, known: ExportedFile) -> bool:
        """Check length and footer of a file that a complete export sent."""
        size = known.file.size
        if self._sizes.get(known.stored) != size:
            return False
        end = self._place.read(known.stored, size - 16, 16)
        return end == known.file.checksum.to_bytes(8, "little") + _FOOTER_END

    def _has_same_bytes(self, described: ExportedFile) -> bool:
        found = tuple(checksum(piece) for piece in self._place.pieces(described.stored))
        return found == described.pieces


def _verify(tables: TableCache, directory: str, file: Pointer) -> None:
    """Raise CorruptionError unless every block of a file is as it was written."""
    verify(tables.open_commit(directory, file.name, file.size, file.checksum))


def _check_sizes(place: DurableDir, files: tuple[ExportedFile, ...]) -> None:
    """Raise OSError unless the place reports all files with their full sizes."""
    sizes = place.sizes()
    for each in files:
        if sizes.get(each.stored) != each.file.size:
            raise OSError(
                errno.EIO,
                f"of {each.file.size} bytes that were sent {sizes.get(each.stored, 0)} arrived; "
                "export again",
                os.path.join(place.where, each.stored),
            )


def _is_stored(name: str) -> bool:
    """Test whether ``stored_name`` gives such names."""
    stem, _, end = name.rpartition(".")
    return len(end) == 16 and (stem.startswith("run-") or parse_attempt_file(stem) is not None)
