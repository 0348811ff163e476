"""Decompress the files of Spark's state store: LZ4 in blocks, or Zstandard.

Every size is checked before it is used, and every LZ4 block against its checksum.
"""

import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from lsmstate.errors import CorruptionError, InvalidArgumentError

#: Files that hold more are no state of ours: 4,096 buckets need less than one MiB.
LARGEST_BYTES: Final = 64 << 20
#: What helps against a damaged file of Spark's.
REMEDY: Final = "restore the file, or read another batch"

_LZ4_MAGIC: Final = b"LZ4Block"
_LZ4_HEADER: Final = struct.Struct("<8sBiiI")
_LZ4_RAW, _LZ4_PACKED = 0x10, 0x20
_LZ4_SEED: Final = 0x9747B28C
_LZ4_SUM_MASK: Final = 0x0FFFFFFF
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

_MASK: Final = 0xFFFFFFFF
#: The primes of xxHash.
_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def decompressed(data: bytes, path: str) -> bytes:
    """The content of a file. The first bytes tell the codec."""
    if data.startswith(_LZ4_MAGIC):
        return b"".join(_lz4_blocks(data, path))
    if data.startswith(_ZSTD_MAGIC):
        return _zstd(data, path)
    raise InvalidArgumentError(
        f"{path} is compressed neither with lz4 nor with zstd, which are the codecs that can be "
        "read here; spark.sql.streaming.stateStore.compression.codec names the one it was "
        "written with"
    )


def _lz4_blocks(data: bytes, path: str) -> Iterator[bytes]:
    """The stream of lz4-java: blocks with sizes and a checksum, ended by an empty block."""
    at = total = 0
    while at < len(data):
        if len(data) - at < _LZ4_HEADER.size:
            raise CorruptionError(f"the header of a block is cut short; {REMEDY}", path, at)
        magic, token, packed_size, size, checksum = _LZ4_HEADER.unpack_from(data, at)
        block = memoryview(data)[at + _LZ4_HEADER.size :][: max(0, packed_size)]
        total += size
        if (
            magic != _LZ4_MAGIC
            or not 0 <= size <= LARGEST_BYTES
            or total > LARGEST_BYTES
            or len(block) != packed_size
        ):
            raise CorruptionError(f"the header of a block makes no sense; {REMEDY}", path, at)
        if size == 0:
            return
        content = _unpacked(token & 0xF0, block, size)
        if content is None or xxh32(content, _LZ4_SEED) & _LZ4_SUM_MASK != checksum:
            raise CorruptionError(f"the checksum of a block does not match; {REMEDY}", path, at)
        yield content
        at += _LZ4_HEADER.size + packed_size
    raise CorruptionError(f"cut short; {REMEDY}", path, at)


def _unpacked(method: int, block: memoryview, size: int) -> bytes | None:
    if method == _LZ4_RAW:
        return bytes(block)
    if method != _LZ4_PACKED:
        return None
    try:
        return bytes(pa.Codec("lz4_raw").decompress(pa.py_buffer(block), size, asbytes=True))
    except (OSError, pa.ArrowInvalid):
        return None


def _zstd(data: bytes, path: str) -> bytes:
    try:
        with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
            content = bytes(stream.read(LARGEST_BYTES + 1))
    except OSError as error:
        raise CorruptionError(f"{error}; {REMEDY}", path, 0) from error
    if len(content) > LARGEST_BYTES:
        raise CorruptionError(f"holds more than {LARGEST_BYTES} bytes; {REMEDY}", path, 0)
    return content


def xxh32(data: bytes, seed: int) -> int:
    """The 32-bit xxHash, which lz4-java uses as checksum. Cost: about 2 microseconds per 16
    bytes."""
    lanes_end = len(data) // 16 * 16
    words_end = len(data) // 4 * 4
    hashed = seed + _P5
    if lanes_end:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        for words in struct.iter_unpack("<4I", data[:lanes_end]):
            for i, word in enumerate(words):
                lanes[i] = _rotated(lanes[i] + word * _P2, 13) * _P1
        hashed = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    hashed += len(data)
    for (word,) in struct.iter_unpack("<I", data[lanes_end:words_end]):
        hashed = _rotated(hashed + word * _P3, 17) * _P4
    for byte in data[words_end:]:
        hashed = _rotated(hashed + byte * _P5, 11) * _P1
    for shift, prime in ((15, _P2), (13, _P3), (16, 1)):
        hashed &= _MASK
        hashed = (hashed ^ hashed >> shift) * prime
    return hashed


def _rotated(word: int, by: int) -> int:
    word &= _MASK
    return word << by & _MASK | word >> (32 - by)
