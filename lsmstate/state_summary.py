"""What a committed state consists of, as JSON values: file by file, or by level."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from cython_ext import sst_check
from lsmstate.errors import LsmStateError
from lsmstate.expiring_lane import without_slots
from lsmstate.inspection import Damage, State, damage_of
from lsmstate.memory_budget import process_memory
from lsmstate.table_cache import table_cache
from lsmstate.version import FileMeta

_LEVEL_FIELDS = ("runs", "files", "bytes", "keys", "rows", "deletions", "raw_bytes")


def describe(state: State) -> dict[str, Any]:
    """Runs, files, sizes, key ranges, filters and streams of a state, as JSON values. Sizes in
    bytes; ``damaged`` are files that cannot be opened, and newer commits that cannot be read;
    ``memory`` is what the files cost while they are open: the top indexes stay, index and
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
        **_damage(state, damaged),
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
    except (LsmStateError, OSError) as error:
        described["damage"] = damage_of(error).what
    described["min_key"], described["max_key"] = file.min_key.hex(), file.max_key.hex()
    described["checksum"] = f"{file.checksum:016x}"
    described["uid"] = f"{file.uid:016x}"
    return described


def _damage(state: State, damaged: Iterable[Damage] = ()) -> dict[str, Any]:
    """What is wrong, and which newer files were never finished."""
    return {
        "damaged": [asdict(each) for each in (*state.damaged, *damaged)],
        "unsealed": list(state.unsealed),
    }


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
        **_damage(state),
        "levels": [{"level": number, **levels[number]} for number in sorted(levels)],
        "rows": sum(run.rows for run in version.runs),
        "bytes": version.size,
        "bytes_per_raw_byte": version.size / raw_bytes if raw_bytes else 0.0,
        "changelog_bytes": log_bytes,
        "other_bytes": other_bytes,
    }
