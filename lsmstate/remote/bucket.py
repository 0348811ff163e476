"""One bucket's files at a durable place that is not a local directory, worked on through copies.

A store reads and writes files in a directory of the local cache. What is missing there is fetched
whole when it is first opened; what an attempt wrote is sent when it commits, before its pointer is
known to anybody: the runs first, the commit's own file last. Each file is looked at once more at
the durable place (its length), so a pointer never names one that was cut short in silence.

A restore trusts nothing: length and footer are compared with what the pointer and the manifest
say, every block has a checksum that is verified when it is read. A copy that fails is fetched once
more; if that fails too, the durable file is damaged, and the error names it.

Requests, where the copies are there: a commit makes two for each file it sends (one file, unless
it flushed or merged), opening none; see ``obsolete_files`` for what collecting costs.
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
#: The sections of nearly all commits fit; of others the rest is read too.
_END_BYTES = 64 << 10

_MISSING = "a manifest or pointer names this file, but it is missing; restore it from a copy"


class DurableBucket:
    """Copies, and what they are copies of. See ``table_cache.Origin`` and
    ``ownership.RemoteBucket``, both of which it is."""

    def __init__(self, place: DurableDir, cache: FileCache, state: str, bucket: str) -> None:
        self._place = place
        self._cache = cache
        #: Where the copies lie.
        self.directory = cache.bucket_directory(state, bucket)
        self._used: set[str] = set()
        #: As of the last listing.
        self._sizes: dict[str, int] = {}
        #: What commits name never changes; of those that were read and are still there.
        self._named: dict[str, Named] = {}
        cache.sweep(self.directory)

    @property
    def where(self) -> str:
        """The durable place, for messages."""
        return self._place.where

    @property
    def worker(self) -> str:
        """To be part of the names of files that are written into the directory."""
        return self._cache.worker

    def attempt_owner(self, batch_id: int, attempt_id: str) -> AttemptOwner:
        """See ownership.RemoteBucket."""
        return DurableOwner(self, batch_id, attempt_id)

    def commit_reader(self, pointer: str) -> CommitReader:
        """See ownership.RemoteBucket."""
        return DurableCommitReader(self, pointer)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _durable(self, name: str) -> str:
        return f"{self.where}/{name}"

    # Copies -------------------------------------------------------------------------------

    def bring(self, name: str, size: int) -> None:
        """See table_cache.Origin. Cost: one request, or the look whether the copy is there."""
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
        """See table_cache.Origin."""
        self._cache.drop(self._path(name))
        self.bring(name, size)
        return self._durable(name)

    def note_use(self, name: str) -> None:
        """See table_cache.Origin."""
        self._used.add(name)

    def flush_uses(self) -> None:
        """Let the cache know which copies were asked for since the last time."""
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
        """Send a sealed file of ours; it is a copy from then on. OSError if it does not arrive
        whole after several tries."""
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
        """See obsolete_files.AttemptFiles."""
        self._sizes = retried(self._place.sizes, f"listing {self.where}")
        self._named = {name: found for name, found in self._named.items() if name in self._sizes}
        return list(self._sizes)

    def parse(self, name: str) -> AttemptFile | None:
        """See obsolete_files.AttemptFiles."""
        return parse_attempt_file(name)

    def named_by(self, commit: str) -> Named:
        """See obsolete_files.AttemptFiles. Cost: one request, the first time and without a copy."""
        if commit not in self._named:
            self._named[commit] = named_by(self._end_of, commit)
        return self._named[commit]

    def _end_of(self, name: str) -> Sst:
        """A file of which only the sections at the end can be read."""
        cache = process_memory().cache
        try:
            copy = Sst(self._path(name), cache)
            copy.section("edit")
            return copy
        except FileNotFoundError:
            pass
        except CorruptionError:
            # It says nothing of the durable file, and would be taken for one never sealed.
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
        """The sections lie at the end, from the top index on, whose place the footer says."""
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
        """See obsolete_files.AttemptFiles."""
        remove_if_there(self._place, name)  # another attempt collects too
        table_cache(process_memory()).forget(self.directory, name)
        self._cache.drop(self._path(name))


class DurableOwner(AttemptOwner):
    """A task attempt whose commit sends its files before it says its pointer."""

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
        """The commit's own file is last: whatever is listed there and sealed can be opened."""
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
    """The same of a bucket that lies elsewhere: its files are copied here as they are read."""

    def __init__(self, bucket: DurableBucket, pointer: str) -> None:
        table_cache(process_memory()).bring_from(bucket)
        super().__init__(bucket, bucket.directory, pointer)
        self._bucket = bucket

    def release(self) -> None:
        self._bucket.flush_uses()
