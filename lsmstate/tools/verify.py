"""Verification of a state on disk: reads every block, row and logged write.

For a standalone store, the files that its checkpoints keep are included.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lsmstate.cython_ext.sstable import sst_check
from lsmstate.lsm.checkpoints import Checkpoint, read_each_checkpoint
from lsmstate.lsm.decoded_checks import check_rows
from lsmstate.lsm.manifest import Pointer, parse_pointer
from lsmstate.lsm.manifest_files import missing_end
from lsmstate.lsm.recovery import Recovered, read_commit
from lsmstate.lsm.table_cache import table_cache
from lsmstate.lsm.wal import changelog_files, replay
from lsmstate.process.memory_budget import process_memory
from lsmstate.schema.codecs import codecs_of
from lsmstate.store import StreamSchema
from lsmstate.tools.concurrent_reader import GoneError, StateWatch
from lsmstate.tools.inspection import READ_ERRORS, REMEDY, State, damage_of, missing_path


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one file: counts if it is undamaged, else ``damage``; neither for an
    unfinished file, which is ignored."""

    file: str
    counts: Mapping[str, int] | None = None
    damage: str | None = None


def verify(state: State) -> Iterator[Finding]:
    """Yield one finding for each file of a state, and for newer commits.

    For a standalone store's newest state, checkpoints, the files that only they need, and
    write-ahead logs are included. Another process may commit meanwhile; the newest state is then
    verified. Cost: everything is read.
    """
    looked = _Verification(StateWatch(state))
    while True:
        try:
            yield from looked.findings()
            return
        except GoneError as gone:
            looked.watch.look_again(gone)


class _Verification:
    """A verification in progress; nothing is reported twice when a newer state is verified."""

    def __init__(self, watch: StateWatch) -> None:
        self.watch = watch
        self._tables = table_cache(process_memory())
        self._told: set[Pointer | str] = set()

    def findings(self) -> Iterator[Finding]:
        """Yield the findings. GoneError: a file is missing that may have been replaced."""
        state = self.watch.state
        for damage in state.damaged:
            yield from self._tell(damage.file, Finding(damage.file, damage=damage.what))
        for name in state.unsealed:
            yield from self._tell(name, Finding(name))
        yield from self._commit(state.pointer, state.found)
        if state.is_newest:
            yield from self._checkpoints()
            yield from self._logs()

    def _tell(self, what: Pointer | str, finding: Finding) -> Iterator[Finding]:
        if what not in self._told:
            self._told.add(what)
            yield finding

    # Commits ------------------------------------------------------------------------------

    def _commit(
        self, pointer: str, found: Recovered, checkpoint: Checkpoint | None = None
    ) -> Iterator[Finding]:
        """Verify all files that a commit needs; those of a checkpoint only as long as it exists."""
        streams = list(found.streams.values())
        counts = {
            Pointer(file.name, file.size, file.checksum): {"keys": file.keys, "rows": file.rows}
            for file in found.edit.files
        }
        for file in [*counts, parse_pointer(pointer), found.base]:
            if file in self._told:
                continue
            try:
                finding = self._table(file, streams, counts.get(file))
            except READ_ERRORS as error:
                if missing_path(error) is not None:
                    if checkpoint is not None and not os.path.exists(checkpoint.path):
                        return  # the checkpoint was deleted, and then its files
                    self.watch.miss(file.name)
                finding = Finding(file.name, damage=damage_of(error).what)
            yield from self._tell(file, finding)

    def _table(
        self, file: Pointer, streams: Sequence[StreamSchema], counts: Mapping[str, int] | None
    ) -> Finding:
        """Verify a table; ``counts`` are those of the manifest. CorruptionError,
        FormatVersionError, OSError."""
        directory = self.watch.state.directory
        table = self._tables.open_commit(directory, file.name, file.size, file.checksum)
        found = sst_check.verify(table, [codecs_of(stream).rows for stream in streams])
        check_rows(table, streams, process_memory().budget)
        if counts is not None and found != counts:
            what = f"it holds {found}, the manifest says {counts}; {REMEDY}"
            return Finding(file.name, damage=what)
        return Finding(file.name, found)

    # What else a standalone store has -----------------------------------------------------

    def _checkpoints(self) -> Iterator[Finding]:
        directory = self.watch.state.directory
        for path, said in read_each_checkpoint(directory):
            name = os.path.basename(path)
            if isinstance(said, READ_ERRORS):
                yield from self._tell(name, Finding(name, damage=damage_of(said).what))
            else:
                yield from self._checkpoint(name, said)

    def _checkpoint(self, name: str, checkpoint: Checkpoint) -> Iterator[Finding]:
        try:
            found = read_commit(self._tables, self.watch.state.directory, checkpoint.pointer)
        except READ_ERRORS as error:
            if missing_path(error) is not None and not os.path.exists(checkpoint.path):
                return
            yield from self._tell(name, Finding(name, damage=damage_of(error).what))
            return
        yield from self._tell(name, Finding(name, {"files": len(checkpoint.files)}))
        yield from self._commit(checkpoint.pointer, found, checkpoint)

    def _logs(self) -> Iterator[Finding]:
        """Verify the write-ahead logs, and whether each write that is not in the runs is in one of
        them."""
        directory = self.watch.state.directory
        expected: int | None
        expected, place = self.watch.state.found.edit.replay_from
        finding = Finding("changelog", {})
        names = changelog_files(directory)
        for name in names:
            counts, missing = {"writes": 0}, ""
            try:
                for write in replay(os.path.join(directory, name), _torn_into(counts)):
                    counts["writes"] += 1
                    if expected is not None and write.sequence > expected:
                        missing = missing or _gap(expected, write.sequence - 1)
                    if expected is None or write.sequence >= expected:
                        expected, place = write.sequence + 1, 0
            except READ_ERRORS as error:
                if missing_path(error) is not None:
                    self.watch.miss(name)
                finding = Finding(name, damage=damage_of(error).what)
                expected = None  # the rest of its content is unknown
            else:
                finding = Finding(name, counts)
            if missing and finding.damage is None:
                self.watch.miss(f"before {name}")
                finding = Finding(name, damage=missing)
            if name != names[-1]:
                yield from self._tell(name, finding)
        if expected is not None and (place or expected <= self.watch.state.logged):
            self.watch.miss("the last changelog")
            logged = self.watch.state.logged
            missing = missing_end(logged) if expected <= logged else _gap(expected, expected)
            if finding.damage is None:
                finding = Finding(finding.file, damage=missing)
        if names or finding.damage is not None:
            yield from self._tell(finding.file, finding)


def _torn_into(counts: dict[str, int]) -> Callable[[str, int], None]:
    """Return a callback for ``replay``, which gets the number of torn bytes at a log's end."""

    def note(_: str, size: int) -> None:
        counts["torn_bytes"] = size

    return note


def _gap(first: int, last: int) -> str:
    writes = f"write {first} is" if first == last else f"the writes {first} to {last} are"
    return f"{writes} in no write-ahead log before it; {REMEDY}"
