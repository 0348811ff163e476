"""Names that somebody wrote, found among those that there are."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from lsmstate.errors import InvalidArgumentError

V = TypeVar("V")


def resolved(what: str, name: str, known: Iterable[str], stream: str = "") -> str:
    """The known name that equals ``name``, without regard to case, as Spark resolves."""
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"{name!r} is a {type(name).__name__}; give the name of a {what} as text"
        )
    for candidate in known:
        if candidate.lower() == name.lower():
            return candidate
    raise unknown(what, name, known, stream)


def named(option: str, given: Mapping[str, V], example: str) -> Mapping[str, V]:
    """What an option says of streams, by their names. InvalidArgumentError if it is no mapping."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"{option}={given!r} is a {type(given).__name__}; give it by stream, as in {example}"
        )
    return given


def column_names(option: str, given: object) -> list[str]:
    """The names of columns that an option has: one, or several in a list. InvalidArgumentError for
    anything else."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(
            f'{option}={given!r}: give the name of a column, or a list of names, as in ["id"]'
        )
    return list(given)


def unknown(what: str, name: str, known: Iterable[str], stream: str = "") -> InvalidArgumentError:
    """The error for a name that is not there, with the nearest one that is."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.0)
    owner = f" in stream {stream!r}" if stream else ""
    return InvalidArgumentError(
        f"there is no {what} {name!r}{owner}; did you mean {near[0]!r}? Known: {', '.join(known)}"
    )
