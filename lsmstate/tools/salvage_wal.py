"""The complete records of a write-ahead log that may be damaged.

A record's length has its own checksum. After a damaged payload, the next record is therefore found
at once. After a damaged length it is searched byte by byte. Torn ends and damage are distinguished
as in a replay. An end is also damaged if the log is known to have held more.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lsmstate.cython_ext.base.file import ReadFile
from lsmstate.lsm.wal import single_payloads
from lsmstate.lsm.wal_records import HEAD, MAGIC, Records


@dataclass(frozen=True, slots=True)
class Record:
    """One write of a complete record: the head of its payload, and the rest."""

    kind: int
    stream: int
    sequence: int
    write: bytes

    def payload(self, sequence: int) -> list[bytes]:
        """Return the payload of a record of this write alone, with another sequence number."""
        return [HEAD.pack(self.kind, self.stream, sequence), self.write]


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


def salvage_changelog(path: str, wanted: int = 0) -> SalvagedChangelog:
    """Read the complete records of a log. ``wanted``: the last write that the log is known to have
    held. Memory: the file's size."""
    file = ReadFile(path)
    try:
        data = file.read(0, file.size)
    finally:
        file.close()
    log = Records(lambda offset, size: data[offset : offset + size], len(data))
    records: list[Record] = []
    gaps: list[tuple[int, int]] = []
    if not log.has_magic:
        if not wanted and log.is_torn(0):
            return SalvagedChangelog((), (), len(data))
        gaps.append((0, min(len(MAGIC), len(data))))
    offset = len(MAGIC)
    while offset < len(data):
        if (found := log.whole(offset)) is not None:
            payload, end = found
            records += [_record(part) for part in single_payloads(payload, path, offset)]
            offset = end
            continue
        last = records[-1].sequence if records else 0
        if last >= wanted and log.has_magic and log.is_torn(offset):
            return SalvagedChangelog(tuple(records), tuple(gaps), len(data) - offset)
        start = offset
        offset = log.next_record(offset)
        gaps.append((start, offset - start))
    return SalvagedChangelog(tuple(records), tuple(gaps), 0)


def _record(payload: bytes) -> Record:
    kind, stream, sequence = HEAD.unpack_from(payload)
    return Record(kind, stream, sequence, payload[HEAD.size :])
