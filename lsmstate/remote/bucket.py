"""One bucket's files on a remote file system, used through local copies.

- A store reads and writes files in a directory of the local cache. A missing file is fetched
  completely when it is first opened.
- At its commit an attempt sends what it wrote, before anybody knows its pointer: the runs first,
  the commit's own file last. The length of each sent file is checked, so a pointer never names a
  truncated one.
- Nothing fetched is trusted. Length and footer are compared with the pointer and the manifest, and
  every block has a checksum that is checked when it is read. A damaged copy is fetched again. If
  that one is damaged too, the error names the remote file.
- Requests if the copies are present: a commit makes two per file it sends (one file, unless it
  flushed or merged), opening makes none. See ``obsolete_files`` for deletion.
"""

import errno
import os
from functools import partial

from lsmstate.cython_ext.base.file import remove
from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.errors import CorruptionError
from lsmstate.lsm.file_names import AttemptFile, parse_attempt_file
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.lsm.ownership import AttemptOwner, CommitReader
from lsmstate.lsm.recovery import Named, named_by
from lsmstate.lsm.table_cache import table_cache
from lsmstate.process.memory_budget import process_memory
from lsmstate.remote.directory import (
    PIECE_BYTES,
    DurableDir,
    file_pieces,
    piece_memory,
    remove_if_there,
)
from lsmstate.remote.file_cache import FileCache
from lsmstate.remote.retries import os_error, retried

FOOTER_BYTES = 80
#: The sections of nearly all commits fit; for others the rest is read too.
_END_BYTES = 64 << 10

_MISSING = "a manifest or pointer names this file, but it is missing; restore it from a copy"


