"""The write-ahead log (WAL) of a standalone store: a framed, checksummed record per write.

A record has a frame of 24 bytes: the length of its payload, the place up to which the log was on
disk when the record was appended, and checksums. The payload follows: kind, stream, sequence
number, the write as ``lsmstate.cython_ext.wal.wal_record`` packs it, and a last byte.

- Writes that are made atomically are one record.
- A record is acknowledged when it is appended (and synced, if the options say so).
- At replay, the end of a log may be torn by a crash (see ``wal_records``); such writes are ignored.
  Any other damage is CorruptionError.
- A MANIFEST says which writes a closed log holds (see ``manifest_files``).
"""

import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lsmstate.cython_ext.base.file import AppendFile, ReadFile
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.rows.row_codec import RowBatch
from lsmstate.cython_ext.wal.wal_record import unpack_write, write_pieces
from lsmstate.errors import CorruptionError, FormatVersionError
from lsmstate.lsm.file_names import parse_numbered
from lsmstate.lsm.wal_records import HEAD, MAGIC, Records, framed

_log = logging.getLogger(__name__)

#: Kinds of writes in the log.
APPEND = 1
DELETE = 2
PUT = 3
DELETE_RANGE = 4
#: Like an append, to the hidden stream that holds a stream's retractions.
RETRACT = 5

#: Kind of a record that holds several writes, each as its length and its own payload.
_GROUP = 128
_LENGTH = struct.Struct("<Q")

_REMEDY = "save the other writes with lsmstate repair, or restore the store from a checkpoint"

_KINDS = (APPEND, DELETE, PUT, DELETE_RANGE, RETRACT)
_WITH_ROWS = (APPEND, PUT, RETRACT)


@dataclass(frozen=True, slots=True)
class Write:
    """One write.

    Several writes may share keys: keys bear the stream's number where they are logged and stored.
    The keys of a deleted range are its bounds: from the first on and below the second, which is
    null if there is no bound.
    """

    kind: int
    stream: int
    sequence: int
    keys: KeyBatch
    rows: RowBatch | None
    place: tuple[str, int] | None = None
    """The log it was read from, and the offset of its record."""


def numbered(write: Write) -> Write:
    """Return the write with keys that bear its stream's number."""
    keys = write.keys.of_stream(write.stream)
    return write if keys is write.keys else replace(write, keys=keys)


class Changelog:
    """One log file, to which the store that owns the directory appends."""

    def __init__(self, path: str, sync: bool) -> None:
        self._file = AppendFile(path)
        self._sync = sync
        #: Up to where it is synced.
        self._forced = 0
        self.path = path
        #: Sequence number of its last write; 0 if there is none.
        self.last = 0
        self._file.append(MAGIC)

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, writes: Sequence[Write]) -> None:
        """Log writes, atomically, before they are applied.

        After an OSError they are not acknowledged, and the log must not be appended to again, since
        its end may be torn.
        """
        if len(writes) == 1:
            write = numbered(writes[0])  # kept while the pieces are views of it
            payload = _pieces(write)
        else:
            payload = _grouped(writes)
        self._file.append(*framed(payload, self._file.size, self._forced))
        if self._sync:
            self.sync()
        self.last = writes[-1].sequence

    def sync(self) -> None:
        """Sync it. After an OSError, what was not synced before may never reach the disk."""
        self._file.sync()
        self._forced = self._file.size

    def close(self) -> None:
        self._file.close()


def warn_of_torn_end(path: str, size: int) -> None:
    """Log a warning that the last bytes of a write-ahead log are ignored."""
    _log.warning(
        "%s: the last %d bytes are ignored, because a crash interrupted their write",
        path,
        size,
    )


def replay(
    path: str, on_torn_end: Callable[[str, int], None] = warn_of_torn_end
) -> Iterator[Write]:
    """Yield the writes of one log, in order.

    ``on_torn_end`` gets the number of ignored bytes at the end, if there are any. Memory: one
    record at a time.
    """
    file = ReadFile(path)
    try:
        records = Records(file.read, file.size)
        offset = records.begin
        while records.has_magic and (found := records.whole(offset)) is not None:
            payload, end = found
            yield from _unpack(payload, path, offset)
            offset = end
        if not records.is_torn(offset):
            if not records.has_magic:
                raise CorruptionError(f"not a write-ahead log of this format; {_REMEDY}", path, 0)
            raise _damaged(path, offset)
        if offset < file.size:
            on_torn_end(path, file.size - offset)
    finally:
        file.close()


def _damaged(path: str, offset: int) -> CorruptionError:
    return CorruptionError(f"a record of the write-ahead log is damaged; {_REMEDY}", path, offset)


def _pieces(write: Write) -> list[bytes | memoryview]:
    """Return a numbered write's payload as views of what the write holds, which
    must outlive them."""
    head = HEAD.pack(write.kind, write.stream, write.sequence)
    return [head, *write_pieces(write.keys, write.rows)]


def _grouped(writes: Sequence[Write]) -> list[bytes | memoryview]:
    """Return several writes' payloads as one."""
    group: list[bytes | memoryview] = [HEAD.pack(_GROUP, 0, writes[0].sequence)]
    for write in map(numbered, writes):
        payload = b"".join(_pieces(write))
        group += [_LENGTH.pack(len(payload)), payload]
    return group


def _unpack(payload: bytes, path: str, offset: int) -> Iterator[Write]:
    for write in single_payloads(payload, path, offset):
        yield _unpack_write(write, path, offset)


def single_payloads(payload: bytes, path: str, offset: int) -> Iterator[bytes]:
    """Yield the payloads of the writes in one record. CorruptionError."""
    if payload[0] != _GROUP:
        yield payload
        return
    place = HEAD.size
    while place < len(payload):
        if len(payload) - place < _LENGTH.size:
            raise _damaged(path, offset)
        (length,) = _LENGTH.unpack_from(payload, place)
        place += _LENGTH.size
        if not HEAD.size <= length <= len(payload) - place:
            raise _damaged(path, offset)
        yield payload[place : place + length]
        place += length


def _unpack_write(payload: bytes, path: str, offset: int) -> Write:
    kind, stream, sequence = HEAD.unpack_from(payload)
    if kind not in _KINDS:
        raise FormatVersionError(
            f"{path} at offset {offset}: a write of kind {kind}, which this release does not know; "
            "open the store with the release that wrote it or a later one"
        )
    try:
        keys, rows = unpack_write(memoryview(payload)[HEAD.size :], kind in _WITH_ROWS)
    except CorruptionError as error:
        raise CorruptionError(str(error), path, offset) from error
    return Write(kind, stream, sequence, keys.of_stream(stream), rows, (path, offset))


def changelog_files(directory: str) -> list[str]:
    """List the write-ahead logs of a directory, oldest first."""
    found = [(parse_numbered(name), name) for name in os.listdir(directory)]
    return [name for parsed, name in sorted(filter(_is_log, found))]


def _is_log(named: tuple[tuple[str, int] | None, str]) -> bool:
    return named[0] is not None and named[0][0] == "changelog"
