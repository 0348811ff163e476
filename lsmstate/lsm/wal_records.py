"""Records of a write-ahead log, and the torn ends that a crash may leave.

- A killed process leaves a record that the end of the file cuts short.
- A power failure may also leave zeros where bytes had not reached the disk, because the file's
  length was stored before them: to the end, or in some sectors of a record.
- Everything else is damage. A log is never shortened silently because a bit of its last record has
  flipped.
- Every record ends in a byte that is not zero. Zeros at the end of a file therefore never belong to
  a complete record.
"""

import struct
from collections.abc import Callable, Sequence

from lsmstate.cython_ext.base.compression import checksum, checksum_of

MAGIC = b"LSMCLOG\x02"
#: Magic number of logs whose records lack the last byte.
_FIRST_MAGIC = b"LSMCLOG\x01"

FRAME = struct.Struct("<IIQ")
HEAD = struct.Struct("<BHQ")

#: A disk writes this many bytes completely or not at all.
SECTOR_BYTES = 512

_END = b"\xff"
_PIECE_BYTES = 1 << 16


def framed(payload: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the record of a payload, in pieces."""
    ended = [*payload, _END]
    length = sum(map(len, ended))
    return [FRAME.pack(length, length_check(length), checksum_of(ended)), *ended]


def length_check(length: int) -> int:
    return checksum(length.to_bytes(4, "little")) & 0xFFFFFFFF


class Records:
    """The records of one log; ``read(offset, size)`` returns its bytes."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.size = size
        self._read = read
        magic = read(0, min(len(MAGIC), size))
        self.has_magic = magic in (MAGIC, _FIRST_MAGIC)
        #: Whether its records have the last byte.
        self._is_ended = magic != _FIRST_MAGIC
        #: Whether a crash may have left the log without its first bytes.
        self.is_unbegun = not self.has_magic and (MAGIC.startswith(magic) or self._is_zero(0, size))

    def whole(self, offset: int) -> tuple[bytes, int] | None:
        """Return the payload of the record that begins here, and the offset of the next one; None
        if there is no complete record."""
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
        """Return the end of a record by its length; None if the length is damaged or cut short."""
        if self.size - offset < FRAME.size:
            return None
        length, check, _ = FRAME.unpack(self._read(offset, FRAME.size))
        return offset + FRAME.size + length if check == length_check(length) else None

    def is_torn(self, offset: int) -> bool:
        """Test whether a crash may have left the bytes from the end of a complete record on. They
        were never completely on disk, so nobody relies on them."""
        while not self._is_zero(offset, self.size) and self.size - offset >= FRAME.size:
            end = self.end(offset)
            if end is None:
                sector = offset - offset % SECTOR_BYTES + SECTOR_BYTES
                return sector < offset + FRAME.size and self._is_zero(sector, self.size)
            if end > self.size:
                return True
            # A complete record after it was written later, and so was what follows.
            if self.whole(offset) is not None or not self._lacks_a_sector(offset, end):
                return False
            offset = end
        return True

    def _lacks_a_sector(self, offset: int, end: int) -> bool:
        """Test whether one of the sectors of a record is all zeros."""
        first = offset - offset % SECTOR_BYTES
        sectors = range(first, end, SECTOR_BYTES)
        if not self._is_ended:  # the rest of the file's last sector may rightly be zeros
            sectors = range(first, min(end, self.size - SECTOR_BYTES + 1), SECTOR_BYTES)
        return any(self._is_zero(each, min(each + SECTOR_BYTES, self.size)) for each in sectors)

    def _is_zero(self, start: int, end: int) -> bool:
        return not any(
            self._read(place, min(_PIECE_BYTES, end - place)).strip(b"\0")
            for place in range(start, end, _PIECE_BYTES)
        )
