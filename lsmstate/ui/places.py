"""Where states lie below a directory: checkpoints of queries, stores, buckets.

A place is named by its path below the directory that the page was started with. Only places that
were found there can be asked for.
"""

import os
from dataclasses import dataclass
from typing import Final, Literal

from lsmstate.errors import InvalidArgumentError
from lsmstate.local_directory import check_is_there
from lsmstate.lsm.file_names import parse_attempt_file, parse_numbered

Kind = Literal["query", "store"]

#: How deep below the directory states are looked for, and how many are listed.
_DEPTH: Final = 3
_MOST: Final = 200
#: What lies in a checkpoint of Spark.
_OF_CHECKPOINT: Final = ("offsets", "commits")
#: Directories of a checkpoint that hold no state of their own.
_OF_QUERY: Final = ("offsets", "commits", "state", "sources", "lsmstate")


@dataclass(frozen=True, slots=True)
class Place:
    """One state, or the states of one query."""

    at: str
    """Its path below the directory; "." is the directory itself."""
    path: str
    kind: Kind

    def as_json(self) -> dict[str, str]:
        """The place as JSON values."""
        return {"at": self.at, "kind": self.kind, "path": _as_text(self.path)}


def find_places(directory: str) -> list[Place]:
    """List the places in a directory, by path. Cost: a listing of each directory, three deep.

    Raises:
        InvalidArgumentError: There is no such directory.
    """
    check_is_there(directory)
    found: list[Place] = []
    waiting = [(directory, 0)]
    while waiting and len(found) < _MOST:
        path, depth = waiting.pop()
        kind = _kind(path)
        if kind is not None:
            found.append(Place(_as_text(os.path.relpath(path, directory)), path, kind))
        if depth < _DEPTH and kind is None:
            waiting += [(each, depth + 1) for each in sorted(_directories(path), reverse=True)]
    return found


def place_at(directory: str, at: str) -> Place:
    """The place of this path. InvalidArgumentError if it is none of those that are listed."""
    for place in find_places(directory):
        if place.at == at:
            return place
    raise InvalidArgumentError(f"there is no state at {at!r} below {directory}")


def _as_text(path: str) -> str:
    """A path that may be no UTF-8, as a page can show it and ask for it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _kind(path: str) -> Kind | None:
    names = _names(path)
    if all(name in names for name in _OF_CHECKPOINT):
        return "query"
    is_store = any(
        parse_numbered(n) is not None or parse_attempt_file(n) is not None for n in names
    )
    return "store" if is_store else None


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []  # gone meanwhile, or not ours to read


def _directories(path: str) -> list[str]:
    return [
        os.path.join(path, name)
        for name in _names(path)
        if not name.startswith(".") and os.path.isdir(os.path.join(path, name))
    ]
