"""Writes into a file that others see at once: whole, however little the system takes at a time."""

import errno
import os


def write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the data at a place of an open file. ``pwrite`` may write less than it is asked
    to, and is called again then. OSError: a part of it may be written."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        if not written:  # it would take nothing ever
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        left, offset = left[written:], offset + written
