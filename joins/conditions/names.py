"""Names that somebody wrote, found among those that there are."""

import difflib
from collections.abc import Iterable

from lsmstate.errors import InvalidArgumentError


def resolved(what: str, name: str, known: Iterable[str], stream: str = "") -> str:
    """The known name that equals ``name``, without regard to case, as Spark resolves."""
    for candidate in known:
        if candidate.lower() == name.lower():
            return candidate
    raise unknown(what, name, known, stream)


def unknown(what: str, name: str, known: Iterable[str], stream: str = "") -> InvalidArgumentError:
    """The error for a name that is not there, with the nearest one that is."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.0)
    owner = f" in stream {stream!r}" if stream else ""
    return InvalidArgumentError(
        f"there is no {what} {name!r}{owner}; did you mean {near[0]!r}? Known: {', '.join(known)}"
    )
