"""Records of a write-ahead log, and the torn ends that a crash may leave.

- A killed process leaves a record that the end of the file cuts short.
- A power failure may also leave any sectors that were not synced as they were before. Such a sector
  is all zeros, or has zeros after the bytes that it held at the last sync.
- The frame of each record says up to where the log was synced when the record was appended. A
  damaged record before that place is damage, also if later records are complete.
- A damaged record after that place may be lost, and the log ends there. This holds even if later
  records are complete.
- Everything else is damage. A log is never shortened silently because a bit of its last record has
  flipped.
- Every record ends in a byte that is not zero. Zeros at the end of a file therefore never belong to
  a complete record.
"""

import struct
from collections.abc import Callable, Iterator, Sequence

from lsmstate.cython_ext.base.compression import checksum, checksum_of
from lsmstate.cython_ext.wal.wal_record import frame_check, next_frame

MAGIC = b"LSMCLOG\x03"
#: Magic number of logs whose frames do not say up to where the log was synced.
_SECOND_MAGIC = b"LSMCLOG\x02"
#: Magic number of logs whose records also lack the last byte.
_FIRST_MAGIC = b"LSMCLOG\x01"
_FORMATS = {_FIRST_MAGIC: 1, _SECOND_MAGIC: 2, MAGIC: 3}

#: Length, its check, up to where the log was synced, checksum of the payload.
FRAME = struct.Struct("<IIQQ")
_OLD_FRAME = struct.Struct("<IIQ")
HEAD = struct.Struct("<BHQ")

#: A disk writes this many bytes completely or not at all.
SECTOR_BYTES = 512

_END = b"\xff"
_PIECE_BYTES = 1 << 20


def framed(
    payload: Sequence[bytes | memoryview], offset: int, forced: int
) -> list[bytes | memoryview]:
    """Return the record of a payload, in pieces, for an offset of a log that is synced up to
    ``forced``."""
    ended = [*payload, _END]
    length = sum(map(len, ended))
    check = frame_check(offset, length, forced)
    return [FRAME.pack(length, check, forced, checksum_of(ended)), *ended]


class Records:
    """The records of one log; ``read(offset, size)`` returns its bytes."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.size = size
        self._read = read
        magic = read(0, min(len(MAGIC), size))
        self.has_magic = magic in _FORMATS
        #: A log without a magic number is taken for one of the newest format.
        self._format = _FORMATS.get(magic, 3)
        self._frame = FRAME if self._format == 3 else _OLD_FRAME
        #: Offset of the first record.
        self.begin = len(MAGIC) if self.has_magic else 0
        self._begins_in_magic = MAGIC.startswith(magic)

    def whole(self, offset: int) -> tuple[bytes, int] | None:
        """Return the payload of the record that begins here, and the offset of the next one; None
        if there is no complete record."""
        end = self.end(offset)
        if end is None or end > self.size:
            return None
        record = self._read(offset, end - offset)
        payload = record[self._frame.size :]
        if checksum(payload) != self._frame.unpack_from(record)[-1]:
            return None
        if self._format > 1:
            if not payload.endswith(_END):
                return None
            payload = payload[: -len(_END)]
        return (payload, end) if len(payload) >= HEAD.size else None

    def end(self, offset: int) -> int | None:
        """Return the end of a record by its length; None if the length is damaged or cut short."""
        if self.size - offset < self._frame.size:
            return None
        length, check, *others = self._frame.unpack(self._read(offset, self._frame.size))
        if self._format == 3:
            expected = frame_check(offset, length, others[0])
        else:
            expected = checksum(length.to_bytes(4, "little")) & 0xFFFFFFFF
        return offset + self._frame.size + length if check == expected else None

    def is_torn(self, offset: int) -> bool:
        """Test whether a crash may have left the bytes from the end of a complete record on, or
        those of a log without a magic number. They were not synced, so nobody relies on them.
        Cost: they are read once."""
        return self._may_be_unwritten(offset) and not self._was_forced(offset)

    def next_record(self, offset: int) -> int:
        """Return the offset of the next complete record after a damaged one; the end of the log if
        there is none."""
        end = self.end(offset)
        if end is not None and (end >= self.size or self.whole(end) is not None):
            return min(end, self.size)
        for place in self._frames(offset + 1, is_old=self._format < 3):
            if self.whole(place) is not None:
                return place
        return self.size

    def _may_be_unwritten(self, offset: int) -> bool:
        """Test whether the record here lacks bytes as one of which some sectors were not
        written."""
        if not self.has_magic:
            # What lies in one sector with the magic number was written with it or later.
            is_begun = self._begins_in_magic and self.size < len(MAGIC)
            return is_begun or self._is_zero(0, SECTOR_BYTES)
        if self.size - offset < self._frame.size:
            return True
        end = self.end(offset)
        if end is None:
            frame_end = offset + self._frame.size
            return self._lacks_a_part(offset, frame_end, has_end=True)
        return end > self.size or self._lacks_a_part(offset, end, has_end=self._format > 1)

    def _lacks_a_part(self, start: int, end: int, *, has_end: bool) -> bool:
        """Test whether one of the sectors has zeros instead of its part of these bytes, up to the
        end of the sector. ``has_end``: the last of the bytes is never zero."""
        for sector in range(start - start % SECTOR_BYTES, end, SECTOR_BYTES):
            first, behind = max(start, sector), min(sector + SECTOR_BYTES, self.size)
            if end <= behind:
                if has_end:
                    first = max(first, end - 1)
                elif behind < sector + SECTOR_BYTES:  # its last bytes may rightly be zeros
                    continue
            if self._is_zero(first, behind):
                return True
        return False

    def _was_forced(self, offset: int) -> bool:
        """Test whether what follows shows that the log was synced beyond this place. A frame says
        so, even if the rest of its record is lost. In the older formats, which do not say it, a
        complete record is the proof."""
        if self._format == 3 and any(
            FRAME.unpack(self._read(place, FRAME.size))[2] > offset
            for place in self._frames(offset + 1, is_old=False)
        ):
            return True
        if self.has_magic and self._format == 3:
            return False
        old = self if self.has_magic else self._as_first_format()
        places = self._frames(offset + 1, is_old=True)
        return any(old.whole(place) is not None for place in places)

    def _as_first_format(self) -> "Records":
        """Return the same bytes as those of an older log: records of the second format are also
        complete records of the first."""

        def read(offset: int, size: int) -> bytes:
            return _FIRST_MAGIC[:size] if offset == 0 else self._read(offset, size)

        return Records(read, self.size)

    def _frames(self, offset: int, *, is_old: bool) -> Iterator[int]:
        """Yield each offset from here on at which a frame with a right check begins."""
        size = (_OLD_FRAME if is_old else FRAME).size
        while offset + size <= self.size:
            piece = memoryview(self._read(offset, min(_PIECE_BYTES, self.size - offset)))
            while (place := next_frame(piece, offset, is_old)) >= 0:
                yield offset + place
                offset += place + 1
                piece = piece[place + 1 :]
            offset += max(0, len(piece) - size + 1)

    def _is_zero(self, start: int, end: int) -> bool:
        end = min(end, self.size)
        return not any(
            self._read(place, min(_PIECE_BYTES, end - place)).strip(b"\0")
            for place in range(start, end, _PIECE_BYTES)
        )
