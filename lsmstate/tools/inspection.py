"""Inspection of states on disk without opening them for writing.

A directory is a standalone store's, a bucket's (of attempts), or one that holds such directories (a
Spark query's state). Nothing is locked, changed or deleted.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from lsmstate.cython_ext.base.file import ReadFile
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.local_directory import check_is_there
from lsmstate.lsm.file_names import numbered, parse_attempt_file, parse_numbered
from lsmstate.lsm.manifest import Pointer, asked_pointer, parse_pointer
from lsmstate.lsm.manifest_files import newest_manifest
from lsmstate.lsm.ownership import FIRST_MANIFEST
from lsmstate.lsm.recovery import Recovered, read_commit
from lsmstate.lsm.table_cache import table_cache
from lsmstate.process.memory_budget import process_memory

#: Remedy for a standalone store whose newest commit is unknown.
_SAVE = (
    "save its readable part with `lsmstate repair {directory} NEW-DIRECTORY`, or restore "
    "a checkpoint or a copy of it"
)


#: Errors that concern files. A lack of memory, for example, does not.
READ_ERRORS = (CorruptionError, FormatVersionError, OSError)
ReadError = CorruptionError | FormatVersionError | OSError

#: Remedy for errors that name none.
REMEDY = "restore it from a copy, or save the readable part with `lsmstate repair`"

#: Most retries after files were replaced while the newest commit was read.
_MOST_LOOKS = 20

#: End of a sealed file, and the least bytes of one: header and footer.
_FOOTER_END = b"LSMSTATE"
_LEAST_BYTES = 16 + 80


@dataclass(frozen=True, slots=True)
class Damage:
    """A file, by name ("" if it is unknown), and what is wrong with it."""

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class State:
    """One committed state: its directory, its commit, and the content of the commit."""

    directory: str
    pointer: str
    found: Recovered
    unsealed: tuple[str, ...] = ()
    """Names of newer unfinished files: their writer died, or is still writing."""
    damaged: tuple[Damage, ...] = ()
    """Newer commits that cannot be read, so that this older one was chosen."""
    is_newest: bool = True
    """Whether it was found as the newest, not given by a pointer."""
    logged: int = 0
    """See ``manifest_files.Manifest``."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A directory whose state cannot be read."""

    directory: str
    error: ReadError

    @property
    def damage(self) -> Damage:
        return damage_of(self.error)


def missing_path(error: ReadError) -> str | None:
    """Return the path of a missing file that an error reports; None for other errors."""
    missing = error if isinstance(error, FileNotFoundError) else error.__cause__
    return str(missing.filename) if isinstance(missing, FileNotFoundError) else None


def damage_of(error: ReadError, name: str = "") -> Damage:
    """Convert an error about a file (``name``, or the one the error names) to damage with its
    remedy."""
    path = str(getattr(error, "path", "") or getattr(error, "filename", "") or "")
    what = str(error)
    if not isinstance(error, FormatVersionError) and "restore" not in what.replace(path, ""):
        what += f"; {REMEDY}"
    return Damage(name or os.path.basename(path), what)


def find_states(directory: str, pointer: str | None = None) -> list[State]:
    """Find the newest committed state in a directory, or in each of its subdirectories if it holds
    no state itself; or the state of ``pointer``.

    Raises:
        InvalidArgumentError: There is no state, or no such directory.
        CorruptionError: A state is damaged.
        FormatVersionError: A state has a format that this release cannot read.
        OSError: The file system failed.
    """
    states: list[State] = []
    for found in each_state(directory, pointer):
        if isinstance(found, Unreadable):
            raise found.error
        states.append(found)
    return states


def each_state(directory: str, pointer: str | None = None) -> Iterator[State | Unreadable]:
    """Yield the states one by one; an unreadable one does not hide the others."""
    if pointer is not None:
        asked_pointer(pointer)
    check_is_there(directory)
    places = [directory]
    if not _holds_files(directory) and pointer is None:
        places = sorted(
            entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)
        )
    has_found = False
    for place in places:
        found: State | Unreadable | None
        try:
            found = find_state(place, pointer)
        except READ_ERRORS as error:
            found = Unreadable(place, error)
        if found is not None:
            has_found = True
            yield found
    if not has_found:
        raise InvalidArgumentError(
            f"{directory} holds no committed state; name the directory of a standalone store, of "
            "a bucket, or the 'lsmstate' directory below a query's checkpoint"
        )