class DurableBucket:
    """A bucket's local copies and their remote originals; a ``table_cache.Origin`` and an
    ``ownership.RemoteBucket``."""

    def __init__(self, place: DurableDir, cache: FileCache, state: str, bucket: str) -> None:
        self._place = place
        self._cache = cache
        #: Directory of the copies.
        self.directory = cache.bucket_directory(state, bucket)
        self._used: set[str] = set()
        #: Sizes at the last listing.
        self._sizes: dict[str, int] = {}
        #: What commits name, which never changes, for those that were read and still exist.
        self._named: dict[str, Named] = {}
        cache.sweep(self.directory)

    @property
    def where(self) -> str:
        """The remote place, for messages."""
        return self._place.where

    @property
    def worker(self) -> str:
        """Part of the names of files that are written into the directory."""
        return self._cache.worker

    def attempt_owner(self, batch_id: int, attempt_id: str) -> AttemptOwner:
        """Return the owner for a task attempt."""
        return DurableOwner(self, batch_id, attempt_id)

    def commit_reader(self, pointer: str) -> CommitReader:
        """Return the owner for reading one commit."""
        return DurableCommitReader(self, pointer)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _durable(self, name: str) -> str:
        return f"{self.where}/{name}"

    # Copies -------------------------------------------------------------------------------

    def bring(self, name: str, size: int) -> None:
        """Make a copy of a file, if it is absent. Cost: one request, or a check whether the copy
        exists."""
        if not os.path.exists(self._path(name)):
            part = self._cache.begin(self._path(name), size)
            try:
                with piece_memory():
                    retried(
                        partial(self._receive, name, part, size), f"reading {self._durable(name)}"
                    )
                self._cache.finish(part, self._path(name))
            finally:
                self._cache.discard(part)

    def bring_again(self, name: str, size: int) -> str:
        """Replace a damaged copy; return its source, for messages."""
        self._cache.drop(self._path(name))
        self.bring(name, size)
        return self._durable(name)

    def note_use(self, name: str) -> None:
        """Note the use of a copy."""
        self._used.add(name)

    def flush_uses(self) -> None:
        """Tell the cache which copies were used since the last call."""
        used, self._used = self._used, set()
        self._cache.touch(map(self._path, used))

    def _receive(self, name: str, part: str, size: int) -> None:
        done = 0
        try:
            with open(part, "r+b") as file:
                for piece in self._place.pieces(name):
                    done += len(piece)
                    if done > size:
                        break
                    file.write(piece)
        except FileNotFoundError as error:
            raise CorruptionError(_MISSING, self._durable(name), 0) from error
        if done != size:
            found = f"more than {size}" if done > size else str(done)
            raise CorruptionError(
                f"it has {found} bytes instead of {size}; restore it from a copy of the checkpoint",
                self._durable(name),
                min(done, size),
            )

    # Attempts -----------------------------------------------------------------------------

    def publish(self, name: str) -> None:
        """Send a sealed file, which is then a copy. OSError if it does not arrive completely after
        several tries."""
        with piece_memory():
            retried(partial(self._send, name), f"writing {self._durable(name)}")
        self._cache.adopt(self._path(name))

    def _send(self, name: str) -> None:
        size = os.stat(self._path(name)).st_size
        self._place.write(name, file_pieces(self._path(name)))
        arrived = self._place.size(name)
        if arrived != size:
            raise OSError(errno.EIO, f"{arrived} of {size} bytes arrived", self._durable(name))

    # Collecting ---------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all files, whoever wrote them."""
        self._sizes = retried(self._place.sizes, f"listing {self.where}")
        self._named = {name: found for name, found in self._named.items() if name in self._sizes}
        return list(self._sizes)

    def parse(self, name: str) -> AttemptFile | None:
        """Parse a name; None if attempts do not give such names."""
        return parse_attempt_file(name)

    def named_by(self, commit: str) -> Named:
        """Return what a commit needs, and its parent. Cost: one request, the first time and without
        a copy."""
        if commit not in self._named:
            self._named[commit] = named_by(self._end_of, commit)
        return self._named[commit]

    def _end_of(self, name: str) -> Sst:
        """Open a file of which only the sections at the end can be read."""
        cache = process_memory().cache
        try:
            copy = Sst(self._path(name), cache)
            copy.section("edit")
            return copy
        except FileNotFoundError:
            pass
        except CorruptionError:
            # The error says nothing about the remote file, which would be taken for one never
            # sealed.
            self._cache.drop(self._path(name))
        size = self._sizes.get(name)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, _MISSING, self._durable(name))
        part = self._cache.part_of(self._path(name))
        try:
            with piece_memory():
                retried(partial(self._read_end, name, part, size), f"reading {self._durable(name)}")
            return Sst(part, cache)
        finally:
            remove(part)

    def _read_end(self, name: str, part: str, size: int) -> None:
        """Read the sections at the end, from the top index on, whose offset is in the footer."""
        start = max(0, size - _END_BYTES)
        end = self._place.read(name, start, size - start)
        top = int.from_bytes(end[-FOOTER_BYTES:][:8], "little")
        with open(part, "wb") as file:
            file.truncate(size)
            file.seek(start)
            file.write(end)
            for offset in range(top, start, PIECE_BYTES):
                file.seek(offset)
                file.write(self._place.read(name, offset, min(PIECE_BYTES, start - offset)))

    def remove(self, name: str) -> None:
        """Delete a file that nobody can need."""
        remove_if_there(self._place, name)  # another attempt may delete files too
        table_cache(process_memory()).forget(self.directory, name)
        self._cache.drop(self._path(name))


class DurableOwner(AttemptOwner):
    """A task attempt whose commit sends its files before it returns its pointer."""

    def __init__(self, bucket: DurableBucket, batch_id: int, attempt_id: str) -> None:
        super().__init__(bucket, batch_id, f"{attempt_id}-{bucket.worker}")
        self._bucket = bucket
        self._written: list[str] = []
        table_cache(process_memory()).bring_from(bucket)

    def new_name(self, kind: str) -> str:
        name = super().new_name(kind)
        self._written.append(name)
        return name

    def committed(self, pointer: str, live: set[str], replay_from: int) -> None:
        """Send the files, the commit's own file last: whatever is listed there and sealed can be
        opened."""
        last = parse_pointer(pointer).name
        runs = [name for name in self._written if name in live and name != last]
        try:
            for name in (*runs, last):
                self._bucket.publish(name)
        except BaseException as error:
            remove(os.path.join(self._bucket.directory, last))
            if isinstance(error, OSError):
                raise os_error(
                    error, f"nothing was committed, and the previous commit is still valid: {error}"
                ) from error
            raise

    def release(self) -> None:
        self._bucket.flush_uses()


class DurableCommitReader(CommitReader):
    """Reads one commit of a remote bucket; its files are copied when they are read."""

    def __init__(self, bucket: DurableBucket, pointer: str) -> None:
        table_cache(process_memory()).bring_from(bucket)
        super().__init__(bucket, bucket.directory, pointer)
        self._bucket = bucket

    def release(self) -> None:
        self._bucket.flush_uses()
