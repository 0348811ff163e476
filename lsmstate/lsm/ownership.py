"""Owners of a store: a task attempt, a process with a write-ahead log, and readers."""

import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from lsmstate.cython_ext.base.file import AppendFile, remove, sync_directory, sync_file
from lsmstate.errors import CorruptionError, InvalidArgumentError, StoreLockedError
from lsmstate.lsm.checkpoints import CheckpointPin, Checkpoints
from lsmstate.lsm.directory_lock import DirectoryLock
from lsmstate.lsm.file_deletion import Removal
from lsmstate.lsm.file_names import AttemptFile, check_attempt_id, numbered, parse_numbered
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.lsm.manifest_files import Manifest, check_logged, newest_manifest
from lsmstate.lsm.obsolete_files import AttemptFiles, LocalFiles, collect_now_and_then
from lsmstate.lsm.recovery import read_commit
from lsmstate.lsm.table_cache import table_cache
from lsmstate.lsm.wal import Changelog, Write, changelog_files, replay, warn_of_torn_end
from lsmstate.options import Options
from lsmstate.process.background_worker import worker
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema
from lsmstate.store_base.guard import do_all

_log = logging.getLogger(__name__)

#: The first commit of a new store: run 1 and MANIFEST 2.
FIRST_MANIFEST = 2

_REMEDY = "restore the store from a checkpoint, or save its readable part with lsmstate repair"

_UNREAD = sys.maxsize


class Owner(Protocol):
    """What differs between the owners. The store calls; the owner manages the directory's files."""

    def take(self) -> None:
        """Take the directory and read its files, before anything else.

        ``release`` follows even if this failed or was interrupted. Whoever has to release an owner
        therefore has it before there is anything to release.
        """
        ...

    @property
    def single_commit(self) -> bool:
        """Whether the first commit ends all writing, and a flush does not commit."""
        ...

    @property
    def keeps_tables(self) -> bool:
        """Whether open tables stay open after the store is closed, for the next one in this
        process."""
        ...

    @property
    def checkpoints(self) -> Checkpoints:
        """Return the named checkpoints; raise InvalidArgumentError if the store cannot have any."""
        ...

    def new_name(self, kind: str) -> str:
        """Return a new unique name for a file of kind "run", "commit" or "CHECKPOINT". Any thread
        may call."""
        ...

    def forget(self, name: str) -> None:
        """Note that the file of that name was deleted, or never made. Any thread may call."""
        ...

    def log(self, writes: Sequence[Write]) -> None:
        """Make writes durable, atomically, before they are applied, as far as this owner promises
        it."""
        ...

    def committed(self, pointer: str, live: set[str], replay_from: int) -> None:
        """Make a commit, whose file is sealed, the newest one.

        ``live`` names all files it needs. ``replay_from`` is the first sequence number that is not
        completely in them.
        """
        ...

    def collect(self, live: set[str], opened_at: str | None, retained_batches: int) -> None:
        """Delete what no restart can need, after a commit; attempts do this now and then.

        ``live`` are the files of the commit, ``opened_at`` is the commit at which the store was
        opened. Cost: if it is done, one listing, and one small read per kept commit.
        """
        ...

    def release(self) -> None:
        """Release locks and open files."""
        ...


class AttemptOwner:
    """A task attempt: unique names, no lock, no log. Whoever has the pointer finds the commit."""

    single_commit = True
    keeps_tables = True

    @property
    def checkpoints(self) -> Checkpoints:
        raise InvalidArgumentError(
            "only a standalone store (open_store) has named checkpoints; open an attempt's commit "
            "by its pointer"
        )

    def __init__(self, files: AttemptFiles, batch_id: int, attempt_id: str) -> None:
        self._attempt_files = files
        self._batch_id = batch_id
        # Even a restarted attempt with the same id writes files of its own.
        self._attempt_id = f"{check_attempt_id(attempt_id)}-{os.urandom(6).hex()}"
        self._given = itertools.count(1)

    def new_name(self, kind: str) -> str:
        return AttemptFile(kind, self._batch_id, self._attempt_id, next(self._given)).name

    def forget(self, name: str) -> None:
        """Do nothing: names are not recorded."""

    def log(self, writes: Sequence[Write]) -> None:
        """Do nothing: another attempt repeats uncommitted work."""

    def committed(self, pointer: str, live: set[str], replay_from: int) -> None:
        """Do nothing: the pointer suffices."""

    def collect(self, live: set[str], opened_at: str | None, retained_batches: int) -> None:
        parent = None if opened_at is None else parse_pointer(opened_at).name
        collect_now_and_then(self._attempt_files, live, parent, self._batch_id, retained_batches)

    def take(self) -> None:
        """Do nothing: nothing is taken."""

    def release(self) -> None:
        """Do nothing: nothing is held."""


