"""The complete records of a write-ahead log that may be damaged.

A record's length has its own checksum. After a damaged payload, the next record is therefore found
at once. After a damaged length it is searched byte by byte. Torn ends and damage are distinguished
as in a replay.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lsmstate.cython_ext.base.file import ReadFile
from lsmstate.lsm.wal import single_payloads
from lsmstate.lsm.wal_records import FRAME, HEAD, MAGIC, Records, framed


@dataclass(frozen=True, slots=True)
class Record:
    """One write of a complete record: the head of its payload, and the rest."""

    kind: int
    stream: int
    sequence: int
    write: bytes

    def framed_as(self, sequence: int) -> bytes:
        """Return a record of this write alone, with another sequence number."""
        return b"".join(framed([HEAD.pack(self.kind, self.stream, sequence), self.write]))


@dataclass(frozen=True, slots=True)
class SalvagedChangelog:
    """The readable part of a log. ``gaps`` are (offset, bytes) of damage. ``torn_bytes`` is the
    size of the last write, which a crash interrupted before it was acknowledged."""

    records: tuple[Record, ...]
    gaps: tuple[tuple[int, int], ...]
    torn_bytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Records with sequence numbers without gaps, and where a replay begins. ``missing`` are the
    first and the last of sequence numbers that no record has."""

    records: tuple[tuple[int, Record], ...]
    replay_from: tuple[int, int]
    missing: tuple[tuple[int, int], ...]


def plan_replay(records: Iterable[Record], replay_from: tuple[int, int]) -> Replay:
    """Close the gaps between records, oldest first.

    ``replay_from`` is the first write that is not completely in the runs, and how many of its keys
    are. If that write is lost, the next one begins at its own start.
    """
    first, place = replay_from
    expected = number = first
    numbered: list[tuple[int, Record]] = []
    missing: list[tuple[int, int]] = []
    for record in records:
        if record.sequence < expected:
            continue
        if record.sequence > expected:
            missing.append((expected, record.sequence - 1))
            if not numbered and place:
                number, place = first + 1, 0
        numbered.append((number, record))
        number += 1
        expected = record.sequence + 1
    if not numbered:
        return Replay((), (first + 1, 0) if place else (first, 0), ())
    return Replay(tuple(numbered), (numbered[0][0], place), tuple(missing))


def salvage_changelog(path: str) -> SalvagedChangelog:
    """Read the complete records of a log. Memory: the file's size."""
    file = ReadFile(path)
    try:
        data = file.read(0, file.size)
    finally:
        file.close()
    log = Records(lambda offset, size: data[offset : offset + size], len(data))
    records: list[Record] = []
    gaps: list[tuple[int, int]] = []
    if log.is_unbegun:
        return SalvagedChangelog((), (), len(data))
    offset = len(MAGIC)
    if not log.has_magic:
        gaps.append((0, min(offset, len(data))))
    while offset < len(data):
        if (found := log.whole(offset)) is not None:
            payload, end = found
            records += [_record(part) for part in single_payloads(payload, path, offset)]
            offset = end
            continue
        if log.is_torn(offset):
            return SalvagedChangelog(tuple(records), tuple(gaps), len(data) - offset)
        start = offset
        offset = _next_record(log, offset)
        gaps.append((start, offset - start))
    return SalvagedChangelog(tuple(records), tuple(gaps), 0)


def _record(payload: bytes) -> Record:
    kind, stream, sequence = HEAD.unpack_from(payload)
    return Record(kind, stream, sequence, payload[HEAD.size :])


def _next_record(log: Records, offset: int) -> int:
    """Return the offset of the next complete record; the end of the data if there is none."""
    end = log.end(offset)
    if end is not None and (end >= log.size or log.whole(end) is not None):
        return min(end, log.size)
    for place in range(offset + 1, log.size - FRAME.size):
        if log.whole(place) is not None:
            return place
    return log.size
