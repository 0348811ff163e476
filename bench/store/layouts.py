"""How a multimap can lie in a store of single values: three layouts, none always the best.

    rows    key batch(u32) ordinal(u16) -> row             one entry a row; probes iterate
    chunks  key batch(u32) -> all rows of one append       one entry a key and batch; probes iterate
    heads   key -> the key's rows; full: key number(u32)   read, extend, write; probes are list gets

rocksdict has no merge operator; ``heads`` does in Python what one would do.
"""

import struct
from collections.abc import Iterable
from typing import Protocol

import numpy as np

_BATCH = struct.Struct(">I")
_HEAD = struct.Struct("<I")

#: A head that has grown to this is put aside, so that a hot key does not rewrite all it has.
_HEAD_BYTES = 4096

_ORDINALS = [number.to_bytes(2, "big") for number in range(1 << 16)]


class Engine(Protocol):
    """A store of single values; keys and values are bytes."""

    def write(self, names: list[bytes], values: list[bytes]) -> None:
        """Put all, in one batch; names ascend."""
        ...

    def get(self, names: list[bytes]) -> list[bytes | None]:
        """The values of ascending names."""
        ...

    def scan(self, prefixes: list[bytes]) -> tuple[list[int], list[bytes]]:
        """Entries under each of the ascending prefixes: how many, and all their values."""
        ...

    def settle(self) -> None:
        """Flush, then wait until no merge is due."""
        ...

    def merge_all(self) -> None: ...

    def close(self) -> None: ...


class Layout(Protocol):
    def append(
        self, engine: Engine, keys: list[bytes], counts: np.ndarray, rows: list[bytes]
    ) -> None:
        """Store the rows of ascending distinct keys: ``counts[0]`` of the first, and so on."""
        ...

    def find(self, engine: Engine, keys: list[bytes]) -> tuple[np.ndarray, list[bytes]]:
        """How many rows each of the ascending keys has, and all of these."""
        ...


class Rows:
    def __init__(self) -> None:
        self._batches = 0

    def append(
        self, engine: Engine, keys: list[bytes], counts: np.ndarray, rows: list[bytes]
    ) -> None:
        self._batches += 1
        batch = _BATCH.pack(self._batches)
        stems = [key + batch for key in keys]
        names = [stems[key] for key in np.repeat(np.arange(len(keys)), counts).tolist()]
        engine.write([name + end for name, end in zip(names, _ORDINALS, strict=False)], rows)

    def find(self, engine: Engine, keys: list[bytes]) -> tuple[np.ndarray, list[bytes]]:
        counts, rows = engine.scan(keys)
        return np.array(counts, dtype=np.int64), rows


class Chunks:
    """chunk := a row, 0 | rows, their lengths(u32), their number(u32), 1."""

    def __init__(self) -> None:
        self._batches = 0

    def append(
        self, engine: Engine, keys: list[bytes], counts: np.ndarray, rows: list[bytes]
    ) -> None:
        self._batches += 1
        batch = _BATCH.pack(self._batches)
        values, place = [], 0
        for count in counts.tolist():
            if count == 1:
                values.append(rows[place] + b"\0")
            else:
                part = rows[place : place + count]
                ends = struct.pack(f"<{count + 1}IB", *map(len, part), count, 1)
                values.append(b"".join(part) + ends)
            place += count
        engine.write([key + batch for key in keys], values)

    def find(self, engine: Engine, keys: list[bytes]) -> tuple[np.ndarray, list[bytes]]:
        chunks_of_key, chunks = engine.scan(keys)
        rows: list[bytes] = []
        rows_before = [0]
        for chunk in chunks:
            if chunk[-1] == 0:
                rows.append(chunk[:-1])
            else:
                _split(chunk, rows)
            rows_before.append(len(rows))
        ends = np.concatenate([[0], np.cumsum(chunks_of_key, dtype=np.int64)])
        return np.diff(np.array(rows_before)[ends]), rows


class Heads:
    """head := chunks put aside(u32), records; record := length(u16) row; a chunk is records."""

    def append(
        self, engine: Engine, keys: list[bytes], counts: np.ndarray, rows: list[bytes]
    ) -> None:
        lengths = [len(row).to_bytes(2, "little") for row in rows]
        puts: dict[bytes, bytes] = {}
        place = 0
        for key, count, old in zip(keys, counts.tolist(), engine.get(keys), strict=True):
            head = old if old is not None else b"\0\0\0\0"
            if count == 1:
                head += lengths[place] + rows[place]
            else:
                pairs = zip(
                    lengths[place : place + count], rows[place : place + count], strict=True
                )
                head += b"".join([part for pair in pairs for part in pair])
            place += count
            if len(head) > _HEAD_BYTES:
                (number,) = _HEAD.unpack_from(head)
                puts[key + _BATCH.pack(number)] = head[4:]
                head = _HEAD.pack(number + 1)
            puts[key] = head
        names = sorted(puts)
        engine.write(names, [puts[name] for name in names])

    def find(self, engine: Engine, keys: list[bytes]) -> tuple[np.ndarray, list[bytes]]:
        heads = engine.get(keys)
        aside = [
            key + _BATCH.pack(number)
            for key, head in zip(keys, heads, strict=True)
            if head is not None and head[:4] != b"\0\0\0\0"
            for number in range(_HEAD.unpack_from(head)[0])
        ]
        chunks = iter(engine.get(aside) if aside else [])
        rows: list[bytes] = []
        rows_before = [0]
        for head in heads:
            if head is not None:
                if head[:4] != b"\0\0\0\0":
                    for _ in range(_HEAD.unpack_from(head)[0]):
                        chunk = next(chunks)
                        assert chunk is not None
                        _records(chunk, 0, rows)
                _records(head, 4, rows)
            rows_before.append(len(rows))
        return np.diff(np.array(rows_before)), rows


LAYOUTS = {"rows": Rows, "chunks": Chunks, "heads": Heads}


def _split(chunk: bytes, rows: list[bytes]) -> None:
    (count,) = struct.unpack_from("<I", chunk, len(chunk) - 5)
    lengths: Iterable[int] = struct.unpack_from(f"<{count}I", chunk, len(chunk) - 5 - 4 * count)
    start = 0
    for length in lengths:
        rows.append(chunk[start : start + length])
        start += length


def _records(data: bytes, at: int, rows: list[bytes]) -> None:
    end = len(data)
    while at < end:
        first = at + 2
        at = first + data[at] + (data[at + 1] << 8)
        rows.append(data[first:at])