class CommitReader(AttemptOwner):
    """Reads one commit of a bucket and writes nothing. The files stay only as long as retention
    keeps the commit."""

    keeps_tables = False

    def __init__(self, files: AttemptFiles, directory: str, pointer: str) -> None:
        super().__init__(files, 0, "reader")
        self.directory = directory
        self._streams = read_commit(table_cache(process_memory()), directory, pointer).streams

    def known_streams(self) -> list[StreamSchema]:
        """Return the streams that the commit was written with."""
        return list(self._streams.values())


class RemoteBucket(AttemptFiles, Protocol):
    """A bucket of a remote place, with copies of its files in a local directory."""

    @property
    def directory(self) -> str:
        """Return the directory of the copies."""
        ...

    def attempt_owner(self, batch_id: int, attempt_id: str) -> AttemptOwner:
        """Return the owner for a task attempt, which sends its files before it
        returns its pointer."""
        ...

    def commit_reader(self, pointer: str) -> CommitReader:
        """Return the owner for reading one commit."""
        ...


class CheckpointReader(AttemptOwner):
    """Reads a named checkpoint, which cannot be deleted until ``release``, and writes nothing."""

    keeps_tables = False

    def __init__(self, directory: str, name: str) -> None:
        super().__init__(LocalFiles(directory), 0, "reader")
        self._directory, self._name = directory, name
        self._pin: CheckpointPin | None = None

    def take(self) -> None:
        self._pin = CheckpointPin(self._directory, self._name)
        self.pointer = self._pin.checkpoint.pointer
        tables = table_cache(process_memory())
        self.streams = read_commit(tables, self._directory, self.pointer).streams

    def known_streams(self) -> list[StreamSchema]:
        """Return the streams that the checkpoint was written with."""
        return list(self.streams.values())

    def release(self) -> None:
        if self._pin is not None:
            self._pin.release()


