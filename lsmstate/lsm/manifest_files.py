"""MANIFEST files of a standalone store: the newest commit, and what the write-ahead logs must hold.

- The complete MANIFEST with the highest number is valid.
- A crash leaves a log that ends anywhere after its last sync. A log that was cut off later looks
  the same.
- A MANIFEST therefore names the last write that the logs held when it was written. A commit does so
  for the logs that it keeps, and closing a store does so for all logs.
"""

import os
import re
from typing import NamedTuple

from lsmstate.cython_ext.base.file import ReadFile
from lsmstate.errors import CorruptionError
from lsmstate.lsm.checksummed_text import seal_text, unseal_text
from lsmstate.lsm.file_names import numbered, parse_numbered
from lsmstate.lsm.manifest import parse_pointer

_REMEDY = "restore the store from a checkpoint, or save its readable part with lsmstate repair"
_LOGGED = re.compile(r"[1-9][0-9]{0,18}")


class Manifest(NamedTuple):
    """The content of a MANIFEST."""

    pointer: str
    logged: int = 0
    """The last write that the logs must hold; 0: the commit holds all writes that are known."""

    def packed(self) -> bytes:
        """Return the bytes of the file. Earlier releases read one that holds only the pointer."""
        text = f"{self.pointer} {self.logged}" if self.logged else self.pointer
        return seal_text(text.encode("ascii"))


def newest_manifest(directory: str) -> tuple[Manifest | None, list[str]]:
    """Return the newest complete MANIFEST of a directory (None: there is none), and the paths of
    newer ones that a crash tore. Nothing is changed."""
    found = [parse_numbered(name) for name in os.listdir(directory)]
    numbers = sorted(
        (number for kind, number in filter(None, found) if kind == "MANIFEST"), reverse=True
    )
    torn: list[str] = []
    for number in numbers:
        path = os.path.join(directory, numbered("MANIFEST", number))
        manifest = _read(path)
        if manifest is not None:
            return manifest, torn
        torn.append(path)
    return None, torn


def newest_pointer(directory: str) -> tuple[str | None, list[str]]:
    """Return the pointer in the newest complete MANIFEST, and the paths of torn newer ones."""
    manifest, torn = newest_manifest(directory)
    return None if manifest is None else manifest.pointer, torn


def check_logged(logged: int, last: int, path: str, offset: int) -> None:
    """Raise CorruptionError, for this place, if the logs end before the write that they must hold.
    ``last`` is their last write."""
    if last < logged:
        raise CorruptionError(missing_end(logged), path, offset)


def missing_end(logged: int) -> str:
    """Return the message for logs that end before the write that they must hold."""
    return (
        f"the write-ahead logs end before write {logged}, which they held when the store was last "
        "closed or committed: the end of a log was cut off or overwritten, or a log was deleted; "
        f"{_REMEDY}"
    )


def _read(path: str) -> Manifest | None:
    """Return the content of a MANIFEST; None if it is torn. CorruptionError."""
    file = ReadFile(path)
    try:
        data = file.read(0, min(file.size, 4096))
    finally:
        file.close()
    text = unseal_text(data, path, _REMEDY)
    if text is None:
        return None
    try:
        pointer, space, logged = text.decode("ascii").partition(" ")
        if space and not _LOGGED.fullmatch(logged):
            raise CorruptionError(f"{logged[:100]!r} is not the number of a write")
        return Manifest(str(parse_pointer(pointer)), int(logged or 0))
    except (CorruptionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"it names no commit ({error}); {_REMEDY}", path, 0) from error
