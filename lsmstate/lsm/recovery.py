"""Recovery: from a commit pointer to its state, by two small reads, whatever the state's size."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.errors import CorruptionError
from lsmstate.lsm.manifest import (
    Edit,
    Pointer,
    base_in,
    names_in,
    parse_pointer,
    schema_digest,
    unpack_edit,
)
from lsmstate.lsm.table_cache import TableCache
from lsmstate.lsm.version import Run
from lsmstate.lsm.wal import Write
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import check_same_streams, pack_schemas, unpack_schemas

_MISSING = "restore the store from a checkpoint, or save the other writes with lsmstate repair"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The newest edit, the complete edit that it builds upon, and the streams as written."""

    edit: Edit
    base: Pointer
    base_runs: Mapping[int, Run]
    schemas: str

    @property
    def streams(self) -> dict[str, StreamSchema]:
        return unpack_schemas(json.loads(self.schemas))


def packed_schemas(streams: Mapping[str, StreamSchema]) -> str:
    """Return the streams' schemas as the manifest stores them."""
    return json.dumps(pack_schemas(streams), sort_keys=True)


def recover(
    tables: TableCache,
    directory: str,
    pointer_text: str,
    streams: Mapping[str, StreamSchema],
    schemas: str,
) -> Recovered:
    """Read the state of a pointer; ``schemas`` are ``packed_schemas`` of the streams.

    Raises:
        CorruptionError: A file is not what the pointer says.
        InvalidArgumentError: The state was written with other streams.
    """
    found = read_commit(tables, directory, pointer_text)
    if schemas != found.schemas:
        check_same_streams(directory, found.streams, streams)
    return found


def read_commit(tables: TableCache, directory: str, pointer_text: str) -> Recovered:
    """Read the edit of a commit and that of its base, whatever the streams are."""
    pointer = parse_pointer(pointer_text)
    section = _edit_section(tables, directory, pointer)
    path = os.path.join(directory, pointer.name)
    base_text = base_in(section, path)
    base = pointer if base_text is None else parse_pointer(base_text)
    base_section = section if base_text is None else _edit_section(tables, directory, base)
    full = unpack_edit(base_section, base, {}, os.path.join(directory, base.name))
    base_runs = {run.number: run for run in full.version.runs}
    edit = full if base_text is None else unpack_edit(section, pointer, base_runs, path)
    if schema_digest(full.schemas) != edit.schema_digest:
        raise CorruptionError(
            "the digest of the schemas differs from the one in the manifest", path, 0
        )
    return Recovered(edit, base, base_runs, full.schemas)


def _edit_section(tables: TableCache, directory: str, pointer: Pointer) -> bytes:
    table = tables.open_commit(directory, pointer.name, pointer.size, pointer.checksum)
    return table.section("edit")


def check_replayed(commit: str, replay_from: tuple[int, int], following: Write | None) -> None:
    """Raise CorruptionError if logged writes are missing.

    They may be missing before ``following``, or at the end of the logs, if the commit holds a part
    of a write (``replay_from``).
    """
    expected, place = replay_from
    if following is not None and following.place is not None:
        what = f"write {expected} is in no write-ahead log, and the record here is write"
        raise CorruptionError(f"{what} {following.sequence}; {_MISSING}", *following.place)
    if place:
        what = f"this commit holds a part of write {expected}, which is in no write-ahead log"
        raise CorruptionError(f"{what}; {_MISSING}", commit, 0)


def needed_files(tables: TableCache, directory: str, pointer_text: str) -> list[Pointer]:
    """Return all files of a pointer's state, by name: the commit's own, those of its runs, and its
    base. CorruptionError if the manifest cannot be read."""
    found = read_commit(tables, directory, pointer_text)
    files = {parse_pointer(pointer_text), found.base}
    files |= {Pointer(f.name, f.size, f.checksum) for f in found.edit.files}
    return sorted(files, key=lambda file: file.name)


@dataclass(frozen=True, slots=True)
class Named:
    """What a sealed commit names."""

    files: frozenset[str]
    """All files it needs: its own, those of its runs, its base and the files of the base."""
    parent: str | None
    """The commit that its attempt was opened at, if known."""


def named_by(open_table: Callable[[str], Sst], commit: str) -> Named:
    """Read what a commit names; ``open_table`` opens a file of its directory by name.
    CorruptionError if the commit was never sealed: then no pointer can name it."""
    table = open_table(commit)
    files, base, parent = names_in(table.section("edit"), table.path)
    files.add(commit)
    if base is not None:
        files |= named_by(open_table, parse_pointer(base).name).files
    return Named(frozenset(files), None if parent is None else parse_pointer(parent).name)
