"""Contents of a committed state as JSON values: file by file, or by level."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lsmstate.cython_ext.sstable import sst_check
from lsmstate.errors import CorruptionError, FormatVersionError
from lsmstate.lsm.checkpoints import Checkpoint, read_each_checkpoint
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.lsm.table_cache import table_cache
from lsmstate.lsm.version import FileMeta, Version
from lsmstate.process.memory_budget import process_memory
from lsmstate.store_base.slots import without_slots
from lsmstate.tools.concurrent_reader import StateWatch, settled
from lsmstate.tools.inspection import READ_ERRORS, Damage, State, damage_of, missing_path
from lsmstate.tools.rows import logged_writes
from lsmstate.tools.stored_keys import decoded_key

#: What there is to know of one.
CheckpointSaid = Checkpoint | CorruptionError | FormatVersionError

_LEVEL_FIELDS = ("runs", "files", "bytes", "keys", "rows", "deletions", "raw_bytes")


def describe(state: State) -> dict[str, Any]:
    """Return runs, files, sizes, key ranges, filters and streams of a state as JSON values.

    If the state was replaced meanwhile, its successor is described. Sizes are in bytes.

    - ``logged_writes``: writes of a standalone store that only its write-ahead logs hold; no other
      figure counts them.
    - ``damaged``: unreadable files, checkpoints and logs, and newer commits that were skipped.
    - ``memory``: bytes of the files while they are open. Top indexes stay in memory. Index and
      filter partitions go through the block cache, so theirs are upper bounds.
    """
    return settled(state, _describe)


def _describe(watch: StateWatch) -> dict[str, Any]:
    state = watch.state
    version = state.found.edit.version
    runs: list[dict[str, Any]] = [
        {
            "number": run.number,
            "level": run.level,
            "bytes": run.size,
            "rows": run.rows,
            "deleted_ranges": len(run.deleted),
            "files": [_describe_file(watch, file) for file in run.files],
        }
        for run in version.runs
    ]
    all_files = [file for run in runs for file in run["files"]]
    files = [file for file in all_files if file["damage"] is None]
    damaged = [Damage(file["name"], file["damage"]) for file in all_files if file["damage"]]
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
        **_beside(watch, _checkpoints(state), damaged),
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


def _describe_file(watch: StateWatch, file: FileMeta) -> dict[str, Any]:
    """Describe a file. ``damage`` says why it cannot be opened; its index and filters are then
    unknown.

    ``min_key`` and ``max_key`` are stored bytes in hex. ``first_key`` and ``last_key`` are their
    values, with the names under which a stream with an expiry is stored; None: they do not decode.
    """
    described = file._asdict()
    try:
        table = table_cache(process_memory()).open(watch.state.directory, file)
        described |= sst_check.layout(table)
        described |= {"top_index_bytes": table.index_bytes, "damage": None}
    except READ_ERRORS as error:
        if missing_path(error) is not None:
            watch.miss(file.name)
        described["damage"] = damage_of(error).what
    described["min_key"], described["max_key"] = file.min_key.hex(), file.max_key.hex()
    streams = list(watch.state.found.streams.values())
    described["first_key"] = decoded_key(streams, file.min_key)
    described["last_key"] = decoded_key(streams, file.max_key)
    described["checksum"] = f"{file.checksum:016x}"
    described["uid"] = f"{file.uid:016x}"
    return described


def _beside(
    watch: StateWatch, checkpoints: Iterable[CheckpointSaid], damaged: Iterable[Damage] = ()
) -> dict[str, Any]:
    """What is wrong, checkpoints of the newest state too; which newer files were never finished;
    and how many writes are in logs only."""
    if not watch.state.is_newest:
        checkpoints = ()
    logged, damaged_logs = logged_writes(watch)
    lost = [damage_of(said) for said in checkpoints if isinstance(said, READ_ERRORS)]
    return {
        "logged_writes": logged,
        "damaged": [
            asdict(each) for each in (*watch.state.damaged, *damaged, *lost, *damaged_logs)
        ],
        "unsealed": list(watch.state.unsealed),
    }


def _checkpoints(state: State) -> list[CheckpointSaid]:
    return [said for _, said in read_each_checkpoint(state.directory)]


def summarize(state: State) -> dict[str, Any]:
    """Return sizes by level, and of the other files in the directory, as JSON values.

    If the state was replaced meanwhile, its successor is summarized. Sizes are in bytes;
    ``raw_bytes`` are rows before compression. Cost: only the commit's file, checkpoints and
    write-ahead logs are read.
    """
    return settled(state, _summarize)


def _summarize(watch: StateWatch) -> dict[str, Any]:
    state = watch.state
    version = state.found.edit.version
    levels = _levels(version)
    raw_bytes = sum(level["raw_bytes"] for level in levels)
    checkpoints = _checkpoints(state)
    kept = [each.files for each in checkpoints if isinstance(each, Checkpoint)]
    return {
        "directory": state.directory,
        "pointer": state.pointer,
        **_beside(watch, checkpoints),
        "levels": levels,
        "rows": sum(run.rows for run in version.runs),
        "bytes": version.size,
        "bytes_per_raw_byte": version.size / raw_bytes if raw_bytes else 0.0,
        **_sizes(state, set().union(*kept)),
    }


def _levels(version: Version) -> list[dict[str, Any]]:
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
    return [{"level": number, **levels[number]} for number in sorted(levels)]


def _sizes(state: State, kept: set[str]) -> dict[str, int]:
    """Return the bytes of files beside the runs: those that the commit needs (its own, its base,
    those of an interrupted merge), those that only checkpoints keep, and unneeded ones."""
    in_runs = {file.name for file in state.found.edit.version.files}
    needed = {file.name for file in state.found.edit.files}
    needed |= {parse_pointer(state.pointer).name, state.found.base.name}
    sizes = dict.fromkeys(("changelog_bytes", "commit_bytes", "checkpoint_bytes", "other_bytes"), 0)
    for entry in os.scandir(state.directory):
        if entry.name.startswith("changelog-"):
            what = "changelog_bytes"
        elif not entry.name.endswith(".sst") or entry.name in in_runs:
            continue
        elif entry.name in needed:
            what = "commit_bytes"
        else:
            what = "checkpoint_bytes" if entry.name in kept else "other_bytes"
        with suppress(FileNotFoundError):  # deleted after it was listed
            sizes[what] += entry.stat().st_size
    return sizes
