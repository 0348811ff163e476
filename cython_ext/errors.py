"""Errors that the compiled code raises; ``lsmstate.errors`` adds the others.

``__module__`` is ``lsmstate``: tracebacks and pickles name the classes as users import them.
"""


class LsmStateError(Exception):
    """Base class of all errors that lsmstate raises."""

    __module__ = "lsmstate"


class CorruptionError(LsmStateError):
    """Stored bytes are damaged: a checksum, a length or a magic number is wrong.

    Attributes:
        path: The damaged file; empty for bytes that were never in a file.
        offset: Offset of the damaged block; -1 if the whole file counts as damaged.
    """

    __module__ = "lsmstate"

    def __init__(self, message: str, path: str = "", offset: int = -1) -> None:
        place = f"{path} at offset {offset}: " if offset >= 0 else f"{path}: "
        super().__init__(place + message if path else message)
        self.path = path
        self.offset = offset


class FormatVersionError(LsmStateError):
    """A file has a format version that this release cannot read."""

    __module__ = "lsmstate"


class InvalidArgumentError(LsmStateError, ValueError):
    """An argument is invalid; the message names the value and the remedy."""

    __module__ = "lsmstate"


class MemoryLimitError(LsmStateError, MemoryError):
    """The work does not fit under the memory cap, even after flushing and evicting."""

    __module__ = "lsmstate"
