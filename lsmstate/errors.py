"""The exception tree, split by what a caller can do about it."""

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
    """The store was closed, or inherited over a fork; open it again in this process."""


class StoreLockedError(LsmStateError):
    """Another process owns the standalone store; the message names it."""


class LsmStateWarning(UserWarning):
    """Something works but not as well as it could; the message says what to change."""
