"""Errors that the compiled code raises; ``lsmstate.errors`` adds the others.

``__module__`` is ``lsmstate``: tracebacks and pickles name the classes as users import them.

A message repeats the value that it refuses, so it is shortened: a value may be megabytes.
"""

import re

#: Most characters of one quoted value, and of a whole message. A longer one is shortened.
MOST_VALUE = 1000
MOST_MESSAGE = 6000
#: Characters of a shortened value that are shown at its begin and at its end.
_BEGIN, _END = 120, 40

_LONG_VALUE = re.compile(
    rf"""(?P<quote>['"])(?:(?!(?P=quote)).){{{MOST_VALUE},}}(?P=quote)""", re.S
)


class LsmStateError(Exception):
    """Base class of all errors that lsmstate raises."""

    __module__ = "lsmstate"

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


def shortened(message: str) -> str:
    """Return a message of bounded length: long values, and then the whole, lose their middle."""
    if len(message) <= MOST_VALUE:
        return message
    return _cut(_LONG_VALUE.sub(lambda found: _cut(found[0], MOST_VALUE), message), MOST_MESSAGE)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    begin, end = (_BEGIN, _END) if most == MOST_VALUE else (most * 2 // 3, most // 3)
    return f"{text[:begin]}... ({len(text)} characters) ...{text[-end:]}"


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
