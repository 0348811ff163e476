"""The whole records of a changelog that may be damaged.

A record's length has a check of its own, so that behind a damaged payload the next record is found
at once; behind a damaged length it is looked for byte by byte.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cython_ext.codec import checksum
from cython_ext.file import ReadFile
from lsmstate.changelog import FRAME, HEAD, MAGIC, length_check, single_payloads


@dataclass(frozen=True, slots=True)
class Record:
    """One write of a whole record: the head of its payload, and what follows."""

    kind: int
    stream: int
    sequence: int
    write: bytes

    def framed_as(self, sequence: int) -> bytes:
        """A record of this write alone, under another sequence number."""
        payload = HEAD.pack(self.kind, self.stream, sequence) + self.write
        length = len(payload)
        return FRAME.pack(length, length_check(length), checksum(payload)) + payload


@dataclass(frozen=True, slots=True)
class SalvagedChangelog:
    """``gaps`` are (offset, bytes) of what is damaged; ``torn_bytes`` the write at the very end
    that a crash interrupted, which nobody was told of."""

    records: tuple[Record, ...]
    gaps: tuple[tuple[int, int], ...]
    torn_bytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Records under sequence numbers without gaps, and where a replay begins. ``missing`` are the
    first and the last of numbers that no record has."""

    records: tuple[tuple[int, Record], ...]
    replay_from: tuple[int, int]
    missing: tuple[tuple[int, int], ...]


def plan_replay(records: Iterable[Record], replay_from: tuple[int, int]) -> Replay:
    """Close the gaps between records, oldest first. ``replay_from``: the first write that is not
    wholly in the runs, and how many of its keys are: if that write is lost, the next begins anew.
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
    """Memory: the file's size."""
    file = ReadFile(path)
    try:
        data = file.read(0, file.size)
    finally:
        file.close()
    records: list[Record] = []
    gaps: list[tuple[int, int]] = []
    offset = len(MAGIC)
    if data[:offset] != MAGIC[: len(data)]:
        gaps.append((0, min(offset, len(data))))
    while offset < len(data):
        payload = _payload_at(data, offset)
        if payload is not None:
            records += [_record(part) for part in single_payloads(payload, path, offset)]
            offset += FRAME.size + len(payload)
            continue
        if _is_torn_end(data, offset):
            return SalvagedChangelog(tuple(records), tuple(gaps), len(data) - offset)
        start = offset
        offset = _next_record(data, offset)
        gaps.append((start, offset - start))
    return SalvagedChangelog(tuple(records), tuple(gaps), 0)


def _record(payload: bytes) -> Record:
    kind, stream, sequence = HEAD.unpack_from(payload)
    return Record(kind, stream, sequence, payload[HEAD.size :])


def _payload_at(data: bytes, offset: int) -> bytes | None:
    """The payload of the record that begins here; None if there is no whole one."""
    end = _end_of_record(data, offset)
    if end is None or end > len(data):
        return None
    _, _, expected = FRAME.unpack_from(data, offset)
    payload = data[offset + FRAME.size : end]
    return payload if checksum(payload) == expected and len(payload) >= HEAD.size else None


def _end_of_record(data: bytes, offset: int) -> int | None:
    """Where a record ends as its length says; None if that is damaged."""
    if len(data) - offset < FRAME.size:
        return None
    length, check, _ = FRAME.unpack_from(data, offset)
    return offset + FRAME.size + length if check == length_check(length) else None


def _is_torn_end(data: bytes, offset: int) -> bool:
    """As replay judges it: the frame or the payload of the last record is incomplete."""
    end = _end_of_record(data, offset)
    return len(data) - offset < FRAME.size or (end is not None and end >= len(data))


def _next_record(data: bytes, offset: int) -> int:
    """Where the next whole record begins; the end of the data if there is none."""
    end = _end_of_record(data, offset)
    if end is not None and (end >= len(data) or _payload_at(data, end) is not None):
        return min(end, len(data))
    for place in range(offset + 1, len(data) - FRAME.size):
        if _payload_at(data, place) is not None:
            return place
    return len(data)
