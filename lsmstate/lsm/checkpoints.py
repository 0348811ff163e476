"""Named checkpoints of a standalone store: commits whose files stay until the name is deleted.

A checkpoint is a small file beside the runs, ``CHECKPOINT-<number>``: its name, the commit's
pointer and the names of the files it needs. The runs are the store's own, so that a checkpoint
costs what a commit costs, whatever the state's size, and keeps from deletion only what merges
have replaced since.

Order of steps: a checkpoint's commit is sealed before the checkpoint is written; its file gets its
name when it is whole and, unless the store forces nothing, on the disk; a deleted one's name is
gone, durably, before the first of its files goes. Whatever is interrupted leaves the checkpoint
whole, or absent with files that the next opening or commit collects. So a file under that name
that is not whole was damaged later, and nothing of it is deleted.
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
#: Longer files are not read: a name, a pointer and a million names of files are shorter.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One named commit. ``files`` are all it needs, ``path`` is the file that says so."""

    name: str
    pointer: str
    files: frozenset[str]
    path: str


class Keeper(Protocol):
    """What the checkpoints ask of the store's owner."""

    pointer: str | None
    """The store's last commit."""

    def new_name(self, kind: str) -> str:
        """A name never given before, for a file of kind "CHECKPOINT". StoreLockedError as
        ``check_owned``."""
        ...

    def check_owned(self) -> None:
        """StoreLockedError if another process has become the directory's owner."""
        ...


class Checkpoints:
    """Those of one store, from the oldest to the newest; kept by the store's owner. A thread may
    delete one while another, which needs the store's memory, commits and collects."""

    def __init__(self, directory: str, options: Options, owner: Keeper) -> None:
        """Reads them all. What a crash left of one that was being written is deleted.
        CorruptionError."""
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
        """InvalidArgumentError, with the nearest name, if there is no such checkpoint."""
        return _chosen(list(self), name, self._directory)

    @property
    def files(self) -> set[str]:
        """Names of all files that must stay for them, their own included."""
        known = list(self)
        names = {os.path.basename(each.path) for each in known}
        return names.union(*(each.files for each in known))

    def check_free(self, name: str) -> None:
        """InvalidArgumentError if the name cannot be a checkpoint's, or is one's already."""
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
            raise InvalidArgumentError(
                f"checkpoint name {name!r}: use 1 to 128 letters, digits and the characters _ . -"
            )
        if name in self._known:
            raise InvalidArgumentError(
                f"{self._directory} has a checkpoint {name!r} already; delete it first, or choose "
                "another name"
            )

    def create(self, name: str, pointer: str) -> Checkpoint:
        """Name the store's last commit. OSError, StoreLockedError: there is no such checkpoint
        then."""
        self.check_free(name)
        files = needed_files(table_cache(process_memory()), self._directory, pointer)
        path = os.path.join(self._directory, self._owner.new_name("CHECKPOINT"))
        checkpoint = Checkpoint(name, pointer, frozenset(file.name for file in files), path)
        # Kept from the first byte on: if its file can neither be finished nor removed, it counts.
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
        self._owner.check_owned()  # one who had it before knows nothing of this file

    def delete(self, name: str) -> None:
        """Forget a checkpoint and delete the files that only it needed. InvalidArgumentError if
        there is none of that name, or a reader has it open."""
        with self._lock:
            self._delete(self[name])

    def _delete(self, checkpoint: Checkpoint) -> None:
        tables = table_cache(process_memory())
        assert self._owner.pointer is not None
        self._owner.check_owned()
        live = {file.name for file in needed_files(tables, self._directory, self._owner.pointer)}
        # One that is not there was removed by a call whose next step failed.
        with suppress(FileNotFoundError), Descriptor(checkpoint.path, os.O_RDONLY) as file:
            _lock_out_readers(file, checkpoint)
            remove(checkpoint.path)
        if self._syncs:
            sync_directory(self._directory)
        del self._known[checkpoint.name]
        for unneeded in sorted(checkpoint.files - live - self.files):
            tables.delete(self._directory, unneeded)


class CheckpointPin:
    """A reader's hold on a checkpoint: until ``release``, or the end of the process and of its
    forked children, nobody can delete it. By ``flock``, which readers in one process share. One
    that nobody holds any more is given up."""

    def __init__(self, directory: str, name: str) -> None:
        """InvalidArgumentError if there is no such checkpoint."""
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
        """A second call does nothing."""
        self._file.close()


def _locked_for_reading(file: Descriptor) -> bool:
    """False if the checkpoint is being deleted, or is."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file.fileno()).st_nlink != 0


def _lock_out_readers(file: Descriptor, checkpoint: Checkpoint) -> None:
    """InvalidArgumentError if a reader has the checkpoint open; none can open it from now on."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidArgumentError(
            f"checkpoint {checkpoint.name!r} is open for reading; close its readers first"
        ) from None


def list_checkpoints(directory: str) -> list[Checkpoint]:
    """Those of a store's directory, oldest first, whether or not it is open. Changes nothing."""
    found = []
    for path in checkpoint_paths(directory):
        with suppress(FileNotFoundError):  # deleted since the directory was listed
            found.append(read_checkpoint(path))
    return found


def read_each_checkpoint(
    directory: str,
) -> Iterator[tuple[str, Checkpoint | CorruptionError | FormatVersionError]]:
    """Each one's path and what it says, oldest first: of one that is damaged the error. Changes
    nothing."""
    for path in checkpoint_paths(directory):
        try:
            yield path, read_checkpoint(path)
        except FileNotFoundError:
            continue  # deleted since the directory was listed
        except (CorruptionError, FormatVersionError) as error:
            yield path, error


def _readable(directory: str, name: str) -> Checkpoint:
    """One of that name, whatever others are damaged. CorruptionError, FormatVersionError: it is not
    among those that can be read, and may be one that cannot. InvalidArgumentError."""
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
    """The files of all checkpoints, oldest first."""
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
    """What one of these files says. CorruptionError, FormatVersionError."""
    file = ReadFile(path)
    try:
        data = file.read(0, min(file.size, _MOST_BYTES))
    finally:
        file.close()
    text = unseal_text(data, path, _REMEDY)
    if text is None:
        end = len(data.rstrip(b"\0"))
        raise CorruptionError(
            f"of {len(data)} bytes those from here on are lost; {_REMEDY}", path, end
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
            if parse_numbered(name) is None:  # they are deleted one day
                raise ValueError(f"file name {name!r}")
        return Checkpoint(str(found["name"]), pointer, files, path)
    except (CorruptionError, KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"it does not make sense ({error!r}); {_REMEDY}", path, 0) from error