def find_standalone(directory: str, why: str) -> State:
    """Return the state of a standalone store. CorruptionError; InvalidArgumentError, which says
    ``why`` the store must be standalone, if it is not."""
    check_is_there(directory)
    state = find_state(directory)
    if state is None or parse_numbered(parse_pointer(state.pointer).name) is None:
        raise InvalidArgumentError(f"{directory} is not a standalone store's directory; {why}")
    return state


def find_state(directory: str, pointer: str | None = None) -> State | None:
    """Return the newest committed state in a directory itself, or the state of ``pointer``; None if
    nothing was ever committed. CorruptionError, FormatVersionError."""
    tables = table_cache(process_memory())
    if pointer is not None:
        found = read_commit(tables, directory, pointer)
        return State(directory, pointer, found, is_newest=False)
    missing: set[str] = set()
    while True:
        try:
            newest = _newest(directory)
            if newest is None:
                return None
            found = read_commit(tables, directory, newest.pointer)
            return State(
                directory,
                newest.pointer,
                found,
                newest.unsealed,
                newest.damaged,
                logged=newest.logged,
            )
        except READ_ERRORS as error:
            # A commit may have replaced it meanwhile. What is missing again was not replaced.
            path = missing_path(error)
            if path is None or path in missing or len(missing) == _MOST_LOOKS:
                raise
            missing.add(path)


def _holds_files(directory: str) -> bool:
    """Test by file names whether a directory is a store's or a bucket's."""
    return any(
        parse_numbered(name) is not None or parse_attempt_file(name) is not None
        for name in os.listdir(directory)
    )


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest commit, and what was skipped; see State."""

    pointer: str
    unsealed: tuple[str, ...]
    damaged: tuple[Damage, ...]
    logged: int = 0


def _newest(directory: str) -> _Newest | None:
    """Return the newest commit; None if nothing was committed yet. CorruptionError,
    FormatVersionError."""
    try:
        found, torn = newest_manifest(directory)
        if found is None:
            # While the directory was listed, a new one may have appeared and the previous one gone.
            found, torn = newest_manifest(directory)
    except CorruptionError as error:
        save = _SAVE.format(directory=directory)
        raise CorruptionError(f"the MANIFEST is damaged; {save}", error.path, 0) from error
    if found is not None:
        return _Newest(found.pointer, tuple(map(os.path.basename, torn)), (), found.logged)
    numbers = [each[1] for each in map(parse_numbered, os.listdir(directory)) if each is not None]
    last_number = max(numbers, default=0)
    if last_number > FIRST_MANIFEST:  # otherwise the first commit was never completed
        raise CorruptionError(
            f"no complete MANIFEST is left; {_SAVE.format(directory=directory)}",
            os.path.join(directory, numbered("MANIFEST", last_number)),
            0,
        )
    return _newest_of_attempts(directory)


def _newest_of_attempts(directory: str) -> _Newest | None:
    """Return the newest sealed commit; of several attempts of a batch, the one written last. Only
    the query's checkpoint knows which attempt the query accepted."""
    commits = [
        (file.batch_id, os.stat(os.path.join(directory, file.name)).st_mtime_ns, file.name)
        for file in map(parse_attempt_file, os.listdir(directory))
        if file is not None and file.kind == "commit"
    ]
    unsealed: list[str] = []
    damaged: list[Damage] = []
    for _, _, name in sorted(commits, reverse=True):
        try:
            table = table_cache(process_memory()).peek(directory, name)
        except CorruptionError as error:
            if _was_sealed(os.path.join(directory, name)):
                damaged.append(damage_of(error, name))
            else:
                unsealed.append(name)
            continue
        pointer = str(Pointer(name, table.size, table.checksum))
        return _Newest(pointer, tuple(unsealed), tuple(damaged))
    if damaged:
        raise CorruptionError(
            f"none of {len(commits)} commits can be read; {damaged[0].what}",
            os.path.join(directory, damaged[0].file),
            0,
        )
    return None


def _was_sealed(path: str) -> bool:
    """Test whether an unreadable file has its end, and is therefore damaged. One without its end
    was never finished. Files that a pointer names are not checked here."""
    file = ReadFile(path)
    try:
        ends = max(0, file.size - len(_FOOTER_END))
        return file.size > _LEAST_BYTES and file.read(ends, file.size - ends) == _FOOTER_END
    finally:
        file.close()
