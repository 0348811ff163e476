"""Which state a damaged directory holds: the newest commit that can be read, and the files that
newer commits, which cannot, have left.

An attempts' directory keeps older commits whole, so the newest readable one is the answer. A
standalone store keeps one: if that is damaged, what it named is put together from an older commit
and from the files' own descriptions.
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
from lsmstate.lsm.ownership import newest_pointer
from lsmstate.lsm.version import NOTHING, FileMeta, Run, Version
from lsmstate.process.memory_budget import process_memory
from lsmstate.tools.salvage_table import SalvagedTable


@dataclass(frozen=True, slots=True)
class DamagedState:
    """What a directory holds. ``problems`` says what was passed over, and why."""

    directory: str
    commit: str
    edit: Edit
    is_standalone: bool
    problems: tuple[str, ...]
    is_pieced_together: bool = False
    """Whether there were newer commits: files were taken in that this one does not name."""
    unreadable: tuple[str, ...] = ()
    """Such files of which nothing can be read."""


def find_damaged_state(directory: str, pointer: str | None = None) -> DamagedState:
    """The commit that counts, or the newest that can be read. CorruptionError if none can: then
    nobody knows the streams, and rows mean nothing."""
    names = os.listdir(directory)
    problems: list[str] = []
    commits = _commits_of_attempts(directory, names)
    is_standalone = not commits
    if is_standalone:
        named = _named_by_manifest(directory, problems)
        commits = _numbered_runs(names)
    else:
        named = asked_pointer(pointer).name if pointer is not None else None
    if not commits:
        raise InvalidArgumentError(
            f"{directory} holds no store's files; name a standalone store's directory or a bucket's"
        )
    for name in [named, *commits] if named is not None else commits:
        try:
            edit = read_edit(directory, name)
        except (LsmStateError, OSError) as error:
            lost = "; key ranges that its writes deleted may be back" if name == named else ""
            problems.append(f"{name} is not a readable commit{lost}: {error}")
            continue
        if name == named or not is_standalone:
            return DamagedState(directory, name, edit, is_standalone, tuple(problems))
        if named is None:
            problems.append(
                f"no MANIFEST says which commit counts, {name} is the newest that can be read; if "
                "there was a newer one whose file is gone, nobody can say what it held"
            )
        return _pieced_together(directory, name, edit, named, problems)
    raise CorruptionError("no commit can be read; restore the state from a copy", directory, 0)


def _commits_of_attempts(directory: str, names: Sequence[str]) -> list[str]:
    """Newest first; of several attempts of a batch, the last one written."""
    found = [
        (file.batch_id, os.stat(os.path.join(directory, file.name)).st_mtime_ns, file.name)
        for file in map(parse_attempt_file, names)
        if file is not None and file.kind == "commit"
    ]
    return [name for _, _, name in sorted(found, reverse=True)]


def _numbered_runs(names: Sequence[str]) -> list[str]:
    """A standalone store's files, newest first: any of them may be a commit's."""
    found = [(parsed[1], name) for name in names if (parsed := parse_numbered(name)) is not None]
    return [name for _, name in sorted(found, reverse=True) if name.startswith("run-")]


def _pieced_together(
    directory: str, name: str, edit: Edit, named: str | None, problems: list[str]
) -> DamagedState:
    """The state of an older commit with what newer ones have left."""
    groups, unreadable = _unnamed_runs(directory, name, edit)
    if named is not None and not os.path.exists(os.path.join(directory, named)):
        unreadable.append(named)
    version = _with_runs(directory, edit.version, groups, problems)
    pieced = version.files != edit.version.files or bool(unreadable)
    edit = replace(edit, version=version)
    return DamagedState(directory, name, edit, True, tuple(problems), pieced, tuple(unreadable))


def _named_by_manifest(directory: str, problems: list[str]) -> str | None:
    try:
        pointer, torn = newest_pointer(directory)
        problems += [f"{os.path.basename(path)} is incomplete" for path in torn]
        return parse_pointer(pointer).name if pointer is not None else None
    except CorruptionError as error:
        problems.append(str(error))
        return None


def read_edit(directory: str, name: str) -> Edit:
    """A commit's edit, complete, even from a file whose other parts are damaged."""
    section, pointer = _edit_section(directory, name)
    path = os.path.join(directory, name)
    base_text = base_in(section, path)
    if base_text is None:
        edit = unpack_edit(section, pointer, {}, path)
    else:
        base_section, base_pointer = _edit_section(directory, parse_pointer(base_text).name)
        base = unpack_edit(base_section, base_pointer, {}, path)
        runs = {run.number: run for run in base.version.runs}
        edit = replace(unpack_edit(section, pointer, runs, path), base=None, schemas=base.schemas)
        if base.schema_digest != edit.schema_digest:
            raise CorruptionError("the commit and its base have other streams", path, 0)
    if schema_digest(edit.schemas) != edit.schema_digest:
        raise CorruptionError("the schemas do not have the digest the manifest names", path, 0)
    return edit