class ProcessOwner:
    """One process: a lock, a write-ahead log, and numbered MANIFEST files of which the newest is
    valid.

    Invariant: every acknowledged write is in the runs of the newest MANIFEST or in a log that is
    kept. A new MANIFEST is written and synced before anything that it makes obsolete is deleted.
    What a MANIFEST says of the logs is true, and synced if commits are, before it is written.
    """

    single_commit = False
    keeps_tables = False

    def __init__(self, directory: str, options: Options) -> None:
        self._directory = directory
        self._options = options
        self._log: Changelog | None = None
        #: Closed write-ahead logs, and the last sequence number in each.
        self._old_logs: list[tuple[str, int]] = []
        #: Sequence number of the last write that this process logged; 0: none.
        self._last_logged = 0
        #: Sequence number of the last write that was replayed; 0: none.
        self._last_replayed = 0
        #: The same, once the store is open and until a MANIFEST says so; 0: none.
        self._unsealed = 0
        #: By path of a log: how many bytes at its end are torn.
        self._torn: dict[str, int] = {}
        #: The last log that was replayed, and the end of its last complete record.
        self._logs_end = (directory, 0)
        #: Files that some thread may be writing: no manifest names them yet.
        self._begun: set[str] = set()
        #: Files that the last commit made obsolete.
        self._removal = Removal((), remove)
        self._held: DirectoryLock | None = None
        self._manifest: Manifest | None = None
        #: Its name, if this process wrote it.
        self._manifest_name = ""

    @property
    def pointer(self) -> str | None:
        """The pointer of the last commit; None before the first one."""
        return None if self._manifest is None else self._manifest.pointer

    @property
    def _said_logged(self) -> int:
        """The last write that the logs must hold, as the MANIFEST says."""
        return 0 if self._manifest is None else self._manifest.logged

    def take(self) -> None:
        directory, options = self._directory, self._options
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
            if options.syncs_commits:
                sync_directory(os.path.dirname(os.path.abspath(directory)))
        self._held = DirectoryLock(directory)
        numbers = [
            (found[1], name)
            for name in os.listdir(directory)
            if (found := parse_numbered(name)) is not None
        ]
        last_number, newest = max(numbers, default=(0, ""))
        self._checkpoints = Checkpoints(directory, options, self)
        self._manifest = self._newest_manifest(last_number, newest)
        self._numbers = itertools.count(1 + (last_number if self._manifest else 0))

    @property
    def _lock(self) -> DirectoryLock:
        assert self._held is not None, "the directory was not taken"
        return self._held

    @property
    def checkpoints(self) -> Checkpoints:
        return self._checkpoints

    def _next(self, kind: str) -> str:
        return numbered(kind, next(self._numbers))

    def new_name(self, kind: str) -> str:
        self.check_owned()  # another owner may use the same names
        if kind in ("CHECKPOINT", "changelog"):
            return self._next(kind)
        name = self._next("run")
        self._begun.add(name)
        return name

    def forget(self, name: str) -> None:
        self._begun.discard(name)

    def check_owned(self) -> None:
        """Raise StoreLockedError if another process has become the owner."""
        self._lock.check_held()

    def _newest_manifest(self, last_number: int, newest: str) -> Manifest | None:
        """Return the newest complete MANIFEST; None for a new store. Torn ones are deleted: the
        previous one is still valid."""
        manifest, torn = newest_manifest(self._directory)
        if manifest is None:
            self._begin_anew(last_number, newest, torn)
        for path in torn:
            remove(path)
        return manifest

    def _begin_anew(self, last_number: int, newest: str, torn: Sequence[str]) -> None:
        """Delete what an interrupted first commit left. It is made when a store is first opened,
        before any log. CorruptionError if there was more."""
        if last_number > FIRST_MANIFEST:
            # The newest MANIFEST, which is torn, or else the newest file.
            path = torn[0] if torn else os.path.join(self._directory, newest)
            size = os.path.getsize(path) if torn else 0
            raise CorruptionError(f"no complete MANIFEST is left; {_REMEDY}", path, size)
        self._collect(set())
        self._removal.finish()  # their numbers are used again

    def replay(self) -> Iterator[Write]:
        """Yield all logged writes that may not be in the runs, oldest first. CorruptionError."""
        names = changelog_files(self._directory)
        # A flush during the replay must not delete logs that are still to be read.
        self._old_logs = [(name, _UNREAD) for name in names]
        for name in names:
            last = 0
            path = os.path.join(self._directory, name)
            for write in replay(path, self._torn.__setitem__):
                last = write.sequence
                self._last_replayed = max(self._last_replayed, last)
                yield write
            self._logs_end = (path, os.path.getsize(path) - self._torn.get(path, 0))
            self._old_logs = [
                (name, last) if other == name else (other, until) for other, until in self._old_logs
            ]

    def check_replayed(self) -> None:
        """Raise CorruptionError, after ``replay``, if the logs lack a write that they must hold."""
        check_logged(self._said_logged, self._last_replayed, *self._logs_end)
        for path, size in self._torn.items():
            warn_of_torn_end(path, size)
        self._unsealed = self._last_replayed

    @property
    def has_many_logs(self) -> bool:
        """Whether more logs were replayed than a probe may have to visit runs."""
        return len(self._old_logs) > self._options.max_runs

    def log(self, writes: Sequence[Write]) -> None:
        self._lock.check_held()
        if self._log is None:
            path = os.path.join(self._directory, self._next("changelog"))
            self._log = Changelog(path, self._options.syncs_writes)
            if self._options.syncs_writes:
                sync_directory(self._directory)
        self._log.append(writes)
        self._lock.check_untaken()
        self._last_logged = writes[-1].sequence

    def _rotate(self) -> None:
        if self._log is not None:
            self._log.close()
            self._old_logs.append((os.path.basename(self._log.path), self._last_logged))
            self._log = None

    def committed(self, pointer: str, live: set[str], replay_from: int) -> None:
        self._rotate()
        kept = [(log, last) for log, last in self._old_logs if last >= replay_from]
        if self._options.syncs_commits:
            for log, _ in kept:  # half of a write may be in the runs: its rest must not be lost
                sync_file(os.path.join(self._directory, log))
        # Replayed writes do not count: their log may be in memory only, like the MANIFEST.
        self._unsealed = 0
        logged = max(self._last_logged, self._said_logged)
        self._write_manifest(Manifest(pointer, logged if logged >= replay_from else 0))
        self._old_logs = kept
        self._begun -= live
        self._collect(live | {self._manifest_name} | {log for log, _ in kept})

    def collect(self, live: set[str], opened_at: str | None, retained_batches: int) -> None:
        """Delete what commits made obsolete, in the background; the caller may copy
        the directory."""
        self._removal.finish()

    def _write_manifest(self, manifest: Manifest, *, is_forced: bool = True) -> None:
        """Write the next MANIFEST; sync it if commits are and it ``is_forced``. One that is not
        synced may be torn by a power failure, so the previous one must stay."""
        self.check_owned()
        name = self._next("MANIFEST")
        file = AppendFile(os.path.join(self._directory, name))
        file.append(manifest.packed())
        if self._options.syncs_commits and is_forced:
            file.sync()
            sync_directory(self._directory)
        file.close()
        # If another owner came before it could read this file, the commit is not acknowledged and
        # nothing is deleted for it. An owner that comes later will read it.
        self._lock.check_untaken()
        self._manifest, self._manifest_name = manifest, name

    def renew_manifest(self) -> None:
        """Write the MANIFEST that was found again, unless a commit has replaced it. It may have
        been read from memory only: its writer did not sync it, or was killed before, or the sync
        failed. After a failed sync, another one proves nothing."""
        if self._manifest is None or self._manifest_name or not self._options.syncs_commits:
            return
        self._write_manifest(self._manifest)
        for name in self._older_manifests():
            remove(os.path.join(self._directory, name))

    def _older_manifests(self) -> list[str]:
        """List the MANIFEST files beside the one that this process wrote, oldest first."""
        found = [(parse_numbered(name), name) for name in os.listdir(self._directory)]
        return [
            name
            for parsed, name in sorted((parsed, name) for parsed, name in found if parsed)
            if parsed[0] == "MANIFEST" and name != self._manifest_name
        ]

    def seal_logs(self, last: int) -> None:
        """Write a MANIFEST which says that the logs hold all writes up to this one.

        The logs are synced already if commits are. The MANIFEST is not synced. The oldest one, of a
        commit, therefore stays; it names the same commit.
        """
        assert self._manifest is not None, "nothing was committed yet"
        self._write_manifest(Manifest(self._manifest.pointer, last), is_forced=False)
        for name in self._older_manifests()[1:]:  # of earlier closes, if no commit was between
            remove(os.path.join(self._directory, name))

    def _close_log(self, log: Changelog) -> None:
        """Seal and close a log, so that a missing end is noticed."""

        def sync() -> None:
            if self._options.syncs_commits and not self._options.syncs_writes:
                log.sync()
                sync_directory(self._directory)

        if log.last:
            self._seal(log.path, log.last, sync)
        log.close()

    def _seal(self, path: str, last: int, sync: Callable[[], None] = lambda: None) -> None:
        """Seal the logs, of which this is the newest. If that cannot be written, nothing is lost,
        and they are read as after a crash."""
        try:
            self.check_owned()
            sync()
            self.seal_logs(last)
        except (OSError, StoreLockedError) as error:
            # As text: a handler may keep the error, whose frames hold the store's buffers.
            _log.warning("%s: a missing end would not be noticed: %s", path, str(error))

    def _collect(self, needed: set[str]) -> None:
        """Delete the numbered files that neither the newest MANIFEST nor a checkpoint needs, and
        that nobody has begun. That is checked file by file, since a thread may begin one meanwhile.
        """
        self._removal.finish()  # usually done already; at most one commit's files wait
        needed = needed | self._checkpoints.files
        unneeded = [
            name
            for name in os.listdir(self._directory)
            if parse_numbered(name) is not None and not (name in needed or name in self._begun)
        ]
        delete = partial(table_cache(process_memory()).delete, self._directory)
        self._removal = Removal(unneeded, delete)
        if self._options.background:
            worker().submit(self._removal)
        else:
            self._removal.finish()

    def release(self) -> None:
        do_all(self._release_log, self._removal.finish, self._release_lock)

    def _release_log(self) -> None:
        log, self._log = self._log, None  # if interrupted, it is read as after a crash
        if log is not None:
            self._close_log(log)
        elif self._unsealed > self._said_logged:
            self._seal(self._logs_end[0], self._unsealed)

    def _release_lock(self) -> None:
        if self._held is not None:
            self._held.release()
