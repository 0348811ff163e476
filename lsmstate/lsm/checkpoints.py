"""Named checkpoints of a standalone store: commits whose files stay until the checkpoint is
deleted.

A checkpoint is a small file beside the runs, ``CHECKPOINT-<number>``. It holds its name, the
commit's pointer and the names of the files it needs. The runs are the store's own. A checkpoint
therefore costs as much as a commit, whatever the state's size, and keeps only files that
compactions have replaced since.

Order of steps:

- The commit is sealed before the checkpoint is written.
- The checkpoint's file gets its name when it is complete and, unless the store never syncs, on
  disk.
- The name of a deleted checkpoint is durably gone before the first of its files is deleted.

An interrupt at any step leaves the checkpoint complete, or absent with files that the next opening
or commit deletes. An incomplete file under a checkpoint's name was thus damaged later, and nothing
of it is deleted.
"""

import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from lsmstate.cython_ext.base.file import (
    AppendFile,
    Descriptor,
    ReadFile,
    remove,
    rename,
    sync_directory,
)
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.lsm.checksummed_text import seal_text, unseal_text
from lsmstate.lsm.file_names import is_unfinished, parse_numbered, unfinished
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.lsm.recovery import needed_files
from lsmstate.lsm.table_cache import table_cache
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store_base.checks import nearest

CHECKPOINT_VERSION = 1

_REMEDY = "the checkpoint is lost: delete this file, or restore it from a copy"
#: Longer files are not read: a name, a pointer and a million file names are shorter.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One named checkpoint.

    Attributes:
        name: Its name.
        pointer: The pointer of its commit.
        files: Names of all files it needs.
        path: The file that describes it.
    """

    name: str
    pointer: str
    files: frozenset[str]
    path: str


class Keeper(Protocol):
    """What the checkpoints need of the store's owner."""

    @property
    def pointer(self) -> str | None:
        """The store's last commit."""
        ...

    def new_name(self, kind: str) -> str:
        """Return a new unique name for a file of kind "CHECKPOINT". StoreLockedError as
        ``check_owned``."""
        ...

    def check_owned(self) -> None:
        """Raise StoreLockedError if another process has become the directory's owner."""
        ...


class Checkpoints:
    """The named checkpoints of one store, oldest first.

    The store's owner keeps them. A thread may delete one while another thread, which needs the
    store's memory, commits and deletes obsolete files.
    """

    def __init__(self, directory: str, options: Options, owner: Keeper) -> None:
        """Read all checkpoints, and delete an unfinished one that a crash left. CorruptionError."""
        self._directory = directory
        self._syncs = options.syncs_commits
        self._owner = owner
        self._lock = threading.RLock()
        self._known: dict[str, Checkpoint] = {}
        for path in checkpoint_paths(directory):
            checkpoint = read_checkpoint(path)
            self._known[checkpoint.name] = checkpoint
        for name in filter(is_unfinished, os.listdir(directory)):
            remove(os.path.join(directory, name))

    def __iter__(self) -> Iterator[Checkpoint]:
        with self._lock:
            return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, name: str) -> Checkpoint:
        """Return a checkpoint by name; the InvalidArgumentError for an unknown name suggests the
        nearest one."""
        return _chosen(list(self), name, self._directory)

    @property
    def files(self) -> set[str]:
        """Return the names of all files that must stay, those of the checkpoints themselves
        included."""
        known = list(self)
        names = {os.path.basename(each.path) for each in known}
        return names.union(*(each.files for each in known))

    def check_free(self, name: str) -> None:
        """Raise InvalidArgumentError if a checkpoint cannot have this name, or one
        has it already."""
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
            raise InvalidArgumentError(
                f"checkpoint name {name!r}: use 1 to 128 letters, digits and the characters _ . -"
            )
        if name in self._known:
            raise InvalidArgumentError(
                f"{self._directory} has a checkpoint {name!r} already; delete it first, or choose "
                "another name"
            )

    def create(self, name: str, pointer: str) -> Checkpoint:
        """Make a checkpoint of the store's last commit. After an OSError or StoreLockedError there
        is none."""
        self.check_free(name)
        files = needed_files(table_cache(process_memory()), self._directory, pointer)
        path = os.path.join(self._directory, self._owner.new_name("CHECKPOINT"))
        checkpoint = Checkpoint(name, pointer, frozenset(file.name for file in files), path)
        # Registered from the first byte on: it counts if its file can be neither finished nor
        # removed.
        self._known[name] = checkpoint
        try:
            self._write(checkpoint)
        except BaseException:
            remove(path)
            del self._known[name]
            remove(unfinished(path))
            raise
        return checkpoint

    def _write(self, checkpoint: Checkpoint) -> None:
        file = AppendFile(unfinished(checkpoint.path))
        file.append(seal_text(_packed(checkpoint)))
        if self._syncs:
            file.sync()
        file.close()
        rename(unfinished(checkpoint.path), checkpoint.path)
        if self._syncs:
            sync_directory(self._directory)
        self._owner.check_owned()  # an earlier owner does not know this file

    def delete(self, name: str) -> None:
        """Delete a checkpoint, and the files that only it needs.

        Raises:
            InvalidArgumentError: There is none of that name, or a reader has it open.
        """
        with self._lock:
            self._delete(self[name])

    def _delete(self, checkpoint: Checkpoint) -> None:
        tables = table_cache(process_memory())
        assert self._owner.pointer is not None
        self._owner.check_owned()
        live = {file.name for file in needed_files(tables, self._directory, self._owner.pointer)}
        # An absent file was removed by a call whose next step failed.
        with suppress(FileNotFoundError), Descriptor(checkpoint.path, os.O_RDONLY) as file:
            _lock_out_readers(file, checkpoint)
            remove(checkpoint.path)
        if self._syncs:
            sync_directory(self._directory)
        del self._known[checkpoint.name]
        for unneeded in sorted(checkpoint.files - live - self.files):
            tables.delete(self._directory, unneeded)


