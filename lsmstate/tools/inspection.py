"""Looking inside states on disk without opening them for writing: what the command line shows.

A directory is a standalone store's, or an attempts' directory (a bucket's), or one that holds
such directories (a Spark query's state). Nothing is locked, changed or deleted.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from lsmstate.cython_ext.base.file import ReadFile
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.local_directory import check_is_there
from lsmstate.lsm.file_names import numbered, parse_attempt_file, parse_numbered
from lsmstate.lsm.manifest import Pointer, asked_pointer, parse_pointer
from lsmstate.lsm.ownership import FIRST_MANIFEST, newest_pointer
from lsmstate.lsm.recovery import Recovered, read_commit
from lsmstate.lsm.table_cache import table_cache
from lsmstate.process.memory_budget import process_memory

#: What to do about a standalone store that says no more which commit counts.
_SAVE = (
    "save what can be read of the store by `lsmstate repair {directory} NEW-DIRECTORY`, or restore "
    "a checkpoint or a copy of it"
)


#: What is wrong with files. That memory is short, for one, says nothing of them.
READ_ERRORS = (CorruptionError, FormatVersionError, OSError)
ReadError = CorruptionError | FormatVersionError | OSError

#: For errors that name none.
REMEDY = "restore it from a copy, or save what can be read by `lsmstate repair`"

#: How often files may be replaced while the commit that counts is read.
_MOST_LOOKS = 20

#: How a file ends once it is sealed, and the bytes of header and footer: it has more.
_FOOTER_END = b"LSMSTATE"
_LEAST_BYTES = 16 + 80


@dataclass(frozen=True, slots=True)
class Damage:
    """A file, by its name ("": nobody knows which), and what is wrong with it."""

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class State:
    """One committed state: where it is, which commit, what the commit says."""

    directory: str
    pointer: str
    found: Recovered
    unsealed: tuple[str, ...] = ()
    """Newer files that were never finished, by name: a writer died, or is at it."""
    damaged: tuple[Damage, ...] = ()
    """Newer commits that cannot be read, so that this one was taken."""
    is_newest: bool = True
    """Whether it was looked for, and not named by a pointer."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A directory that holds a state which cannot be read."""

    directory: str
    error: ReadError

    @property
    def damage(self) -> Damage:
        return damage_of(self.error)


def missing_path(error: ReadError) -> str | None:
    """The file that an error says is not there; None if it says something else."""
    missing = error if isinstance(error, FileNotFoundError) else error.__cause__
    return str(missing.filename) if isinstance(missing, FileNotFoundError) else None


def damage_of(error: ReadError, name: str = "") -> Damage:
    """What an error says of a file (``name``, or the one the error names), and what can be done."""
    path = str(getattr(error, "path", "") or getattr(error, "filename", "") or "")
    what = str(error)
    if not isinstance(error, FormatVersionError) and "restore" not in what.replace(path, ""):
        what += f"; {REMEDY}"
    return Damage(name or os.path.basename(path), what)


def find_states(directory: str, pointer: str | None = None) -> list[State]:
    """The newest committed state in a directory, or in each of its subdirectories if there are no
    files of a state in it; or the one that ``pointer`` names. InvalidArgumentError if there is
    none, or no such directory; CorruptionError, FormatVersionError, OSError if one cannot be
    read."""
    states: list[State] = []
    for found in each_state(directory, pointer):
        if isinstance(found, Unreadable):
            raise found.error
        states.append(found)
    return states


def each_state(directory: str, pointer: str | None = None) -> Iterator[State | Unreadable]:
    """The same one by one; of several, one that cannot be read does not hide the others."""
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
    """The state of a standalone store. CorruptionError; InvalidArgumentError, which says ``why``
    it has to be one, if the directory has none."""
    check_is_there(directory)
    state = find_state(directory)
    if state is None or parse_numbered(parse_pointer(state.pointer).name) is None:
        raise InvalidArgumentError(f"{directory} is not a standalone store's directory; {why}")
    return state


def find_state(directory: str, pointer: str | None = None) -> State | None:
    """The newest committed state in a directory itself, or the one ``pointer`` names; None if
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
            return State(directory, newest.pointer, found, newest.unsealed, newest.damaged)
        except READ_ERRORS as error:
            # A commit may have replaced it meanwhile; what is missing again was not replaced.
            path = missing_path(error)
            if path is None or path in missing or len(missing) == _MOST_LOOKS:
                raise
            missing.add(path)


def _holds_files(directory: str) -> bool:
    """Whether a directory is a store's or a bucket's: by names, whatever is in the files."""
    return any(
        parse_numbered(name) is not None or parse_attempt_file(name) is not None
        for name in os.listdir(directory)
    )


@dataclass(frozen=True, slots=True)
class _Newest:
    """The commit that counts, and what was passed over: see State."""

    pointer: str
    unsealed: tuple[str, ...]
    damaged: tuple[Damage, ...]


def _newest(directory: str) -> _Newest | None:
    """None if nothing was committed yet. CorruptionError, FormatVersionError."""
    try:
        found, torn = newest_pointer(directory)
        if found is None:
            # While the directory was listed one may have come, and the one before it gone.
            found, torn = newest_pointer(directory)
    except CorruptionError as error:
        save = _SAVE.format(directory=directory)
        raise CorruptionError(f"the MANIFEST is damaged; {save}", error.path, 0) from error
    if found is not None:
        return _Newest(found, tuple(map(os.path.basename, torn)), ())
    numbers = [each[1] for each in map(parse_numbered, os.listdir(directory)) if each is not None]
    last_number = max(numbers, default=0)
    if last_number > FIRST_MANIFEST:  # below, the first commit never came about
        raise CorruptionError(
            f"no whole MANIFEST is left; {_SAVE.format(directory=directory)}",
            os.path.join(directory, numbered("MANIFEST", last_number)),
            0,
        )
    return _newest_of_attempts(directory)


def _newest_of_attempts(directory: str) -> _Newest | None:
    """The newest sealed commit; of several attempts of a batch, the last one written. Which of
    them a query accepted only the query's checkpoint knows."""
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
    """Whether a file that cannot be read has its end, so that it is damaged. One that lacks it was
    never finished; what a pointer names is not looked for here."""
    file = ReadFile(path)
    try:
        ends = max(0, file.size - len(_FOOTER_END))
        return file.size > _LEAST_BYTES and file.read(ends, file.size - ends) == _FOOTER_END
    finally:
        file.close()
