"""Setup of a RocksDB database, and conversion of its errors."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import rocksdict

from lsmstate.errors import CorruptionError
from lsmstate.options import MIB, Options
from lsmstate.stats import FilterStats

_TICKER: Final = re.compile(r"rocksdb\.(\S+) COUNT : (\d+)")


class PendingWrite:
    """Writes that are to be made atomically, and what they have changed so far."""

    def __init__(self) -> None:
        self.writes = rocksdict.WriteBatch(raw_mode=True)
        #: Changed entries by key, and chunks by name.
        self.changed: dict[bytes, bytes | None] = {}
        self.chunks: dict[bytes, list[bytes]] = {}
        self._deleted: list[tuple[bytes, bytes]] = []

    def entries(self, names: Sequence[bytes], stored: Sequence[bytes | None]) -> list[bytes | None]:
        """Return the keys' entries, as stored or as changed since."""
        return [
            self.changed[name] if name in self.changed else self._left(name, entry)
            for name, entry in zip(names, stored, strict=True)
        ]

    def _left(self, name: bytes, entry: bytes | None) -> bytes | None:
        return None if any(low <= name < high for low, high in self._deleted) else entry

    def delete_range(self, low: bytes, high: bytes, families: Iterable[Any]) -> None:
        """Delete the keys from ``low`` on and below ``high`` in ``families``."""
        if low >= high:
            return
        for family in families:
            # The name of a chunk begins with its key, and a bound is no longer than a key.
            self.writes.delete_range(low, high, family)
        self._deleted.append((low, high))
        for name in self.changed:
            if low <= name < high:
                self.changed[name] = None


def database_options(
    options: Options,
    cache: rocksdict.Cache,
    buffers: rocksdict.WriteBufferManager,
    *,
    with_filter: bool,
) -> rocksdict.Options:
    """Return options that charge everything RocksDB holds to one cache: blocks, indexes, filters
    and write buffers."""
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(options.block_limit_bytes)
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_format_version(5)
    if with_filter and options.filter_bits_per_key:
        table.set_bloom_filter(options.filter_bits_per_key, False)
        table.set_partition_filters(True)
    found = rocksdict.Options(raw_mode=True)
    found.create_if_missing(True)
    found.create_missing_column_families(True)
    found.set_block_based_table_factory(table)
    found.set_write_buffer_manager(buffers)
    found.set_write_buffer_size(max(64 << 10, options.memtable_limit_bytes // 2))
    found.set_arena_block_size(64 << 10)
    found.set_max_write_buffer_number(2)
    # Counts and rows are flushed together: attempts have no log that could repair a difference.
    found.set_atomic_flush(True)
    found.set_compression_type(_compression(options.compression))
    found.set_bottommost_compression_type(_compression(options.bottom_compression))
    found.set_level_zero_file_num_compaction_trigger(options.fanout)
    found.set_target_file_size_base(options.file_bytes)
    found.set_max_background_jobs(2)
    found.set_max_open_files(256)
    found.set_keep_log_file_num(1)
    found.set_max_log_file_size(1 * MIB)
    found.set_stats_dump_period_sec(0)
    found.set_stats_persist_period_sec(0)
    found.set_paranoid_checks(True)
    return found


def _compression(name: str) -> rocksdict.DBCompressionType:
    kinds = rocksdict.DBCompressionType
    return {"lz4": kinds.lz4, "zstd": kinds.zstd, "none": kinds.none}[name]()


def counted(options: rocksdict.Options) -> Counter[str]:
    """Return what a database has counted since it was opened, by RocksDB's names without
    ``rocksdb.``; nothing if its options do not ask for it."""
    lines = (options.get_statistics() or "").splitlines()
    found = (_TICKER.fullmatch(line) for line in lines)
    return Counter({match[1]: int(match[2]) for match in found if match is not None})


def filter_stats(seen: Mapping[str, int]) -> FilterStats:
    """Return the counters of the filters from what ``counted`` returns."""
    negatives, positives = seen["bloom.filter.useful"], seen["bloom.filter.full.positive"]
    misled = positives - seen["bloom.filter.full.true.positive"]
    return FilterStats(negatives + positives, negatives, misled)


def close_parts(path: str, parts: list[rocksdict.Rdict]) -> None:
    """Close a database and its column families, the last one first; the list is empty then.

    A part that cannot be flushed is closed all the same. The first error is raised at the end.
    """
    error: Exception | None = None
    while parts:
        try:
            # It is closed already if an interrupt came between the two steps.
            with contextlib.suppress(rocksdict.DbClosedError), rocks_errors(path):
                parts[-1].close()
        except Exception as failed:  # noqa: BLE001 - raised below
            error = error or failed
        parts.pop()
    if error is not None:
        raise error


@contextlib.contextmanager
def rocks_errors(path: str) -> Iterator[None]:
    """Convert rocksdict's bare Exceptions, which carry RocksDB's text, to lsmstate's errors."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        message = str(error)
        if message.startswith("Corruption"):
            raise CorruptionError(
                f"{message}; restore the file or start from another checkpoint", path, 0
            ) from error
        raise OSError(f"{path}: {message}") from error
