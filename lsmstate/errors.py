"""The exception classes, one for each way a caller can react."""

from lsmstate.cython_ext.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    LsmStateError,
    MemoryLimitError,
)

__all__ = [
    "CorruptionError",
    "FormatVersionError",
    "InvalidArgumentError",
    "LsmStateError",
    "LsmStateWarning",
    "MemoryLimitError",
    "StoreClosedError",
    "StoreLockedError",
]


class StoreClosedError(LsmStateError):
    """The store is closed, or another process opened it before a fork; open it again here."""

    __module__ = "lsmstate"


class StoreLockedError(LsmStateError):
    """Another process has the standalone store open; the message names the process."""

    __module__ = "lsmstate"


class LsmStateWarning(UserWarning):
    """Something works, but not as well as it could; the message says what to change."""

    __module__ = "lsmstate"
