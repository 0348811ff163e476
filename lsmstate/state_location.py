"""Place of a query's state: a directory on the local or a remote file system.

    <place>/bucket-000007/...   the files of one bucket's attempts
    <place>/<name>              small files that are written once, such as a query's settings

A local directory is used directly. Files of a remote place that are in use have copies in a cache
on the local disk, which all processes and queries of the machine share.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lsmstate.errors import InvalidArgumentError
from lsmstate.opening import open_commit
from lsmstate.options import Options, parse_bytes
from lsmstate.remote.bucket import DurableBucket
from lsmstate.remote.directory import DurableDir, LocalDir, RemoteDir
from lsmstate.remote.file_cache import LEAST_BYTES, FileCache
from lsmstate.remote.filesystems import is_url, resolve
from lsmstate.remote.retries import retried
from lsmstate.store import MultimapStore

#: Default of the disk space for copies.
DEFAULT_CACHE = "10g"
_BUCKET = "bucket-"


class StatePlace:
    """One place. Equal places of a process share file systems and copies."""

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        cache: int | str = DEFAULT_CACHE,
    ) -> None:
        """Name a place; no request is made.

        Args:
            url: A local path, a ``file:`` URL, or a directory of another file system (see
                ``remote.filesystems``).
            storage_options: Options of the remote file system.
            cache_dir: Local directory for copies of remote files; default: the system's for
                temporary files.
            cache: Most bytes of these copies.

        Raises:
            InvalidArgumentError: An argument is invalid.
        """
        self._cache_bytes = check_cache_bytes(cache)
        self._cache_dir = cache_dir or tempfile.gettempdir()
        self._buckets: dict[int, DurableBucket] = {}
        self.url = url
        #: None: on a remote file system.
        self.local_directory = local_path(url)
        #: The small files.
        self.files: DurableDir
        if self.local_directory is not None:
            self.files = LocalDir(self.local_directory)
        else:
            self._filesystem, path = resolve(url, storage_options)
            self._path = path.rstrip("/")
            self.files = RemoteDir(self._filesystem, self._path)

    @property
    def where(self) -> str:
        """The place for messages, without credentials."""
        return self.files.where

    def bucket(self, number: int) -> str | DurableBucket:
        """Return where attempts of a bucket are opened (``opening.open_attempt``); create a local
        directory if necessary."""
        name = bucket_directory_name(number)
        if self.local_directory is not None:
            path = os.path.join(self.local_directory, name)
            os.makedirs(path, exist_ok=True)
            return path
        if number not in self._buckets:
            place = RemoteDir(self._filesystem, f"{self._path}/{name}")
            state = hashlib.sha256(self.where.encode()).hexdigest()[:16]
            self._buckets[number] = DurableBucket(place, self._file_cache(), state, name)
        return self._buckets[number]

    def buckets(self) -> list[int]:
        """List the numbers of the buckets. OSError. Cost: one listing."""
        names = retried(self.files.directories, f"listing {self.where}")
        found = (name.removeprefix(_BUCKET) for name in names if name.startswith(_BUCKET))
        return sorted(int(number) for number in found if number.isdigit())

    def remove_bucket(self, number: int) -> int:
        """Delete all files of a bucket that nobody has open; return the freed bytes. OSError. Cost:
        two listings and the deletion of a directory."""
        self._buckets.pop(number, None)
        files = self.files.below(bucket_directory_name(number))
        freed = sum(retried(files.sizes, f"listing {files.where}").values())
        retried(files.remove_tree, f"deleting {files.where}")
        return freed

    def _file_cache(self) -> FileCache:
        # Several users of a machine may share a directory for temporary files.
        home = os.path.join(self._cache_dir, f"lsmstate-cache-{os.getuid()}")
        return FileCache(home, self._cache_bytes)


def bucket_directory_name(bucket: int) -> str:
    """Return the name of a bucket's directory in the place."""
    return f"{_BUCKET}{bucket:06d}"


def check_cache_bytes(cache: int | str) -> int:
    """Convert ``"10g"`` to bytes; raise InvalidArgumentError if it is not a size, or too small to
    work with."""
    cache_bytes = parse_bytes(cache, "cache")
    if cache_bytes < LEAST_BYTES:
        raise InvalidArgumentError(
            f"cache={cache!r}: too small to work with; give at least {LEAST_BYTES} bytes ('1m')"
        )
    return cache_bytes


def local_path(url: str) -> str | None:
    """Convert ``/a/b``, ``a/b`` or ``file:/a/b`` to ``/a/b``; None for a remote file system."""
    if is_url(url) and not url.startswith("file:"):
        return None
    if url.startswith("file:"):
        if urlsplit(url).netloc:
            raise InvalidArgumentError(
                f"{url}: file: addresses name no machine; write file:///path"
            )
        # Not urlsplit's path: Hadoop does not escape, so '#' and '?' are plain characters.
        url = "/" + url.removeprefix("file:").lstrip("/")
    return os.path.abspath(url)


def open_bucket(
    place: StatePlace, bucket: int, pointer: str, *, options: Options | None = None
) -> MultimapStore:
    """Open a bucket at a commit pointer of the backend ``lsm`` for reading, wherever its state
    lies; see ``opening.open_commit``. Nothing is written to the place."""
    return open_commit(place.bucket(bucket), pointer, options=options or Options())
