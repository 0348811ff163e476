"""Rows of a committed state, and the number of writes that it does not hold yet."""

import os
from collections.abc import Iterator

from lsmstate.expiry.readers import expiring_reads
from lsmstate.lsm.manifest_files import missing_end
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.table_cache import MOST_OPEN, table_cache
from lsmstate.lsm.wal import changelog_files, replay
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import Entries
from lsmstate.tools.concurrent_reader import StateWatch, settled
from lsmstate.tools.inspection import READ_ERRORS, Damage, State, damage_of, missing_path


def entries_of(state: State, stream: str, limit: int) -> Iterator[Entries]:
    """Yield the first ``limit`` rows of a stream with their keys, in key order; with an expiry
    those that had not expired at the commit."""
    with open_state(state) as store:
        for keys, rows in expiring_reads(store).iterate(stream):
            if limit <= 0:
                return
            yield Entries(keys.slice(0, limit), rows.slice(0, limit))
            limit -= rows.num_rows


def with_open_files(state: State) -> State:
    """Return this state, or its successor, with open files: rows can be read even if another
    process deletes the files (unless there are more than stay open)."""
    return settled(state, _open_files)


def _open_files(watch: StateWatch) -> State:
    tables = table_cache(process_memory())
    for file in watch.state.found.edit.version.files[:MOST_OPEN]:
        try:
            tables.open(watch.state.directory, file)
        except READ_ERRORS as error:
            if missing_path(error) is not None:
                watch.miss(file.name)
            # The read will show whether it matters.
    return watch.state


def logged_writes(watch: StateWatch) -> tuple[int, list[Damage]]:
    """Count the acknowledged writes that are in write-ahead logs and not, or not completely, in a
    standalone store's commit; return also which logs are damaged. Cost: the logs are read."""
    directory = watch.state.directory
    first, _ = watch.state.found.edit.replay_from
    last = first - 1
    count, damaged, name = 0, list[Damage](), "changelog"
    for name in changelog_files(directory):
        try:
            for write in replay(os.path.join(directory, name)):
                count += write.sequence >= first
                last = max(last, write.sequence)
        except READ_ERRORS as error:
            if missing_path(error) is not None:
                watch.miss(name)
            damaged.append(damage_of(error, name))
    if last < watch.state.logged and not damaged:
        watch.miss("the last changelog")
        damaged.append(Damage(name, missing_end(watch.state.logged)))
    return count, damaged


def open_state(state: State) -> LsmStore:
    """Open a store for reading; nothing in the directory changes."""
    return LsmStore.open_attempt(
        state.directory,
        list(state.found.streams.values()),
        pointer=state.pointer,
        batch_id=0,
        attempt_id="inspection",
        options=Options(),
    )
