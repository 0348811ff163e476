"""rocksdict and plyvel (LevelDB) as engines of the layouts, under one memory cap.

RocksDB: raw mode, one write batch an append, sorted list gets or one iterator a batch with prefix
filters in tables and memtable; blocks, indexes, filters and write buffers all charged to one cache
of the size of the cap. LevelDB: half the cap for its cache and half for its two write buffers (what
it holds of indexes and filters comes on top); it compresses with Snappy, having no LZ4.
"""

import os
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import Any, Self

import rocksdict

_RUNNING = ("num-running-flushes", "num-running-compactions")
_PENDING = ("mem-table-flush-pending", "compaction-pending")

#: What is pending, and does not begin to run within this time, is not due.
_PATIENCE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class RocksSetup:
    """What the sweep varies; the defaults are the best it found (docs/benchmarks/store.md)."""

    layout: str = "rows"
    compaction: str = "level"
    write_buffer_mib: int = 16
    write_buffers: int = 2
    block_kib: int = 4
    level0_files: int = 4
    index: str = "binary"
    clock_cache: bool = False
    filter_bits: int = 10
    memtable_filter: float = 0.1
    size_ratio: int = 1
    file_mib: int = 8

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``"layout=rows,block_kib=8"``, or with a plus where commas part set-ups."""
        kinds = {field.name: type(field.default) for field in fields(cls)}
        given = dict(part.split("=") for part in text.replace("+", ",").split(",") if part)
        return cls(
            **{
                name: value == "True" if kinds[name] is bool else kinds[name](value)
                for name, value in given.items()
            }
        )


class RocksEngine:
    def __init__(
        self, path: str, setup: RocksSetup, memory_bytes: int, key_bytes: int, log: bool = True
    ) -> None:
        """``key_bytes``: what the entries of one key have in common."""
        self._database = rocksdict.Rdict(path, _options(setup, memory_bytes, key_bytes))
        write: Any = rocksdict.WriteOptions()
        # The stub calls this attribute a method.
        write.disable_wal = not log
        write.memtable_insert_hint_per_batch = True
        self._write_options = write
        self._read_options = rocksdict.ReadOptions()
        self._read_options.set_prefix_same_as_start(True)
        self._read_options.set_verify_checksums(True)

    def write(self, names: list[bytes], values: list[bytes]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        deque(map(batch.put, names, values), maxlen=0)
        self._database.write(batch, self._write_options)

    def get(self, names: list[bytes]) -> list[bytes | None]:
        wanted: Any = names
        found: Any = self._database.get(wanted)
        return list(found)

    def scan(self, prefixes: list[bytes]) -> tuple[list[int], list[bytes]]:
        at = self._database.iter(self._read_options)
        seek, valid, value, following = at.seek, at.valid, at.value, at.next
        values: list[bytes] = []
        counts = []
        for prefix in prefixes:
            seek(prefix)
            before = len(values)
            # The prefix extractor ends the iteration with the prefix.
            while valid():
                values.append(value())
                following()
            counts.append(len(values) - before)
        at.status()
        return counts, values

    def settle(self) -> None:
        self._database.flush()
        last_seen = time.monotonic()
        while True:
            if self._any(_RUNNING):
                last_seen = time.monotonic()
            elif not self._any(_PENDING) or time.monotonic() - last_seen > _PATIENCE_SECONDS:
                return
            time.sleep(0.005)

    def _any(self, names: tuple[str, ...]) -> bool:
        return any(self._database.property_int_value(f"rocksdb.{name}") for name in names)

    def merge_all(self) -> None:
        # The stub asks for keys; None means without a bound.
        self._database.compact_range(None, None)
        self.settle()

    def checkpoint(self, path: str) -> None:
        """A database of its own: tables by hard links, flushed first (there may be no log)."""
        rocksdict.Checkpoint(self._database).create_checkpoint(path)

    def close(self) -> None:
        self._database.close()


def _options(setup: RocksSetup, memory_bytes: int, key_bytes: int) -> rocksdict.Options:
    cache = (
        rocksdict.Cache.new_hyper_clock_cache(memory_bytes, 0)
        if setup.clock_cache
        else rocksdict.Cache(memory_bytes)
    )
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(setup.block_kib << 10)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_pin_top_level_index_and_filter(True)
    table.set_format_version(5)
    table.set_checksum_type(rocksdict.ChecksumType.xxh3())
    kinds = rocksdict.BlockBasedIndexType
    if setup.index == "two_level":
        table.set_index_type(kinds.two_level_index_search())
        table.set_partition_filters(True)
    elif setup.index == "hash":
        table.set_index_type(kinds.hash_search())
    table.set_bloom_filter(setup.filter_bits, False)
    if setup.layout == "heads":
        table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
        table.set_data_block_hash_ratio(0.75)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    buffer_bytes = setup.write_buffer_mib << 20
    options.set_write_buffer_size(buffer_bytes)
    options.set_max_write_buffer_number(setup.write_buffers)
    options.set_write_buffer_manager(
        rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            setup.write_buffers * buffer_bytes, False, cache
        )
    )
    if setup.layout == "heads":
        options.set_memtable_whole_key_filtering(True)
    else:
        options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(key_bytes))
    options.set_memtable_prefix_bloom_ratio(setup.memtable_filter)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_bottommost_compression_type(rocksdict.DBCompressionType.lz4())
    if setup.compaction == "universal":
        options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
        universal = rocksdict.UniversalCompactOptions()
        universal.size_ratio = setup.size_ratio
        options.set_universal_compaction_options(universal)
    else:
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_max_bytes_for_level_base(4 * buffer_bytes)
    # The cache is sharded: a filter larger than a shard (1 MB of 64) is read anew for every key.
    options.set_target_file_size_base(setup.file_mib << 20)
    options.set_level_zero_file_num_compaction_trigger(setup.level0_files)
    options.set_max_background_jobs(2)
    options.set_allow_concurrent_memtable_write(False)
    options.set_max_open_files(-1)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


class LevelEngine:
    def __init__(self, path: str, memory_bytes: int) -> None:
        import plyvel

        self._database = plyvel.DB(
            path,
            create_if_missing=True,
            compression="snappy",
            lru_cache_size=memory_bytes // 2,
            write_buffer_size=memory_bytes // 4,
            bloom_filter_bits=10,
            block_size=4096,
        )

    def write(self, names: list[bytes], values: list[bytes]) -> None:
        batch = self._database.write_batch()
        deque(map(batch.put, names, values), maxlen=0)
        batch.write()

    def get(self, names: list[bytes]) -> list[bytes | None]:
        get = self._database.get
        return [get(name, verify_checksums=True) for name in names]

    def scan(self, prefixes: list[bytes]) -> tuple[list[int], list[bytes]]:
        at = self._database.raw_iterator(verify_checksums=True)
        seek, valid, item, following = at.seek, at.valid, at.item, at.next
        values: list[bytes] = []
        counts = []
        for prefix in prefixes:
            seek(prefix)
            before = len(values)
            while valid():
                name, value = item()
                if not name.startswith(prefix):
                    break
                values.append(value)
                following()
            counts.append(len(values) - before)
        at.close()
        return counts, values

    def settle(self) -> None:
        """LevelDB cannot be asked whether a merge is due: wait until it computes no more."""
        used = -1.0
        while os.times().user + os.times().system - used > 0.02:
            used = os.times().user + os.times().system
            time.sleep(0.3)

    def merge_all(self) -> None:
        self._database.compact_range()
        self.settle()

    def close(self) -> None:
        self._database.close()
