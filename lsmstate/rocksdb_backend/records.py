"""Records of the RocksDB backend: an entry per key, and chunks of its rows.

entry := live rows(u64) bytes(u64) next chunk(u32) [pending retractions(u32), if any]
chunk := n(u32) n lengths(u32) n encoded rows
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from lsmstate.errors import CorruptionError

#: Most bytes of rows in a chunk, unless it holds one row.
CHUNK_BYTES = 32 << 10

#: Number of the chunk that holds a key's pending retractions.
PENDING_CHUNK = 0xFFFFFFFF

_ENTRY = struct.Struct("<QQI")
_ENTRY_PENDING = struct.Struct("<QQII")
_CHUNK = struct.Struct(">I")


class Entry(NamedTuple):
    """What is known of a key without reading a row."""

    rows: int = 0
    row_bytes: int = 0
    chunks: int = 0
    pending: int = 0

    def pack(self) -> bytes:
        return _ENTRY_PENDING.pack(*self) if self.pending else _ENTRY.pack(*self[:3])


class Chunk(NamedTuple):
    """Location of some rows of a key: the caller's position, the exact name, the expected bytes."""

    position: int
    name: bytes
    average_bytes: int


def unpack_entry(entry: bytes | None) -> Entry:
    """Unpack an entry; an absent key has an entry of zeros."""
    if entry is None:
        return Entry()
    return Entry(*(_ENTRY if len(entry) == _ENTRY.size else _ENTRY_PENDING).unpack(entry))


def chunk_name(key: bytes, number: int) -> bytes:
    """Return the name of a chunk. The names of one key's chunks ascend with their numbers."""
    return key + _CHUNK.pack(number)


def chunks_of(position: int, key: bytes, entry: bytes) -> Iterator[Chunk]:
    """Yield the chunks of a key, in arrival order."""
    _, size, chunks, _ = unpack_entry(entry)
    for number in range(chunks):
        yield Chunk(position, chunk_name(key, number), size // chunks)


def cut(rows: list[bytes]) -> Iterator[list[bytes]]:
    """Split rows into chunks, in order."""
    first = 0
    held = 0
    for k, row in enumerate(rows):
        if k > first and held + len(row) > CHUNK_BYTES:
            yield rows[first:k]
            first, held = k, 0
        held += len(row)
    yield rows[first:]


def pack_chunk(rows: list[bytes]) -> bytes:
    return struct.pack(f"<{len(rows) + 1}I", len(rows), *map(len, rows)) + b"".join(rows)


def unpack_chunk(chunk: bytes, path: str) -> list[bytes]:
    """Return the rows of a chunk. CorruptionError if its lengths do not fit together."""
    (count,) = struct.unpack_from("<I", chunk)
    if 4 * (count + 1) > len(chunk):
        raise CorruptionError(f"a chunk of {len(chunk)} bytes cannot hold {count} rows", path, 0)
    lengths = struct.unpack_from(f"<{count}I", chunk, 4)
    start = 4 * (count + 1)
    if start + sum(lengths) != len(chunk):
        raise CorruptionError("the lengths of a chunk's rows do not add up", path, 0)
    rows = []
    for length in lengths:
        rows.append(chunk[start : start + length])
        start += length
    return rows
