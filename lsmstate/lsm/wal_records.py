"""The bytes of a changelog: its records, and which ends of a log a crash may have left.

A killed process leaves a record that the end of the file cuts short. A power cut may also leave
zeros where bytes were not forced to the disk, as the file's length was there before them: to the
end, or in some sectors of a record. All else is damage; a log is never shortened in silence because
a bit of its last record has flipped. Every record ends in a byte that is not zero, so that zeros at
the very end are no part of one that is whole.
"""

import struct
from collections.abc import Callable, Sequence

from lsmstate.cython_ext.base.compression import checksum, checksum_of

MAGIC = b"LSMCLOG\x02"
#: Of logs whose records lack the byte at the end.
_FIRST_MAGIC = b"LSMCLOG\x01"

FRAME = struct.Struct("<IIQ")
HEAD = struct.Struct("<BHQ")

#: What a disk writes as a whole, or not at all.
SECTOR_BYTES = 512

_END = b"\xff"
_PIECE_BYTES = 1 << 16


def framed(payload: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The record of a payload, in pieces."""
    ended = [*payload, _END]
    length = sum(map(len, ended))
    return [FRAME.pack(length, length_check(length), checksum_of(ended)), *ended]


def length_check(length: int) -> int:
    return checksum(length.to_bytes(4, "little")) & 0xFFFFFFFF


class Records:
    """The records of one log, of which ``read(offset, size)`` gives the bytes."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.size = size
        self._read = read
        magic = read(0, min(len(MAGIC), size))
        self.has_magic = magic in (MAGIC, _FIRST_MAGIC)
        #: Whether its records have the byte at the end.
        self._is_ended = magic != _FIRST_MAGIC
        #: Whether a crash may have left the log before it had its first bytes.
        self.is_unbegun = not self.has_magic and (MAGIC.startswith(magic) or self._is_zero(0, size))

    def whole(self, offset: int) -> tuple[bytes, int] | None:
        """The payload of the record that begins here, and where the next one does; None if there
        is no whole one."""
        end = self.end(offset)
        if end is None or end > self.size:
            return None
        record = self._read(offset, end - offset)
        payload = record[FRAME.size :]
        if checksum(payload) != FRAME.unpack_from(record)[2]:
            return None
        if self._is_ended:
            if not payload.endswith(_END):
                return None
            payload = payload[: -len(_END)]
        return (payload, end) if len(payload) >= HEAD.size else None

    def end(self, offset: int) -> int | None:
        """Where a record ends as its length says; None if that is damaged or cut short."""
        if self.size - offset < FRAME.size:
            return None
        length, check, _ = FRAME.unpack(self._read(offset, FRAME.size))
        return offset + FRAME.size + length if check == length_check(length) else None

    def is_torn(self, offset: int) -> bool:
        """Whether a crash may have left what is here from the end of a whole record on: nothing of
        it was ever on the disk as a whole, so nobody relies on it."""
        while not self._is_zero(offset, self.size) and self.size - offset >= FRAME.size:
            end = self.end(offset)
            if end is None:
                sector = offset - offset % SECTOR_BYTES + SECTOR_BYTES
                return sector < offset + FRAME.size and self._is_zero(sector, self.size)
            if end > self.size:
                return True
            # A whole record behind it was written after it, and so was what follows.
            if self.whole(offset) is not None or not self._lacks_a_sector(offset, end):
                return False
            offset = end
        return True

    def _lacks_a_sector(self, offset: int, end: int) -> bool:
        """Whether one of the sectors that a record reaches into is all zeros."""
        first = offset - offset % SECTOR_BYTES
        sectors = range(first, end, SECTOR_BYTES)
        if not self._is_ended:  # what is there of the file's last sector may be zeros by right
            sectors = range(first, min(end, self.size - SECTOR_BYTES + 1), SECTOR_BYTES)
        return any(self._is_zero(each, min(each + SECTOR_BYTES, self.size)) for each in sectors)

    def _is_zero(self, start: int, end: int) -> bool:
        return not any(
            self._read(place, min(_PIECE_BYTES, end - place)).strip(b"\0")
            for place in range(start, end, _PIECE_BYTES)
        )
