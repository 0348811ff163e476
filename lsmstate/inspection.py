"""Looking inside states on disk without opening them for writing: what the command line shows.

A directory is a standalone store's, or an attempts' directory (a bucket's), or one that holds
such directories (a Spark query's state). Nothing is locked, changed or deleted.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.expiring_reads import expiring_reads
from lsmstate.file_names import numbered, parse_attempt_file, parse_numbered
from lsmstate.lsm_store import LsmStore
from lsmstate.manifest import Pointer, parse_pointer
from lsmstate.memory_budget import process_memory
from lsmstate.options import Options
from lsmstate.owners import FIRST_MANIFEST, newest_pointer
from lsmstate.recovery import Recovered, read_commit
from lsmstate.table_cache import table_cache

#: What to do about a standalone store that says no more which commit counts.
_SAVE = (
    "save what can be read of the store by `lsmstate repair {directory} NEW-DIRECTORY`, or restore "
    "a checkpoint or a copy of it"
)


@dataclass(frozen=True, slots=True)
class State:
    """One committed state: where it is, which commit, what the commit says."""

    directory: str
    pointer: str
    found: Recovered


def find_states(directory: str, pointer: str | None = None) -> list[State]:
    """The newest committed state in a directory, or in each of its subdirectories if there are no
    files of a state in it; or the one that ``pointer`` names. InvalidArgumentError if there is
    none, CorruptionError."""
    places = [directory]
    if pointer is None and not _holds_files(directory):
        places = sorted(
            entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)
        )
    states = [state for place in places if (state := find_state(place, pointer)) is not None]
    if not states:
        raise InvalidArgumentError(
            f"{directory} holds no committed state; name the directory of a standalone store, of "
            "a bucket, or the 'lsmstate' directory below a query's checkpoint"
        )
    return states


def find_standalone(directory: str, why: str) -> State:
    """The state of a standalone store. CorruptionError; InvalidArgumentError, which says ``why``
    it has to be one, if the directory has none."""
    state = find_state(directory)
    if state is None or parse_numbered(parse_pointer(state.pointer).name) is None:
        raise InvalidArgumentError(f"{directory} is not a standalone store's directory; {why}")
    return state


def find_state(directory: str, pointer: str | None = None) -> State | None:
    """The newest committed state in a directory itself, or the one ``pointer`` names; None if
    nothing was ever committed. CorruptionError."""
    text = pointer or _newest(directory)
    if text is None:
        return None
    return State(directory, text, read_commit(table_cache(process_memory()), directory, text))


def _holds_files(directory: str) -> bool:
    """Whether a directory is a store's or a bucket's: by names, whatever is in the files."""
    return any(
        parse_numbered(name) is not None or parse_attempt_file(name) is not None
        for name in os.listdir(directory)
    )


def _newest(directory: str) -> str | None:
    """The pointer of the commit that counts; None if there was none yet. CorruptionError."""
    try:
        found, _ = newest_pointer(directory)
        if found is None:
            # While the directory was listed one may have come, and the one before it gone.
            found, _ = newest_pointer(directory)
    except CorruptionError as error:
        save = _SAVE.format(directory=directory)
        raise CorruptionError(f"the MANIFEST is damaged; {save}", error.path, 0) from error
    if found is not None:
        return found
    numbers = [each[1] for each in map(parse_numbered, os.listdir(directory)) if each is not None]
    last_number = max(numbers, default=0)
    if last_number > FIRST_MANIFEST:  # below, the first commit never came about
        raise CorruptionError(
            f"no whole MANIFEST is left; {_SAVE.format(directory=directory)}",
            os.path.join(directory, numbered("MANIFEST", last_number)),
            0,
        )
    return _newest_of_attempts(directory)


def _newest_of_attempts(directory: str) -> str | None:
    """The pointer of the newest sealed commit; of several attempts of a batch, the last one
    written. Which of them a query accepted only the query's checkpoint knows."""
    commits = [
        (file.batch_id, os.stat(os.path.join(directory, file.name)).st_mtime_ns, file.name)
        for file in map(parse_attempt_file, os.listdir(directory))
        if file is not None and file.kind == "commit"
    ]
    for _, _, name in sorted(commits, reverse=True):
        try:
            table = table_cache(process_memory()).peek(directory, name)
        except CorruptionError:
            continue  # an attempt died before it sealed this one
        return str(Pointer(name, table.size, table.checksum))
    return None


def rows_of(state: State, stream: str, limit: int) -> Iterator[pa.RecordBatch]:
    """The first ``limit`` rows of a stream, grouped by key; of one with an expiry those that are
    not due as of the commit."""
    with open_state(state) as store:
        for piece in expiring_reads(store).scan(stream):
            if limit <= 0:
                return
            yield piece.slice(0, limit)
            limit -= piece.num_rows


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
