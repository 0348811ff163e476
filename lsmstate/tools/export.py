"""Exports: a copy of one committed state at another place, local or on any ``pyarrow.fs``.

Incremental: a file that an earlier export brought there, and that still has the right length and
footer, is not sent again. Where the destination is local and on the same device, files are hard
linked. Order of steps: the files, a look at all their sizes, the catalog last; whatever is
interrupted leaves files that the next export uses or replaces, and all earlier exports whole.
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
    """What an export did: its catalog, and the files and bytes that were not there before."""

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
    """Copy one committed state to ``destination``, under a name, beside earlier exports.

    ``directory`` is a standalone store's, of which ``checkpoint`` is exported (also while it is
    open elsewhere), or the newest state (it is opened and committed for that); or an attempts'
    directory (a bucket's), of which the commit that ``pointer`` names is. ``destination`` is a
    local path, a URI, or a path in ``filesystem``. ``name`` defaults to the checkpoint's, else to
    the commit's file.

    Cost: new files are read twice (each block is verified) and sent once; one request for each
    other file. Memory: two pieces of PIECE_BYTES, and what pyarrow buffers. Errors:
    InvalidArgumentError (nothing was changed), StoreLockedError, CorruptionError (of the source),
    OSError (export again: what was sent is not sent again).
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
    """The complete exports at a place, oldest first. CorruptionError, FormatVersionError: one
    cannot be read; ``list_each_export`` lists the others. Cost: one listing, one read each."""
    return all_whole(list_each_export(destination, filesystem=filesystem))


def list_each_export(
    destination: Place, *, filesystem: FileSystem | None = None
) -> list[ReadCatalog]:
    """The same, and of those that cannot be read the error."""
    place = durable_dir(destination, filesystem)
    return read_each_catalog(place, place.sizes())


def delete_export(destination: Place, name: str, *, filesystem: FileSystem | None = None) -> int:
    """Delete an export, also one whose catalog is damaged, and all files that no other one needs;
    how many. While the catalog of another one cannot be read, nobody knows what that needs: all
    files stay then, until a later call. Not to be called while somebody exports to the same place.
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
    """A checkpoint (None: the newest) as if it were an export of its store's own directory. Every
    block is verified. It is held until the pin is released."""
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
    """The XXH3 of each piece of a local file."""
    return tuple(checksum(piece) for piece in file_pieces(path))


@contextmanager
def _state(directory: str, checkpoint: str | None, pointer: str | None) -> Iterator[str]:
    """The pointer to export, with its files held."""
    is_store = holds_standalone_store(directory)
    if pointer is not None:
        if checkpoint is not None or is_store:
            raise InvalidArgumentError(
                "a pointer names a commit of attempts; of a standalone store a checkpoint or the "
                "newest state is exported"
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
    """The store itself, with the streams it has."""
    state = find_standalone(
        directory, "of a bucket's directory give the pointer of the commit to export"
    )
    try:
        return LsmStore.open(directory, list(state.found.streams.values()), options=Options())
    except StoreLockedError as error:
        raise StoreLockedError(f"{error}; or export a checkpoint, which can be done now") from error


class _Sender:
    """Brings files to a place, unless they are there."""

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
        """The file's description for the catalog; afterwards it is there."""
        stored = stored_name(file)
        known = self._known.get(stored)
        if known is not None and self._looks_right(known):
            return known
        _verify(self._tables, self._directory, file)
        path = os.path.join(self._directory, file.name)
        described = ExportedFile(file, stored, piece_sums(path))
        if self._sizes.get(stored) == file.size and self._has_same_bytes(described):
            return described  # an export that never ended brought it here
        if stored in self._sizes:
            self._place.remove(stored)
        if not self._place.link_from(path, stored):
            self._place.write(stored, file_pieces(path))
        self.sent_files += 1
        self.sent_bytes += file.size
        return described

    def _looks_right(self, known: ExportedFile) -> bool:
        """Length and footer of a file that a complete export brought."""
        size = known.file.size
        if self._sizes.get(known.stored) != size:
            return False
        end = self._place.read(known.stored, size - 16, 16)
        return end == known.file.checksum.to_bytes(8, "little") + _FOOTER_END

    def _has_same_bytes(self, described: ExportedFile) -> bool:
        found = tuple(checksum(piece) for piece in self._place.pieces(described.stored))
        return found == described.pieces


def _verify(tables: TableCache, directory: str, file: Pointer) -> None:
    """CorruptionError unless every block of a file is as it was written."""
    verify(tables.open_commit(directory, file.name, file.size, file.checksum))


def _check_sizes(place: DurableDir, files: tuple[ExportedFile, ...]) -> None:
    """OSError unless the place says that all files are there, whole."""
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
    """Whether a name is one that stored_name gives."""
    stem, _, end = name.rpartition(".")
    return len(end) == 16 and (stem.startswith("run-") or parse_attempt_file(stem) is not None)
