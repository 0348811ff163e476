"""Where the state of one query lies: a local directory, or a directory of any file system.

    <place>/bucket-000007/...   the files of one bucket's attempts
    <place>/<name>              small files that are written once, such as a query's settings

A local directory is worked in directly. Of another place the files in use are kept as copies in a
cache on this machine's disk, which all processes and queries of the machine share.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from lsmstate.backends import open_commit
from lsmstate.durable_bucket import DurableBucket
from lsmstate.durable_dir import DurableDir, LocalDir, RemoteDir
from lsmstate.errors import InvalidArgumentError
from lsmstate.file_cache import FileCache
from lsmstate.filesystems import is_url, resolve
from lsmstate.options import Options, parse_bytes
from lsmstate.retries import retried
from lsmstate.store import MultimapStore

#: How much of a machine's disk the copies may take.
DEFAULT_CACHE = "10g"


class StatePlace:
    """One place. Those of one process that are the same share file systems and copies."""

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        cache: int | str = DEFAULT_CACHE,
    ) -> None:
        """``url`` is a local path or ``file:`` URL, or names a directory of another file system
        (see ``filesystems``), to which ``storage_options`` go. ``cache_dir`` is a local directory
        for copies (default: the system's for temporary files), ``cache`` their most bytes; both
        matter elsewhere only. InvalidArgumentError. Cost: no request is made."""
        cache_bytes = parse_bytes(cache, "cache")
        self.url = url
        path = local_path(url)
        self.local_directory = path
        self._buckets: dict[int, DurableBucket] = {}
        if path is not None:
            self._dir: DurableDir = LocalDir(path)
            return
        self._filesystem, self._path = resolve(url, storage_options)
        self._path = self._path.rstrip("/")
        self._dir = RemoteDir(self._filesystem, self._path)
        # Several users of a machine may share a directory for temporary files.
        home = os.path.join(cache_dir or tempfile.gettempdir(), f"lsmstate-cache-{os.getuid()}")
        self._cache = FileCache(home, cache_bytes)
        self._state = hashlib.sha256(self._dir.where.encode()).hexdigest()[:16]

    @property
    def where(self) -> str:
        """For messages; holds no credentials."""
        return self._dir.where

    def bucket(self, number: int) -> str | DurableBucket:
        """Where the attempts of a bucket are opened (``backends.open_attempt``); a local directory
        is made if it is not there."""
        name = f"bucket-{number:06d}"
        if self.local_directory is not None:
            path = os.path.join(self.local_directory, name)
            os.makedirs(path, exist_ok=True)
            return path
        if number not in self._buckets:
            place = RemoteDir(self._filesystem, f"{self._path}/{name}")
            self._buckets[number] = DurableBucket(place, self._cache, self._state, name)
        return self._buckets[number]

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """A small file of the place, None if it is not there. Cost: two requests."""
        try:
            return retried(
                lambda: self._dir.read(name, 0, most_bytes), f"reading {self.where}/{name}"
            )
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, name: str, content: bytes) -> None:
        """Write a small file, whole, unless it is there already.

        In a local directory that is one step. Elsewhere it is a look and then a write, since file
        systems have nothing better in common: of two that begin within the same instant the later
        one's content stays, which both see when they read it afterwards.
        """
        if self.local_directory is not None:
            _create_local(os.path.join(self.local_directory, name), content)
        elif retried(lambda: self._dir.size(name), f"looking for {self.where}/{name}") is None:
            retried(lambda: self._dir.write(name, [content]), f"writing {self.where}/{name}")


def local_path(url: str) -> str | None:
    """``/a/b``, ``a/b`` or ``file:/a/b`` -> ``/a/b``; None if it is on another file system."""
    if is_url(url) and not url.startswith("file:"):
        return None
    if url.startswith("file:"):
        if urlsplit(url).netloc:
            raise InvalidArgumentError(
                f"{url}: file: addresses name no machine; write file:///path"
            )
        # Not urlsplit's path: Hadoop does not escape, '#' and '?' are plain characters there.
        url = "/" + url.removeprefix("file:").lstrip("/")
    return os.path.abspath(url)


def open_bucket(
    place: StatePlace, bucket: int, pointer: str, *, options: Options | None = None
) -> MultimapStore:
    """The store of one bucket as a commit pointer of the backend ``lsm`` has it, to be read only,
    wherever the state lies; see ``backends.open_commit``. Nothing is written to the place."""
    return open_commit(place.bucket(bucket), pointer, options=options or Options())


def _create_local(path: str, content: bytes) -> None:
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}-", dir=directory)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