class CheckpointPin:
    """A reader's hold on a checkpoint: until ``release``, nobody can delete the checkpoint.

    The hold is a ``flock``, which readers in one process share. It also ends with the process and
    its forked children. A pin that nobody holds is released.
    """

    def __init__(self, directory: str, name: str) -> None:
        """Pin a checkpoint; raise InvalidArgumentError if there is none of that name."""
        found = _readable(directory, name)
        self._file = Descriptor(found.path, os.O_RDONLY)
        try:
            if not _locked_for_reading(self._file):
                raise InvalidArgumentError(f"checkpoint {name!r} of {directory} is being deleted")
        except BaseException:
            self._file.close()
            raise
        self.checkpoint = found

    def release(self) -> None:
        """Release the pin. A second call does nothing."""
        self._file.close()


def _locked_for_reading(file: Descriptor) -> bool:
    """Lock the file for reading; return False if the checkpoint is deleted or being deleted."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file.fileno()).st_nlink != 0


def _lock_out_readers(file: Descriptor, checkpoint: Checkpoint) -> None:
    """Lock readers out from now on; raise InvalidArgumentError if one has the checkpoint open."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidArgumentError(
            f"checkpoint {checkpoint.name!r} is open for reading; close its readers first"
        ) from None


def list_checkpoints(directory: str) -> list[Checkpoint]:
    """List the checkpoints of a store's directory, oldest first, whether or not it is open. Nothing
    is changed."""
    found = []
    for path in checkpoint_paths(directory):
        with suppress(FileNotFoundError):  # deleted after the directory was listed
            found.append(read_checkpoint(path))
    return found


def read_each_checkpoint(
    directory: str,
) -> Iterator[tuple[str, Checkpoint | CorruptionError | FormatVersionError]]:
    """Yield each checkpoint's path and content, oldest first; for a damaged one the error. Nothing
    is changed."""
    for path in checkpoint_paths(directory):
        try:
            yield path, read_checkpoint(path)
        except FileNotFoundError:
            continue  # deleted after the directory was listed
        except (CorruptionError, FormatVersionError) as error:
            yield path, error


def _readable(directory: str, name: str) -> Checkpoint:
    """Return a checkpoint by name even if others are damaged.

    CorruptionError or FormatVersionError: no readable one has this name, and an unreadable one may.
    InvalidArgumentError: there is none.
    """
    known: list[Checkpoint] = []
    lost: CorruptionError | FormatVersionError | None = None
    for _, said in read_each_checkpoint(directory):
        if isinstance(said, Checkpoint):
            known.append(said)
        else:
            lost = said
    if lost is not None and name not in [each.name for each in known]:
        raise lost
    return _chosen(known, name, directory)


def _chosen(known: list[Checkpoint], name: str, directory: str) -> Checkpoint:
    for checkpoint in known:
        if checkpoint.name == name:
            return checkpoint
    raise InvalidArgumentError(
        f"{directory} has no checkpoint {name!r}{nearest(name, [each.name for each in known])}"
    )


def checkpoint_paths(directory: str) -> list[str]:
    """List the files of all checkpoints, oldest first."""
    numbers = {}
    for name in os.listdir(directory):
        parsed = parse_numbered(name)
        if parsed is not None and parsed[0] == "CHECKPOINT":
            numbers[parsed[1]] = os.path.join(directory, name)
    return [numbers[number] for number in sorted(numbers)]


def _packed(checkpoint: Checkpoint) -> bytes:
    return json.dumps(
        {
            "format": CHECKPOINT_VERSION,
            "name": checkpoint.name,
            "pointer": checkpoint.pointer,
            "files": sorted(checkpoint.files),
        }
    ).encode()


def read_checkpoint(path: str) -> Checkpoint:
    """Read one of these files. CorruptionError, FormatVersionError."""
    file = ReadFile(path)
    try:
        data = file.read(0, min(file.size, _MOST_BYTES))
    finally:
        file.close()
    text = unseal_text(data, path, _REMEDY)
    if text is None:
        end = len(data.rstrip(b"\0"))
        raise CorruptionError(
            f"the file has {len(data)} bytes, and those from here on are lost; {_REMEDY}", path, end
        )
    try:
        found = json.loads(text)
        if found["format"] != CHECKPOINT_VERSION:
            raise FormatVersionError(
                f"{path}: checkpoint format {found['format']}, this release reads "
                f"{CHECKPOINT_VERSION}; open it with the release that wrote it or a later one"
            )
        pointer = str(parse_pointer(found["pointer"]))
        files = frozenset(map(str, found["files"]))
        for name in files:
            if parse_numbered(name) is None:  # these files are deleted later, so names are checked
                raise ValueError(f"file name {name!r}")
        return Checkpoint(str(found["name"]), pointer, files, path)
    except (CorruptionError, KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"the content is invalid ({error!r}); {_REMEDY}", path, 0) from error
