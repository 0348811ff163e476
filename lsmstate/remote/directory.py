"""A durable directory, local or on a ``pyarrow.fs`` file system.

Files are written once, from front to back, and read in pieces. A name may be that of a file in a
subdirectory. Both kinds share a protocol. Only the local one has hard links and fsync.
"""

import errno
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pyarrow import NativeFile

from lsmstate.cython_ext.base.file import (
    AppendFile,
    ReadFile,
    link,
    remove,
    sync_directory,
    sync_file,
)
from lsmstate.cython_ext.memory.budget import Holding
from lsmstate.errors import InvalidArgumentError
from lsmstate.process.memory_budget import process_memory
from lsmstate.remote.filesystems import is_url, resolve
from lsmstate.remote.retries import retried

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem  # takes 8 MiB in every process that imports it

#: Files are read, sent and checked in pieces of this size; the last one is shorter.
PIECE_BYTES = 1 << 20

#: Errors of a file system, or a pair of them, without hard links.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)

_log = logging.getLogger(__name__)


class DurableDir(Protocol):
    """A durable directory. Errors of the file system pass through as OSError."""

    @property
    def where(self) -> str:
        """The directory for messages, without credentials."""
        ...

    def sizes(self) -> dict[str, int]:
        """Return the files directly in the directory, with their sizes in bytes; none if it is
        absent."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of one file in bytes; None if it is absent."""
        ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Read up to ``size`` bytes at an offset."""
        ...

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the whole file in pieces of PIECE_BYTES."""
        ...

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a new file. After an error, the incomplete file is removed if possible."""
        ...

    def link_from(self, path: str, name: str) -> bool:
        """Hard-link a local sealed file into this directory; return False if that is impossible."""
        ...

    def link_to(self, name: str, path: str) -> bool:
        """Hard-link a file of this directory to a local path; return False if that
        is impossible."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file."""
        ...

    def directories(self) -> list[str]:
        """Return the names of the subdirectories; none if the directory is absent."""
        ...

    def below(self, name: str) -> "DurableDir":
        """Return a subdirectory, whether it exists or not."""
        ...

    def remove_tree(self) -> None:
        """Delete the directory and everything in it; an absent one is no error. After an error, the
        next call deletes the rest."""
        ...

    def force(self) -> None:
        """Make the names of new files durable."""
        ...


def durable_dir(place: str | os.PathLike[str], filesystem: "FileSystem | None") -> DurableDir:
    """Return the directory of a place.

    Args:
        place: A path in ``filesystem`` if it is given; else a URI (``s3://bucket/path``) or a local
            path.
        filesystem: A file system of ``pyarrow.fs``.

    Raises:
        InvalidArgumentError: There is no such file system here.
    """
    if not isinstance(place, str | os.PathLike):
        raise InvalidArgumentError(
            f"the place of exports is {place!r}, a {type(place).__name__}; give a path or a URI"
        )
    path = os.fspath(place)
    if not path or (filesystem is not None and not hasattr(filesystem, "type_name")):
        raise InvalidArgumentError(
            f"place {path!r}, filesystem={filesystem!r}: give a path that is not empty, and a file "
            "system of pyarrow.fs"
        )
    if filesystem is None and is_url(path):
        filesystem, path = resolve(path)
    if filesystem is None or filesystem.type_name == "local":
        return LocalDir(path)
    return RemoteDir(filesystem, path)


def remove_if_there(place: DurableDir, name: str) -> None:
    """Delete a file; an absent one is no error, since a try may have deleted it and only its answer
    was lost. OSError after several tries."""
    with suppress(FileNotFoundError):
        retried(partial(place.remove, name), f"deleting {place.where}/{name}")


def piece_memory() -> Holding:
    """Return a context for work with pieces: the process's budget counts the two that are held at a
    time."""
    return Holding(process_memory().budget, "frames", 2 * PIECE_BYTES)


