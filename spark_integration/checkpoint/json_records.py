"""Small JSON files beside the state, on which a restart depends.

- A file is written completely or not at all, and never over another one.
- It has its own checksum, which tells damage from other settings.
- It has a format version, which tells the file of a newer release from damage.
"""

import errno
import hashlib
import json
import os
import uuid
from contextlib import suppress
from functools import partial
from typing import Any, Final

from lsmstate.cython_ext.base.file import AppendFile, link, remove, sync_directory
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.remote.retries import retried
from lsmstate.state_location import StatePlace

FORMAT_VERSION: Final = 1
_LARGEST_BYTES: Final = 16 << 20


def create_record(path: str, content: dict[str, Any], *, sync: bool = False) -> bool:
    """Write the file. False, and nothing has changed, if there is one already.

    ``sync`` forces it to disk first. InvalidArgumentError if the directory is not writable.
    """
    root = os.path.dirname(path)
    try:
        os.makedirs(root, exist_ok=True)
        temporary = os.path.join(root, f".record-{uuid.uuid4().hex}")
        try:
            _write(temporary, _packed(content), sync)
            link(temporary, path)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                remove(temporary)
        if sync:
            sync_directory(root)
    except OSError as error:
        raise InvalidArgumentError(
            f"the state directory {root} cannot be written to ({error.strerror}); make it "
            "writable for the user Spark runs as, or choose another with state_dir"
        ) from error
    return True


def read_record(path: str) -> dict[str, Any] | None:
    """The content; None if there is no such file. CorruptionError, FormatVersionError."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise InvalidArgumentError(
            f"{path} cannot be read ({error.strerror}); make the state directory readable and "
            "writable for the user Spark runs as"
        ) from error
    return _unpacked(raw, path)


def create_record_in(
    place: StatePlace, name: str, content: dict[str, Any], *, sync: bool = False
) -> bool:
    """``create_record`` in a place that may be remote.

    There a closed file is durable without ``sync``. OSError, also if not all of it arrived.

    On a remote file system this is a look and then a write, because such systems have nothing
    better in common. If two begin within the same instant, the later file stays, and both read that
    one from then on.
    """
    if place.local_directory is not None:
        return create_record(os.path.join(place.local_directory, name), content, sync=sync)
    path = f"{place.where}/{name}"
    if retried(partial(place.files.size, name), f"looking for {path}") is not None:
        return False
    retried(partial(_send, place, name, _packed(content)), f"writing {path}")
    return True


def _send(place: StatePlace, name: str, data: bytes) -> None:
    place.files.write(name, [data])
    arrived = place.files.size(name)
    if arrived != len(data):
        where = f"{place.where}/{name}"
        raise OSError(errno.EIO, f"{arrived} of {len(data)} bytes arrived", where)


def read_record_in(place: StatePlace, name: str) -> dict[str, Any] | None:
    """``read_record`` in a place that may be remote. OSError."""
    if place.local_directory is not None:
        return read_record(os.path.join(place.local_directory, name))
    path = f"{place.where}/{name}"
    try:
        raw = retried(partial(place.files.read, name, 0, _LARGEST_BYTES), f"reading {path}")
    except FileNotFoundError:
        return None
    return _unpacked(raw, path)


def listed_files(place: StatePlace, directory: str) -> list[str]:
    """The names of the files directly in a directory of a place; none if it is absent. OSError."""
    if place.local_directory is not None:
        try:
            # No look at each: others may remove one meanwhile.
            return os.listdir(os.path.join(place.local_directory, directory))
        except FileNotFoundError:
            return []
    files = place.files.below(directory)
    return list(retried(files.sizes, f"listing {files.where}"))


def _packed(content: dict[str, Any]) -> bytes:
    record = {"format_version": FORMAT_VERSION, "sha256": _checksum(content), "settings": content}
    return json.dumps(record, indent=1).encode()


def _unpacked(raw: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(raw)
        version, content = found["format_version"], found["settings"]
        intact = version != FORMAT_VERSION or found["sha256"] == _checksum(content)
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise CorruptionError(
            "the pinned settings are damaged; restore the file from a copy of the checkpoint", path
        )
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{path} has format version {version}, this release reads version {FORMAT_VERSION}; "
            "run the query with the release that started it"
        )
    assert isinstance(content, dict)
    return content


def _write(path: str, data: bytes, sync: bool) -> None:
    file = AppendFile(path)
    try:
        file.append(data)
        if sync:
            file.sync()
    finally:
        file.close()


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
