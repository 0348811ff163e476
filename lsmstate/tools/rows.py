"""Rows of a committed state, and how many writes are not in it yet."""

import os
from collections.abc import Iterator

from lsmstate.expiry.readers import expiring_reads
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.table_cache import MOST_OPEN, table_cache
from lsmstate.lsm.wal import changelog_files, replay
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import Entries
from lsmstate.tools.concurrent_reader import StateWatch, settled
from lsmstate.tools.inspection import READ_ERRORS, Damage, State, damage_of, missing_path


def entries_of(state: State, stream: str, limit: int) -> Iterator[Entries]:
    """The first ``limit`` rows of a stream with their keys, in key order; of one with an expiry
    those that are not due as of the commit."""
    with open_state(state) as store:
        for keys, rows in expiring_reads(store).iterate(stream):
            if limit <= 0:
                return
            yield Entries(keys.slice(0, limit), rows.slice(0, limit))
            limit -= rows.num_rows


def with_open_files(state: State) -> State:
    """This state, or the one that took its place, with its files open: rows can be read although
    another process deletes them meanwhile (if there are not more than are kept open)."""
    return settled(state, _open_files)


def _open_files(watch: StateWatch) -> State:
    tables = table_cache(process_memory())
    for file in watch.state.found.edit.version.files[:MOST_OPEN]:
        try:
            tables.open(watch.state.directory, file)
        except READ_ERRORS as error:
            if missing_path(error) is not None:
                watch.miss(file.name)
            # Whether it matters the read will tell.
    return watch.state


def logged_writes(watch: StateWatch) -> tuple[int, list[Damage]]:
    """How many acknowledged writes are in changelogs and not, or not wholly, in a standalone
    store's commit; and which changelogs are damaged. Cost: they are read."""
    directory = watch.state.directory
    first, _ = watch.state.found.edit.replay_from
    count, damaged = 0, list[Damage]()
    for name in changelog_files(directory):
        try:
            for write in replay(os.path.join(directory, name)):
                count += write.sequence >= first
        except READ_ERRORS as error:
            if missing_path(error) is not None:
                watch.miss(name)
            damaged.append(damage_of(error, name))
    return count, damaged


def open_state(state: State) -> LsmStore:
    """A store to be read; nothing in the directory changes."""
    return LsmStore.open_attempt(
        state.directory,
        list(state.found.streams.values()),
        pointer=state.pointer,
        batch_id=0,
        attempt_id="inspection",
        options=Options(),
    )
