"""Cache of remote files on the local disk: bounded in bytes, shared by all processes of the
machine.

    LOCK              held while the accounts change; holds the bytes of all copies
    workers/<id>      locked by a process as long as it lives
    <state>/<bucket>/ the copies of one bucket's files, and files that are being written

- A copy is read-only, and a read-only file may be evicted, least recently used (by its time) first.
- A file that exists nowhere else is writable. Its name has the worker that writes it, and it is
  deleted when that worker is dead.
- Eviction removes the name: a process that has the file open continues to read it.
- Invariant: the accounts never count too little, since bytes are added before a copy is begun.
  After a crash they count too much, until a scan finds the true sum. A scan is made whenever the
  limit is reached.
- Unfinished files, and a single larger file, may exceed the limit.
"""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from lsmstate.cython_ext.base.file import Descriptor
from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.file_names import parse_attempt_file
from lsmstate.process.whole_writes import write_at

#: Under a smaller limit, a few files of a bucket that is read would evict each other.
LEAST_BYTES = 1 << 20
#: An eviction makes this much room at once, so that the next one is not due soon.
_KEPT_AFTER_EVICTION = 0.9

_PART = ".part"

#: POSIX locks belong to the process: closing any descriptor of a file drops them. Within a process,
#: a lock file is therefore open once at a time.
_process_lock = threading.RLock()
#: (process, directory) -> this process's id there, and the locked file.
_workers: dict[tuple[int, str], tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class _Found:
    """A file in the cache."""

    path: str
    size: int
    used_ns: int
    is_copy: bool


class FileCache:
    """One cache directory, which may be on any local file system with POSIX locks."""

    def __init__(self, directory: str, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        try:
            os.makedirs(os.path.join(directory, "workers"), mode=0o700, exist_ok=True)
            self.directory = os.path.realpath(directory)
            #: Id of this process, a part of the names of files it writes.
            self.worker = self._registered()
        except OSError as error:
            raise InvalidArgumentError(
                f"the cache directory {directory} cannot be used ({error.strerror}); make it "
                "writable for the user Spark runs as, or choose another with cache_dir"
            ) from error

    def bucket_directory(self, state: str, bucket: str) -> str:
        """Return the directory of a bucket's files; create it if necessary."""
        path = os.path.join(self.directory, state, bucket)
        os.makedirs(path, exist_ok=True)
        return path

    # Copies -------------------------------------------------------------------------------

    def begin(self, path: str, size: int) -> str:
        """Make room for a copy of this size; return the path where it is written first."""
        part = self.part_of(path)
        with _process_lock, self._open_books() as lock:
            books = self._books(lock)
            books.add(size)
            with open(part, "xb") as file:
                file.truncate(size)  # a scan counts its full size from now on
        return part

    def part_of(self, path: str) -> str:
        """Return a name for an incomplete file, which is deleted when this worker is dead."""
        return f"{path}.{self.worker}-{os.urandom(4).hex()}{_PART}"

    def finish(self, part: str, path: str) -> None:
        """Give a complete copy its name, unless another worker was first."""
        size = os.stat(part).st_size
        os.chmod(part, 0o444)
        try:
            os.link(part, path)
        except FileExistsError:
            self._count_out(size)
        finally:
            os.unlink(part)

    def discard(self, part: str) -> None:
        """Delete an incomplete copy."""
        with suppress(FileNotFoundError):
            size = os.stat(part).st_size
            os.unlink(part)
            self._count_out(size)

    def adopt(self, path: str) -> None:
        """Turn a file that was written here, and is now durable elsewhere, into a copy."""
        with _process_lock, self._open_books() as lock:
            books = self._books(lock)
            books.add(os.stat(path).st_size)
            os.chmod(path, 0o444)

    def drop(self, path: str) -> None:
        """Delete a copy; an absent one is no error."""
        try:
            found = os.stat(path)
            os.unlink(path)
        except FileNotFoundError:
            return
        if not found.st_mode & stat.S_IWUSR:
            self._count_out(found.st_size)

    def touch(self, paths: Iterable[str]) -> None:
        """Note that these copies were used now."""
        for path in paths:
            with suppress(FileNotFoundError):
                os.utime(path)

    def used_bytes(self) -> int:
        """Return the accounted bytes, counted again if there are no accounts. For tests and
        metrics."""
        with _process_lock, self._open_books() as lock:
            books = self._books(lock)
            return books.bytes

    def _count_out(self, size: int) -> None:
        with _process_lock, self._open_books() as lock:
            books = self._books(lock)
            books.subtract(size)

    # Books --------------------------------------------------------------------------------

    def _open_books(self) -> Descriptor:
        """Open the file that is locked while the accounts are in use."""
        return Descriptor(os.path.join(self.directory, "LOCK"), os.O_RDWR | os.O_CREAT, 0o600)

    def _books(self, lock: Descriptor) -> "_Books":
        """Lock the accounts until the file is closed: one process of the machine at a time, and one
        of its threads, by the process's lock."""
        fcntl.lockf(lock, fcntl.LOCK_EX)
        return _Books(lock.fileno(), self)

    def _make_room(self, size: int) -> int:
        """Delete what dead workers left, and copies, until ``size`` more bytes fit the limit;
        return the remaining bytes."""
        buckets = self._buckets()
        for bucket in buckets:
            self._sweep(bucket)
        found = [each for bucket in buckets for each in _files(bucket)]
        copies = sorted((each for each in found if each.is_copy), key=lambda each: each.used_ns)
        left = sum(each.size for each in found if each.is_copy or each.path.endswith(_PART))
        if left + size > self.limit_bytes:
            target = max(0, int(self.limit_bytes * _KEPT_AFTER_EVICTION) - size)
            for each in copies:
                if left <= target:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(each.path)
                left -= each.size
        return left

    def _buckets(self) -> list[str]:
        with os.scandir(self.directory) as states:
            inside = [s.path for s in states if s.is_dir() and s.name != "workers"]
        found = []
        for state in inside:
            with os.scandir(state) as buckets:
                found += [bucket.path for bucket in buckets if bucket.is_dir()]
        return found

    # Dead workers -------------------------------------------------------------------------

    def sweep(self, directory: str) -> None:
        """Delete what dead workers left in a bucket's directory. Cost: one listing."""
        with _process_lock, self._open_books() as lock:
            self._books(lock)
            self._sweep(directory)

    def _sweep(self, directory: str) -> None:
        alive = {self.worker: True}
        for each in _files(directory):
            worker = None if each.is_copy else _writer(os.path.basename(each.path))
            if worker is None:
                continue
            if worker not in alive:
                alive[worker] = self._is_alive(worker)
            if not alive[worker]:
                with suppress(FileNotFoundError):
                    os.unlink(each.path)

    def _is_alive(self, worker: str) -> bool:
        """Test whether a worker lives, and delete the lock file of a dead one. The accounts are
        locked, so nobody registers meanwhile."""
        path = os.path.join(self.directory, "workers", worker)
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return True
            raise
        finally:
            os.close(file)
        return False

    def _registered(self) -> str:
        """Return this process's id, which is made once per directory; a forked
        child makes its own."""
        key = (os.getpid(), self.directory)
        with _process_lock:
            if key not in _workers:
                worker = os.urandom(6).hex()
                with self._open_books() as lock:
                    self._books(lock)
                    for other in os.listdir(os.path.join(self.directory, "workers")):
                        self._is_alive(other)  # deletes the lock files of dead ones
                    path = os.path.join(self.directory, "workers", worker)
                    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                    fcntl.lockf(file, fcntl.LOCK_EX)
                _workers[key] = (worker, file)
            return _workers[key][0]


class _Books:
    """The accounts: the bytes of all copies, while the lock is held."""

    def __init__(self, file: int, cache: FileCache) -> None:
        self._file = file
        self._cache = cache

    @property
    def bytes(self) -> int:
        text = os.pread(self._file, 32, 0).strip()
        return int(text) if text.isdigit() else self._noted(self._cache._make_room(0))

    def add(self, size: int) -> None:
        """Add a copy that is about to be made; evict others if necessary."""
        used = self.bytes
        if used + size > self._cache.limit_bytes:
            used = self._cache._make_room(size)
        self._noted(used + size)

    def subtract(self, size: int) -> None:
        self._noted(max(0, self.bytes - size))

    def _noted(self, used: int) -> int:
        write_at(self._file, f"{used:<20}\n".encode(), 0)
        return used


def _files(directory: str) -> Iterator[_Found]:
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process deleted it
            if stat.S_ISREG(about.st_mode):
                is_copy = not about.st_mode & stat.S_IWUSR and not entry.name.endswith(_PART)
                yield _Found(entry.path, about.st_size, about.st_mtime_ns, is_copy)


def _writer(name: str) -> str | None:
    """Return the worker that writes, or wrote, a file that is not a copy; None if it is not one of
    ours."""
    if name.endswith(_PART):
        return name.removesuffix(_PART).rpartition(".")[2].partition("-")[0]
    file = parse_attempt_file(name)
    parts = file.attempt_id.split("-") if file is not None else []
    return parts[-2] if len(parts) >= 2 else None


def _forget_the_parents_lock() -> None:
    global _process_lock
    _process_lock = threading.RLock()  # another thread of the parent may hold it


os.register_at_fork(after_in_child=_forget_the_parents_lock)
