"""Looking inside states on disk without opening them for writing: what the command line shows.

A directory is a standalone store's, or an attempts' directory (a bucket's), or one that holds
such directories (a Spark query's state). Nothing is locked, changed or deleted.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cython_ext import sst_check
from lsmstate.changelog import changelog_files, replay
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.expiring_lane import without_slots
from lsmstate.expiring_reads import expiring_reads
from lsmstate.file_names import parse_attempt_file
from lsmstate.lsm_store import LsmStore
from lsmstate.manifest import Pointer
from lsmstate.memory_budget import process_memory
from lsmstate.options import Options
from lsmstate.owners import newest_pointer
from lsmstate.recovery import Recovered, read_commit
from lsmstate.row_check import check_rows
from lsmstate.table_cache import TableCache, table_cache
from lsmstate.version import FileMeta

_LEVEL_FIELDS = ("runs", "files", "bytes", "keys", "rows", "deletions", "raw_bytes")


@dataclass(frozen=True, slots=True)
class State:
    """One committed state: where it is, which commit, what the commit says."""

    directory: str
    pointer: str
    found: Recovered


def find_states(directory: str, pointer: str | None = None) -> list[State]:
    """The newest committed state in a directory, or in each of its subdirectories; or the one
    that ``pointer`` names. InvalidArgumentError if there is none."""
    tables = table_cache(process_memory())
    places = [directory]
    if pointer is None and _newest(tables, directory) is None:
        places = sorted(
            entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)
        )
    states = []
    for place in places:
        text = pointer or _newest(tables, place)
        if text is not None:
            states.append(State(place, text, read_commit(tables, place, text)))
    if not states:
        raise InvalidArgumentError(
            f"{directory} holds no committed state; name the directory of a standalone store, of "
            "a bucket, or the 'lsmstate' directory below a query's checkpoint"
        )
    return states


def _newest(tables: TableCache, directory: str) -> str | None:
    """The pointer of the newest sealed commit; of several attempts of a batch, the last one
    written. Which of them a query accepted only the query's checkpoint knows."""
    found, _ = newest_pointer(directory)
    if found is not None:
        return found
    commits = [
        (file.batch_id, os.stat(os.path.join(directory, file.name)).st_mtime_ns, file.name)
        for file in map(parse_attempt_file, os.listdir(directory))
        if file is not None and file.kind == "commit"
    ]
    for _, _, name in sorted(commits, reverse=True):
        try:
            table = tables.peek(directory, name)
        except CorruptionError:
            continue  # an attempt died before it sealed this one
        return str(Pointer(name, table.size, table.checksum))
    return None


def describe(state: State) -> dict[str, Any]:
    """Runs, files, sizes, key ranges, filters and streams of a state, as JSON values. Sizes in
    bytes; ``memory`` is what the files cost while they are open: the top indexes stay, index and
    filter partitions come and go through the block cache, so that theirs is the most."""
    version = state.found.edit.version
    runs: list[dict[str, Any]] = [
        {
            "number": run.number,
            "level": run.level,
            "bytes": run.size,
            "rows": run.rows,
            "deleted_ranges": len(run.deleted),
            "files": [_describe_file(state.directory, file) for file in run.files],
        }
        for run in version.runs
    ]
    files = [file for run in runs for file in run["files"] if file["damage"] is None]
    return {
        "directory": state.directory,
        "pointer": state.pointer,
        "streams": [
            {
                "name": stream.name,
                "key": [f"{field.name}: {field.type}" for field in stream.key],
                "columns": len(stream.rows),
            }
            for stream in without_slots(state.found.streams, {})
        ],
        "rows": sum(run.rows for run in version.runs),
        "bytes": version.size,
        "next_sequence": version.next_sequence,
        "memory": {
            "top_indexes": sum(file["top_index_bytes"] for file in files),
            "index_partitions": sum(file["index_bytes"] for file in files),
            "filter_partitions": sum(file["filter_bytes"] for file in files),
        },
        "runs": runs,
    }


def _describe_file(directory: str, file: FileMeta) -> dict[str, Any]:
    """``damage`` says why a file cannot be opened; then its index and filters are not known."""
    described = file._asdict()
    try:
        table = table_cache(process_memory()).open(directory, file)
        described |= sst_check.layout(table)
        described |= {"top_index_bytes": table.index_bytes, "damage": None}
    except (CorruptionError, OSError) as error:
        described["damage"] = str(error)
    described["min_key"], described["max_key"] = file.min_key.hex(), file.max_key.hex()
    described["checksum"] = f"{file.checksum:016x}"
    described["uid"] = f"{file.uid:016x}"
    return described


def summarize(state: State) -> dict[str, Any]:
    """What a state amounts to, as JSON values: by level, and what else its directory holds. Bytes;
    ``raw_bytes`` are rows before compression. Cost: no file is read but the commit's."""
    version = state.found.edit.version
    levels: dict[int, dict[str, Any]] = {}
    for run in version.runs:
        level = levels.setdefault(run.level, dict.fromkeys(_LEVEL_FIELDS, 0))
        level["runs"] += 1
        level["files"] += len(run.files)
        for file in run.files:
            level["bytes"] += file.size
            level["keys"] += file.keys
            level["rows"] += file.rows
            level["deletions"] += file.tombstones
            level["raw_bytes"] += file.raw_bytes
    named = {file.name for file in state.found.edit.files}
    other_bytes = log_bytes = 0
    for entry in os.scandir(state.directory):
        if entry.name.startswith("changelog-"):
            log_bytes += entry.stat().st_size
        elif entry.name.endswith(".sst") and entry.name not in named:
            other_bytes += entry.stat().st_size
    raw_bytes = sum(level["raw_bytes"] for level in levels.values())
    return {
        "directory": state.directory,
        "pointer": state.pointer,
        "levels": [{"level": number, **levels[number]} for number in sorted(levels)],
        "rows": sum(run.rows for run in version.runs),
        "bytes": version.size,
        "bytes_per_raw_byte": version.size / raw_bytes if raw_bytes else 0.0,
        "changelog_bytes": log_bytes,
        "other_bytes": other_bytes,
    }


def verify(state: State) -> Iterator[tuple[str, dict[str, int] | str]]:
    """(file name, counts or what is wrong with it) for each file, and for the changelogs of a
    standalone store. Cost: all of it is read."""
    tables = table_cache(process_memory())
    streams = list(state.found.streams.values())
    for file in state.found.edit.version.files:
        try:
            table = tables.open(state.directory, file)
            counts = sst_check.verify(table)
            check_rows(table, streams, process_memory().budget)
            if (counts["keys"], counts["rows"]) == (file.keys, file.rows):
                yield file.name, counts
            else:
                yield file.name, f"{counts} were found, expected {file.keys}, {file.rows}"
        except (CorruptionError, OSError) as error:
            yield file.name, str(error)
    for name in changelog_files(state.directory):
        try:
            yield name, {"writes": sum(1 for _ in replay(os.path.join(state.directory, name)))}
        except (CorruptionError, FormatVersionError, OSError) as error:
            yield name, str(error)


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