class LocalDir:
    """A directory on the local file system."""

    def __init__(self, path: str) -> None:
        self.where = os.path.abspath(path)

    def _path(self, name: str) -> str:
        return os.path.join(self.where, name)

    def sizes(self) -> dict[str, int]:
        if not os.path.isdir(self.where):
            return {}
        with os.scandir(self.where) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._path(name)).st_size
        except FileNotFoundError:
            return None

    def read(self, name: str, offset: int, size: int) -> bytes:
        file = ReadFile(self._path(name))
        try:
            return file.read(offset, max(0, min(size, file.size - offset)))
        finally:
            file.close()

    def pieces(self, name: str) -> Iterator[bytes]:
        return file_pieces(self._path(name))

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        os.makedirs(os.path.dirname(self._path(name)), exist_ok=True)
        write_file(self._path(name), pieces)

    def link_from(self, path: str, name: str) -> bool:
        os.makedirs(self.where, exist_ok=True)
        return _linked(path, self._path(name))

    def link_to(self, name: str, path: str) -> bool:
        return _linked(self._path(name), path)

    def remove(self, name: str) -> None:
        remove(self._path(name))

    def directories(self) -> list[str]:
        if not os.path.isdir(self.where):
            return []
        with os.scandir(self.where) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def below(self, name: str) -> "LocalDir":
        return LocalDir(self._path(name))

    def remove_tree(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.where)

    def force(self) -> None:
        sync_directory(self.where)


class RemoteDir:
    """A directory on any file system that pyarrow supports, natively or by PyFileSystem."""

    def __init__(self, filesystem: "FileSystem", path: str) -> None:
        self._filesystem = filesystem
        self._directory = path.rstrip("/")
        self.where = f"{filesystem.type_name.removeprefix('py::')}:{self._directory}"

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def sizes(self) -> dict[str, int]:
        return {info.base_name: info.size for info in self._listed() if info.is_file}

    def _listed(self) -> "list[FileInfo]":
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._directory, allow_not_found=True)
        return list(self._filesystem.get_file_info(selector))

    def size(self, name: str) -> int | None:
        info = self._filesystem.get_file_info(self._path(name))
        return int(info.size) if info.is_file else None

    def read(self, name: str, offset: int, size: int) -> bytes:
        with self._filesystem.open_input_file(self._path(name)) as file:
            file.seek(offset)
            return _read_whole(file, size)

    def pieces(self, name: str) -> Iterator[bytes]:
        with self._filesystem.open_input_stream(self._path(name)) as file:
            while piece := _read_whole(file, PIECE_BYTES):
                yield piece

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        try:
            with self._opened(name) as file:
                for piece in pieces:
                    file.write(piece)
        except BaseException:
            # Closing may have made an object of the incomplete data that was sent.
            self._remove_torn(name)
            raise

    def _opened(self, name: str) -> NativeFile:
        """Open a new file. Object stores need no directory, so it is made only if it is missing."""
        try:
            return self._filesystem.open_output_stream(self._path(name))
        except FileNotFoundError:
            directory = self._path(name).rpartition("/")[0]
            self._filesystem.create_dir(directory, recursive=True)
            return self._filesystem.open_output_stream(self._path(name))

    def _remove_torn(self, name: str) -> None:
        try:
            self._filesystem.delete_file(self._path(name))
        except FileNotFoundError:
            return
        except OSError as error:
            # No catalog names the file: the next export replaces it.
            _log.warning("half of a file stays as %s/%s: %s", self.where, name, str(error))

    def link_from(self, path: str, name: str) -> bool:
        return False

    def link_to(self, name: str, path: str) -> bool:
        return False

    def remove(self, name: str) -> None:
        self._filesystem.delete_file(self._path(name))

    def directories(self) -> list[str]:
        from pyarrow.fs import FileType

        return [info.base_name for info in self._listed() if info.type == FileType.Directory]

    def below(self, name: str) -> "RemoteDir":
        return RemoteDir(self._filesystem, self._path(name))

    def remove_tree(self) -> None:
        from pyarrow.fs import FileType

        # File systems raise different errors for an absent directory.
        if self._filesystem.get_file_info(self._directory).type != FileType.NotFound:
            with suppress(FileNotFoundError):
                self._filesystem.delete_dir(self._directory)

    def force(self) -> None:
        """Do nothing: a stream that was closed without an error is durable."""


def file_pieces(path: str) -> Iterator[bytes]:
    """Yield a local file in pieces."""
    file = ReadFile(path)
    try:
        for offset in range(0, file.size, PIECE_BYTES):
            yield file.read(offset, min(PIECE_BYTES, file.size - offset))
    finally:
        file.close()


def write_file(path: str, pieces: Iterable[bytes]) -> None:
    """Write a new local file and force it to disk; an error removes it."""
    file = AppendFile(path)
    try:
        for piece in pieces:
            file.append(piece)
        file.sync()
        file.close()
    except BaseException:
        remove(path)
        raise


def _read_whole(file: NativeFile, size: int) -> bytes:
    """Read this many bytes, fewer only at the end: a file system may return less than requested."""
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _linked(source: str, target: str) -> bool:
    try:
        link(source, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    sync_file(target)
    return True
