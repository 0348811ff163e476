"""Measure one call of a stateful function: opening the store of its bucket, its work, the
commit."""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from lsmstate.spark_integration.metrics.fan_out import FanOut
from lsmstate.spark_integration.metrics.reports import BucketMetrics
from lsmstate.spark_integration.metrics.state_figures import UNKNOWN
from lsmstate.spark_integration.metrics.worker_memory import measure
from lsmstate.stats import CacheStats, StoreStats
from lsmstate.store import MultimapStore

#: Buckets of which a process remembers what it committed last; there are at most as many a query.
_REMEMBERED: Final = 4096

#: Directory of a bucket -> the pointer this process committed last.
_committed: "OrderedDict[str, str]" = OrderedDict()


class CallMetrics:
    """The measurements of one call: construct, ``opened``, ``commit``, ``result``, in this order.

    A bucket is *handed over* to this process if another process committed the pointer at which it
    is opened. Nothing of it is then cached here.
    """

    def __init__(self, directory: str, pointer: str | None, bucket: int = 0) -> None:
        self.bucket = bucket
        self.rows_in = 0
        self.copied_rows = 0
        self.watched_rows = 0
        self.taken_rows = 0
        self.rows_out = 0
        #: The join's own counters.
        self.counts: Mapping[str, int] = {}
        #: Those that are shown beside the ones of every join.
        self.counters: Sequence[str] = ()
        self.fan_out = FanOut()
        self._directory = directory
        self._is_handed_over = pointer is not None and _committed.get(directory) != pointer
        self._opening = time.perf_counter()
        self._open_seconds = self._commit_seconds = 0.0
        self._cache = CacheStats()
        self._before: StoreStats | None = None

    def opened(self, store: MultimapStore) -> None:
        """Record that the store is open. What was read so far is the cost of the hand-over."""
        self._open_seconds = time.perf_counter() - self._opening
        self._cache = store.stats().cache

    def watched(self, rows: int, taken: int) -> None:
        """Record the counts of skew, which ``BucketMetrics`` explains."""
        self.watched_rows = rows
        self.taken_rows = taken

    def commit(self, store: MultimapStore) -> str:
        """Commit the store, and measure it; returns the pointer."""
        self._before = store.stats()
        started = time.perf_counter()
        pointer = store.commit()
        self._commit_seconds = time.perf_counter() - started
        _committed.pop(self._directory, None)
        _committed[self._directory] = pointer
        if len(_committed) > _REMEMBERED:
            _committed.popitem(last=False)
        return pointer

    def result(self, store: MultimapStore) -> BucketMetrics:
        """All measurements."""
        assert self._before is not None, "commit() comes first"
        before, after, worker = self._before, store.stats(), measure()
        memory = before.memory
        return BucketMetrics(
            rows_in=self.rows_in,
            copied_rows=self.copied_rows,
            taken_rows=self.taken_rows,
            watched_rows=self.watched_rows,
            rows_out=self.rows_out,
            late_rows=self.counts.get("late_rows", 0),
            unmatched_retractions=self.counts.get("unmatched_retractions", 0),
            probed_keys=after.probes.keys,
            matches=self.fan_out.matches,
            runs_searched=after.probes.runs_searched,
            filter_negatives=after.filters.negatives,
            filter_false_positives=after.filters.false_positives,
            cache_hits=after.cache.hits - self._cache.hits,
            cache_misses=after.cache.misses - self._cache.misses,
            state_memory_bytes=before.memory_bytes,
            memory_limit_bytes=after.memory_limit_bytes,
            memory_memtable_bytes=memory.get("memtable", 0),
            memory_cache_bytes=memory.get("cache", 0),
            memory_tables_bytes=memory.get("tables", 0),
            memory_merge_bytes=memory.get("merge", 0),
            memory_probe_bytes=memory.get("probe", 0),
            memory_frames_bytes=memory.get("frames", 0),
            memory_spare_bytes=memory.get("spare", 0),
            peak_state_bytes=after.peak_memory_bytes,
            state_disk_bytes=after.disk_bytes,
            bucket=self.bucket,
            state_rows=after.counters.get("rows", UNKNOWN),
            spilled_bytes=after.spilled_bytes,
            checkpoint_bytes=after.writes.flushed_bytes,
            merged_bytes=after.writes.merged_bytes,
            commit_us=round(self._commit_seconds * 1e6),
            hand_overs=int(self._is_handed_over),
            hand_over_us=round(self._open_seconds * 1e6) if self._is_handed_over else 0,
            worker_rss_bytes=worker.now,
            worker_peak_rss_bytes=worker.peak,
            worker_idle_rss_bytes=worker.idle,
            worker_growth_bytes=worker.growth,
            fan_out=tuple(self.fan_out.keys()),
            counts=tuple(self.counts.get(name, 0) for name in self.counters),
        )
