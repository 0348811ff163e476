"""Repair: copies everything that can still be read of a damaged state into a new directory.

The damaged directory is only read. Complete files are copied. The readable rows of damaged files
are written into new ones. The complete records of a write-ahead log are kept. The report says what
is lost.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lsmstate.cython_ext.base.file import AppendFile, ReadFile, sync_directory
from lsmstate.cython_ext.sstable.salvage import ListedEntries
from lsmstate.cython_ext.sstable.sst_check import verify
from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.local_directory import check_is_there
from lsmstate.lsm.checkpoints import checkpoint_paths, read_checkpoint
from lsmstate.lsm.directory_lock import check_unowned
from lsmstate.lsm.file_names import parse_attempt_file
from lsmstate.lsm.manifest import Pointer, pack_edit
from lsmstate.lsm.obsolete_files import LocalFiles
from lsmstate.lsm.ownership import AttemptOwner, Owner, ProcessOwner
from lsmstate.lsm.table_writer import TableWriter, zone_columns
from lsmstate.lsm.version import FileMeta, Version
from lsmstate.lsm.wal import changelog_files
from lsmstate.lsm.wal_records import MAGIC, framed
from lsmstate.options import MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.schema.codecs import codecs_of
from lsmstate.store_base.checks import unpack_schemas
from lsmstate.tools.salvage_commit import DamagedState, find_damaged_state
from lsmstate.tools.salvage_table import KeyRange, SalvagedTable
from lsmstate.tools.salvage_wal import (
    Record,
    Replay,
    SalvagedChangelog,
    plan_replay,
    salvage_changelog,
)

_LOST_COMMIT = (
    "its manifest cannot be read, so an older commit is taken; later writes are lost unless a "
    "write-ahead log holds them; restore a checkpoint or an export if one is newer"
)


@dataclass(frozen=True, slots=True)
class Loss:
    """What could not be read of one file.

    Attributes:
        file: Name of the file.
        what: What is wrong.
        rows: Number of lost rows; None if it is unknown.
        ranges: Key ranges, as stored, with the stream's number in front.
        deletions: Whether deletions or retractions may be lost, so that deleted rows may be back.
    """

    file: str
    what: str
    rows: int | None
    deletions: bool = True
    ranges: tuple[KeyRange, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Result of a repair: ``pointer`` opens the repaired state; ``problems`` are not losses by
    themselves."""

    source: str
    target: str
    commit: str
    pointer: str
    rows: int
    logged_writes: int
    copied_files: int
    rebuilt_files: int
    losses: tuple[Loss, ...]
    problems: tuple[str, ...]

    @property
    def lost_rows(self) -> int | None:
        """Rows lost from tables and logs together; None if the number is unknown."""
        known = [loss.rows for loss in self.losses if loss.rows is not None]
        return sum(known) if len(known) == len(self.losses) else None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; keys are in hexadecimal."""
        found = asdict(self)
        for loss in found["losses"]:
            loss["ranges"] = [
                {end: key.hex() if key is not None else None for end, key in part.items()}
                for part in loss["ranges"]
            ]
        return {**found, "lost_rows": self.lost_rows}


def repair(source: str, target: str, pointer: str | None = None) -> RepairReport:
    """Copy the readable part of a damaged state into a new directory.

    Args:
        source: A standalone store's or a bucket's directory.
        target: A new or empty directory.
        pointer: A commit pointer of a bucket; default: the newest commit.

    Returns:
        What was saved, and what is lost.

    Raises:
        StoreLockedError: A process has the store open.
        CorruptionError: No commit can be read.

    Cost:
        Everything is read and written. Memory: the largest damaged file.
    """
    if os.path.isdir(target) and os.listdir(target):
        raise InvalidArgumentError(f"{target} is not empty; name a new directory to repair into")
    inside = os.path.realpath(source)
    if os.path.commonpath([inside, os.path.realpath(target)]) == inside:
        raise InvalidArgumentError(
            f"{target} lies inside {source}, which repair does not change; name a directory "
            "elsewhere"
        )
    check_is_there(source)
    check_unowned(source)
    state = find_damaged_state(source, pointer)
    os.makedirs(target, exist_ok=True)
    options = Options(sync="commit")
    owner: Owner = (
        ProcessOwner(target, options)
        if state.is_standalone
        else AttemptOwner(LocalFiles(target), _batch_of(state.commit), "repaired")
    )
    try:
        owner.take()
        return _Repair(state, target, options, owner).run()
    finally:
        owner.release()


class _Repair:
    """One repair in progress."""

    def __init__(self, state: DamagedState, target: str, options: Options, owner: Owner) -> None:
        self._state = state
        self._target = target
        self._owner = owner
        self._cache = process_memory().cache
        streams = unpack_schemas(json.loads(state.edit.schemas)).values()
        self._codecs = [codecs_of(stream).rows for stream in streams]
        zones = zone_columns(streams)
        self._files = TableWriter(target, options, process_memory().budget, owner, zones)
        self._losses = [Loss(name, _LOST_COMMIT, None) for name in state.lost]
        self._problems = [*state.problems, *_checkpoints_left(state.directory)]
        self._copied = self._rebuilt = 0

    def run(self) -> RepairReport:
        runs = []
        for run in self._state.edit.version.runs:
            files = tuple(made for file in run.files for made in self._take(file))
            runs.append(replace(run, files=files))
        kept = tuple(run for run in runs if run.files or len(run.deleted))
        version = replace(self._state.edit.version, runs=kept).without_deleted()
        replay = Replay((), self._state.edit.replay_from, ())
        if self._state.is_standalone:
            replay = self._salvage_logs()
        pointer = self._commit(version, replay.replay_from)
        if replay.records:
            self._write_log(replay.records)
        return RepairReport(
            self._state.directory,
            self._target,
            self._state.commit,
            pointer,
            sum(run.rows for run in version.runs),
            len(replay.records),
            self._copied,
            self._rebuilt,
            tuple(self._losses),
            tuple(self._problems),
        )

    # Tables -------------------------------------------------------------------------------

    def _take(self, file: FileMeta) -> Sequence[FileMeta]:
        """Copy the file's readable rows into the new directory."""
        path = os.path.join(self._state.directory, file.name)
        table = None
        try:
            table = Sst(path, self._cache)
            counts = verify(table, self._codecs)
            if (table.uid, counts["keys"], counts["rows"]) == (file.uid, file.keys, file.rows):
                return [self._copy(file, table)]
            why = "is not the file that the manifest names"
        except (CorruptionError, OSError) as error:
            why = str(error)
        try:
            return self._rebuild(file, path, table)
        except (CorruptionError, OSError) as error:
            whole = (KeyRange(file.min_key, file.max_key),)
            why = "is missing" if isinstance(error, FileNotFoundError) else f"{why}; {error}"
            self._losses.append(Loss(file.name, why, file.rows, ranges=whole))
            return []

    def _copy(self, file: FileMeta, table: Sst) -> FileMeta:
        name = self._owner.new_name("run")
        reading, writing = ReadFile(table.path), AppendFile(os.path.join(self._target, name))
        try:
            for offset in range(0, reading.size, MIB):
                writing.append(reading.read(offset, min(MIB, reading.size - offset)))
            writing.sync()
        finally:
            reading.close()
            writing.close()
        self._copied += 1
        return file._replace(name=name, size=table.size, checksum=table.checksum)

    def _rebuild(self, file: FileMeta, path: str, table: Sst | None) -> Sequence[FileMeta]:
        salvaged = SalvagedTable(path)
        if table is not None and table.uid != file.uid:
            raise CorruptionError("another file lies under this name", path, 0)
        base = (
            table.base_sequence if table is not None else salvaged.base_sequence(file.min_sequence)
        )
        made: list[FileMeta] = []
        entries = ListedEntries(salvaged.entries(base))
        for _ in self._files.write_slices(entries, base, made, [], bottom=False):
            pass
        self._rebuilt += 1
        lost_rows = file.rows - salvaged.saved_rows
        lost_keys = file.keys - sum(new.keys for new in made)
        ranges = tuple(salvaged.lost_ranges)
        if lost_rows or lost_keys:
            what = "blocks are damaged"
            undeleted = (salvaged.has_lost_keys and lost_keys > 0) or self._hold_retractions(ranges)
            self._losses.append(Loss(file.name, what, lost_rows, undeleted, ranges))
        return made

    def _hold_retractions(self, ranges: Sequence[KeyRange]) -> bool:
        """Test whether keys reach into the hidden streams, which follow the named ones."""
        named = len(json.loads(self._state.edit.schemas)).to_bytes(2, "big")
        return any(part.high is None or part.high >= named for part in ranges)

    def _commit(self, version: Version, replay_from: tuple[int, int]) -> str:
        edit = replace(
            self._state.edit, version=version, base=None, replay_from=replay_from, merge=None
        )
        table = self._files.begin_table("commit", version.next_sequence)
        sealed = self._files.seal(table, pack_edit(edit, {}, len(json.loads(edit.schemas))))
        pointer = str(Pointer(table.name, sealed.size, sealed.checksum))
        live = {file.name for file in version.files} | {table.name}
        self._owner.committed(pointer, live, replay_from[0])
        return pointer

    def _salvage_logs(self) -> Replay:
        """Return the logged writes that are not in the runs."""
        found: list[Record] = []
        logs: list[tuple[str, SalvagedChangelog]] = []
        wanted = self._state.logged
        for name in reversed(changelog_files(self._state.directory)):
            log = salvage_changelog(os.path.join(self._state.directory, name), wanted)
            logs.append((name, log))
            if log.records:  # the logs before this one went up to here
                wanted = log.records[0].sequence - 1
        for name, log in reversed(logs):
            found += log.records
            if log.torn_bytes:
                self._problems.append(
                    f"{name} ends within a record, after {log.torn_bytes} bytes of it: a write "
                    "that nobody was told of, if the store was killed while it wrote"
                )
            for offset, size in log.gaps:
                what = f"{size} bytes at offset {offset} are damaged"
                self._losses.append(Loss(name, what, None))
        replay_from = self._state.edit.replay_from
        replay = plan_replay(found, replay_from)
        missing = list(replay.missing)
        last = max([replay_from[0] - 1, *(record.sequence for record in found)])
        if last < self._state.logged:
            missing.append((last + 1, self._state.logged))
        for first, last in missing:
            what = f"writes {first} to {last} are in no write-ahead log"
            self._losses.append(Loss("changelog", what, None))
        return replay

    def _write_log(self, records: Sequence[tuple[int, Record]]) -> None:
        assert isinstance(self._owner, ProcessOwner)
        path = os.path.join(self._target, self._owner.new_name("changelog"))
        log = AppendFile(path)
        try:
            log.append(MAGIC)
            for sequence, record in records:
                log.append(*framed(record.payload(sequence), log.size, 0))
            log.sync()
        finally:
            log.close()
        sync_directory(self._target)
        self._owner.seal_logs(records[-1][0])


def _checkpoints_left(directory: str) -> Iterator[str]:
    """Yield a problem for each checkpoint: the repaired store has none."""
    for path in checkpoint_paths(directory):
        try:
            name = read_checkpoint(path).name
            yield (
                f"checkpoint {name!r} is not copied; lsmstate restore can restore it if its own "
                "files are complete"
            )
        except (CorruptionError, FormatVersionError) as error:
            yield f"a checkpoint is not copied, and its name cannot be read: {error}"


def _batch_of(commit: str) -> int:
    file = parse_attempt_file(commit)
    assert file is not None
    return file.batch_id
