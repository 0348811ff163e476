"""What damaged bytes and broken limits raise; lsmstate.errors has the rest of the tree."""


class LsmStateError(Exception):
    """Base of every error this library raises on its own account."""


class CorruptionError(LsmStateError):
    """Stored bytes do not say what was written: a checksum, a length or a magic number is wrong.

    ``path`` names the file ("" for bytes that were never in one), ``offset`` the damaged block
    (-1: the whole file).
    """

    def __init__(self, message: str, path: str = "", offset: int = -1) -> None:
        place = f"{path} at offset {offset}: " if offset >= 0 else f"{path}: "
        super().__init__(place + message if path else message)
        self.path = path
        self.offset = offset


class FormatVersionError(LsmStateError):
    """A file was written by a format version that this release does not read."""


class InvalidArgumentError(LsmStateError, ValueError):
    """The caller's value cannot be used; the message names it and the remedy."""


class MemoryLimitError(LsmStateError, MemoryError):
    """The work does not fit under the memory cap, whatever is flushed or evicted."""
