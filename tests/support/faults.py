"""Drives the fault hooks of ``cython_ext.base.file``: the k-th operation fails, or tears first."""

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lsmstate.cython_ext.base.compression import codec_number
from lsmstate.cython_ext.base.file import AppendFile, set_fault_hook
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.cython_ext.memtable.memtable_ranges import delete_range
from lsmstate.cython_ext.rows.row_codec import RowBatch, RowCodec
from lsmstate.cython_ext.sstable.block_cache import BlockCache
from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.cython_ext.sstable.sst_writer import SstWriter

ROWS = pa.schema([("v", pa.binary())])
CODEC = RowCodec(ROWS)


#: See lsmstate.cython_ext.base.file.set_fault_hook.
Hook = Callable[[str, str, int, int], int | None]


class Faults:
    """Counts file operations; the one numbered ``fail_at`` (from 0) fails, and so do ``more``
    after it. ``tear`` bytes of an append are written before it fails; None: none are."""

    def __init__(
        self,
        fail_at: int = -1,
        *,
        tear: float | None = None,
        more: int = 0,
        code: int = errno.ENOSPC,
        operations: tuple[str, ...] = ("create", "append", "sync", "rename", "remove"),
    ) -> None:
        self.seen: list[tuple[str, str]] = []
        self.failed = 0
        self._first = fail_at
        self._last = fail_at + more
        self._tear = tear
        self._code = code
        self._operations = operations

    def __call__(self, operation: str, path: str, offset: int, size: int) -> int | None:
        if operation not in self._operations:
            return None
        number = len(self.seen)
        self.seen.append((operation, path))
        if not self._first <= number <= self._last:
            return None
        self.failed += 1
        if operation == "append" and self._tear is not None:
            return min(size, int(size * self._tear))
        raise OSError(self._code, f"injected fault in {operation}", path)


@contextmanager
def faults(hook: Hook) -> Iterator[Hook]:
    set_fault_hook(hook)
    try:
        yield hook
    finally:
        set_fault_hook(None)


def steps_done(hook: Hook, opened: Callable[[], Any], do: Any, script: Sequence[Any]) -> int:
    """How many steps a store acknowledged before a file operation failed; it is closed then."""
    done = 0
    with faults(hook):
        try:
            store = opened()
        except OSError:
            return 0
        try:
            for step in script:
                do(store, step)
                done += 1
        except OSError:
            pass
        finally:
            store.close()
    return done


def key_batch(*keys: bytes | None, stream: int = 0) -> KeyBatch:
    return KeyBatch.from_bytes(list(keys)).of_stream(stream)


def row_batch(*rows: bytes) -> RowBatch:
    """Rows whose encoding ends in these bytes."""
    return CODEC.encode(pa.RecordBatch.from_pydict({"v": list(rows)}, schema=ROWS))


def encoded(row: bytes) -> bytes:
    return row_batch(row).to_pylist()[0]


def memory(limit: int = 64 << 20) -> tuple[Budget, BlockCache]:
    budget = Budget(limit)
    return budget, BlockCache(budget)


def in_use(budget: Budget) -> dict[str, int]:
    """Bytes by component, without those that hold none and without the slab that is kept for the
    next memtable."""
    return {name: size for name, size in budget.usage().items() if size and name != "spare"}


def filled(
    budget: Budget,
    entries: dict[bytes, list[bytes]],
    *,
    deleted: tuple[bytes, ...] = (),
    ranges: tuple[tuple[bytes, bytes], ...] = (),
    sequence: int = 1,
    limit: int = 32 << 20,
) -> Memtable:
    """A memtable of stream 0; ``ranges`` are deleted and ``deleted`` keys reset first."""
    table = Memtable(budget, limit)
    for low, high in ranges:
        assert delete_range(table, b"\0\0" + low, b"\0\0" + high, sequence)
        sequence += 1
    if deleted:
        assert table.delete(key_batch(*deleted), sequence, 0) == len(deleted)
        sequence += 1
    keys = [key for key, rows in entries.items() for _ in rows]
    rows = [row for each in entries.values() for row in each]
    if keys:
        assert table.append(key_batch(*keys), row_batch(*rows), sequence, 0) == len(keys)
    return table


def write_sst(
    path: str,
    budget: Budget,
    source: object,
    *,
    codec: str = "lz4",
    block_bytes: int = 1024,
    filter_bits: int = 10,
    base_sequence: int = 1,
    uid: int = 0,
    bottom: bool = False,
    edit: bytes = b"edit",
    properties: bytes = b"properties",
    slice_bytes: int = 1 << 16,
) -> tuple[int, dict[str, object]]:
    """(checksum of the footer, facts) of a file with all entries of the source."""
    writer = SstWriter(
        AppendFile(path),
        budget,
        codec=codec_number(codec),
        block_bytes=block_bytes,
        filter_bits=filter_bits,
        uid=uid or random.Random(path).getrandbits(64),
        base_sequence=base_sequence,
    )
    while writer.consume(source, slice_bytes, 1 << 40, bottom) == 1:
        pass
    facts = writer.facts()
    return writer.finish(properties, edit, False), facts


def stored(
    entries: dict[bytes, list[bytes]], stream: int = 0
) -> list[tuple[bytes, int, list[bytes]]]:
    """What ``EntrySource.entries`` gives for these keys."""
    front = stream.to_bytes(2, "big")
    return [(front + key, 0, [encoded(row) for row in entries[key]]) for key in sorted(entries)]


def opened(path: str, cache: BlockCache) -> Sst:
    return Sst(path, cache)