def _edit_section(directory: str, name: str) -> tuple[bytes, Pointer]:
    path = os.path.join(directory, name)
    try:
        table = Sst(path, process_memory().cache)
        section, pointer = table.section("edit"), Pointer(name, table.size, table.checksum)
    except CorruptionError:
        section = SalvagedTable(path).edit() or b""
        pointer = Pointer(name, os.path.getsize(path), 0)
    if not section:
        raise CorruptionError("the file has no manifest in it", path, 0)
    return section, pointer


def _describe(directory: str, name: str, base_sequence: int) -> FileMeta | None:
    """What a file says of itself, or else what it holds, counted from a base that is assumed."""
    path = os.path.join(directory, name)
    table = SalvagedTable(path)
    found = table.description()
    if found is None:
        return table.described_by_content(name, base_sequence)
    return found._replace(name=name, size=os.path.getsize(path))


def _with_runs(
    directory: str,
    version: Version,
    unnamed: Sequence[tuple[FileMeta, ...]],
    problems: list[str],
) -> Version:
    """A version with the files that came after the commit it is of. Files that hold writes of a
    time whose runs have lost a file are the outcome of their merge, and take their place; where
    they are all there, it is of a merge that did not end. What was merged into a run that is
    there is needless (a checkpoint may keep it)."""
    runs = list(version.runs)
    next_run = version.next_run
    for files in unnamed:
        merged = [run for run in runs if _lies_within(run, files)]
        whole = [run for run in runs if _is_there(directory, run)]
        if (merged and all(run in whole for run in merged)) or any(
            _was_merged_into(run, files) for run in whole
        ):
            continue
        missing = sum(run.rows for run in merged) - sum(file.rows for file in files)
        if missing > 0:
            problems.append(
                f"{files[0].name} and what was merged with it hold {missing} rows less than what "
                "they were merged from: deleted rows, or rows of a lost file"
            )
        runs = [run for run in runs if run not in merged]
        deleted = NOTHING
        for run in merged:
            deleted = deleted.joined(run.deleted)
        level = max((run.level + 1 for run in merged), default=0)
        runs.append(Run(next_run, level, files, deleted))
        next_run += 1
    runs = _by_age(runs)
    level = 0
    for place in range(len(runs) - 1, -1, -1):
        level = max(level, runs[place].level)
        runs[place] = replace(runs[place], level=level)
    reached = max((file.max_sequence + 1 for run in runs for file in run.files), default=1)
    return Version(tuple(runs), max(version.next_sequence, reached), next_run)


def _by_age(runs: Sequence[Run]) -> list[Run]:
    """Oldest first; a run without rows stays behind the one it stood behind."""
    aged: list[tuple[int, Run]] = []
    for run in runs:
        behind = aged[-1][0] if aged else 0
        has_rows = any(file.rows for file in run.files)
        aged.append((_first_sequence(run.files) if has_rows else behind, run))
    return [run for _, run in sorted(aged, key=lambda pair: pair[0])]


def _unnamed_runs(
    directory: str, commit: str, edit: Edit
) -> tuple[list[tuple[FileMeta, ...]], list[str]]:
    """The files that a commit does not name, those of one merge together: they were written one
    after the other, their keys ascend and their writes are of one time. And the names of those of
    which nothing can be read."""
    named = {file.name for file in edit.files} | {commit}
    groups: list[tuple[FileMeta, ...]] = []
    unreadable: list[str] = []
    for name in sorted(os.listdir(directory)):
        parsed = parse_numbered(name)
        if parsed is None or parsed[0] != "run" or name in named:
            continue
        # What was written after the commit counts from the first write that is not in it.
        meta = _describe(directory, name, edit.replay_from[0])
        if meta is None:
            unreadable.append(name)
            continue
        if not meta.keys:
            continue
        before = groups[-1] if groups else ()
        if (
            before
            and before[-1].max_key < meta.min_key
            and meta.min_sequence <= max(file.max_sequence for file in before)
            and _first_sequence(before) <= meta.max_sequence
        ):
            groups[-1] = (*before, meta)
        else:
            groups.append((meta,))
    return groups, unreadable


def _lies_within(run: Run, files: tuple[FileMeta, ...]) -> bool:
    """Whether all rows of a run are of the time that the files' rows are of."""
    last = max(file.max_sequence for file in files)
    return bool(run.files) and all(
        _first_sequence(files) <= file.min_sequence and file.max_sequence <= last
        for file in run.files
        if file.rows
    )


def _was_merged_into(run: Run, files: tuple[FileMeta, ...]) -> bool:
    """Whether a run holds the writes of these files, and was written after them."""
    rows = [file for file in run.files if file.rows]
    return (
        bool(rows)
        and _first_sequence(run.files) <= _first_sequence(files)
        and max(file.max_sequence for file in files) <= max(file.max_sequence for file in rows)
        and max(_number(file) for file in files) < min(_number(file) for file in run.files)
    )


def _number(file: FileMeta) -> int:
    found = parse_numbered(file.name)
    return found[1] if found is not None else 0


def _is_there(directory: str, run: Run) -> bool:
    return all(os.path.exists(os.path.join(directory, file.name)) for file in run.files)


def _first_sequence(files: tuple[FileMeta, ...]) -> int:
    return min((file.min_sequence for file in files if file.rows), default=1 << 62)
