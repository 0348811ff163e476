"""Which state a damaged directory holds: the newest commit whose manifest can be read.

A bucket's directory keeps older commits. A standalone store keeps one commit, and of older ones the
files that were not merged since. If its manifest is damaged, the writes of newer commits are lost.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.errors import CorruptionError, InvalidArgumentError, LsmStateError
from lsmstate.lsm.file_names import parse_attempt_file, parse_numbered
from lsmstate.lsm.manifest import (
    Edit,
    Pointer,
    asked_pointer,
    base_in,
    parse_pointer,
    schema_digest,
    unpack_edit,
)
from lsmstate.lsm.manifest_files import Manifest, newest_manifest
from lsmstate.process.memory_budget import process_memory
from lsmstate.tools.salvage_table import SalvagedTable


@dataclass(frozen=True, slots=True)
class DamagedState:
    """The state of a damaged directory. ``problems`` says what was skipped, and why."""

    directory: str
    commit: str
    edit: Edit
    is_standalone: bool
    problems: tuple[str, ...]
    lost: tuple[str, ...] = ()
    """Files of newer commits of a standalone store, or what may be some, that cannot be read."""
    logged: int = 0
    """See ``manifest_files.Manifest``."""


def find_damaged_state(directory: str, pointer: str | None = None) -> DamagedState:
    """Return the newest commit, or the newest that can be read. CorruptionError if none can: the
    streams are then unknown, and rows mean nothing."""
    names = os.listdir(directory)
    problems: list[str] = []
    commits = _commits_of_attempts(directory, names)
    is_standalone = not commits
    if is_standalone:
        manifest = _newest_manifest(directory, problems)
        named = parse_pointer(manifest.pointer).name if manifest is not None else None
        logged = manifest.logged if manifest is not None else 0
        commits = _numbered_runs(names)
    else:
        named, logged = asked_pointer(pointer).name if pointer is not None else None, 0
    if not commits:
        raise InvalidArgumentError(
            f"{directory} holds no store's files; name a standalone store's directory or a bucket's"
        )
    lost: list[str] = []
    older = [name for name in commits if name != named]
    for name in older if named is None else [named, *older]:
        try:
            edit = read_edit(directory, name)
        except (LsmStateError, OSError) as error:
            problems.append(f"{name} is not a readable commit: {error}")
            if is_standalone and named in (None, name):
                lost.append(name)
            continue
        if edit is None:  # a file of a flush or a merge
            continue
        if is_standalone and named is None:
            problems.append(
                f"no MANIFEST names the newest commit, and {name} is the newest that can be read; "
                "if the file of a newer one is gone, its writes are lost"
            )
        return DamagedState(
            directory, name, edit, is_standalone, tuple(problems), tuple(lost), logged
        )
    raise CorruptionError("no commit can be read; restore a checkpoint or an export", directory, 0)


def _commits_of_attempts(directory: str, names: Sequence[str]) -> list[str]:
    """Return commits newest first; of several attempts of a batch, the one written last comes
    first."""
    found = [
        (file.batch_id, os.stat(os.path.join(directory, file.name)).st_mtime_ns, file.name)
        for file in map(parse_attempt_file, names)
        if file is not None and file.kind == "commit"
    ]
    return [name for _, _, name in sorted(found, reverse=True)]


def _numbered_runs(names: Sequence[str]) -> list[str]:
    """Return a standalone store's files, newest first: any of them may be a commit's."""
    found = [(parsed[1], name) for name in names if (parsed := parse_numbered(name)) is not None]
    return [name for _, name in sorted(found, reverse=True) if name.startswith("run-")]


def _newest_manifest(directory: str, problems: list[str]) -> Manifest | None:
    try:
        manifest, torn = newest_manifest(directory)
        problems += [f"{os.path.basename(path)} is incomplete" for path in torn]
        return manifest
    except CorruptionError as error:
        problems.append(str(error))
        return None


def read_edit(directory: str, name: str) -> Edit | None:
    """Return a commit's complete edit, even from a file whose other parts are damaged; None if an
    undamaged file is not a commit's."""
    path = os.path.join(directory, name)
    found = _edit_section(directory, name)
    if found is None:
        return None
    section, pointer = found
    base_text = base_in(section, path)
    if base_text is None:
        edit = unpack_edit(section, pointer, {}, path)
    else:
        base_found = _edit_section(directory, parse_pointer(base_text).name)
        if base_found is None:
            raise CorruptionError("its base is no commit", path, 0)
        base = unpack_edit(*base_found, {}, path)
        runs = {run.number: run for run in base.version.runs}
        edit = replace(unpack_edit(section, pointer, runs, path), base=None, schemas=base.schemas)
        if base.schema_digest != edit.schema_digest:
            raise CorruptionError("the commit and its base have other streams", path, 0)
    if schema_digest(edit.schemas) != edit.schema_digest:
        raise CorruptionError(
            "the digest of the schemas differs from the one in the manifest", path, 0
        )
    return edit


def _edit_section(directory: str, name: str) -> tuple[bytes, Pointer] | None:
    path = os.path.join(directory, name)
    try:
        table = Sst(path, process_memory().cache)
        section = table.section("edit")
        return (section, Pointer(name, table.size, table.checksum)) if section else None
    except CorruptionError:
        section = SalvagedTable(path).edit() or b""
    if not section:
        raise CorruptionError("the file has no manifest that can be read", path, 0)
    return section, Pointer(name, os.path.getsize(path), 0)
