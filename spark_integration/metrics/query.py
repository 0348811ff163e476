"""Typed metrics of a micro-batch, read from Spark's progress report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from lsmstate.shown import Shown, ShownTable, fields_shown
from lsmstate.spark_integration.metrics.hottest_keys import HotKey, hottest_keys
from lsmstate.spark_integration.metrics.reports import COUNT, OBSERVATION, by_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

#: What is computed from the fields.
RATIOS: Final = (
    *("memory_use", "cache_hit_rate", "filter_usefulness", "write_amplification"),
    *("matches_per_key", "rows_skew", "state_skew", "hottest_key_share"),
)
_MEMORY: Final = ("memtable", "cache", "tables", "merge", "probe", "frames", "spare")


@dataclass(frozen=True, slots=True)
class QueryMetrics(Shown):
    """Metrics of one micro-batch of one query, over the buckets that had rows in it.

    Values are sums over these buckets, except those that are called largest or longest. Memory is
    that of the worker that held the most. The backends "rocksdb" and "memory" know only some of the
    store's counters; the others are 0.
    """

    query_id: str
    query_name: str | None
    batch_id: int
    batch_ms: int
    """The whole micro-batch, as Spark measured it."""
    buckets: int
    """Number of buckets that had rows."""
    rows_in: int
    copied_rows: int
    """Rows among ``rows_in`` that are there because a hot key is spread. In a join of two streams,
    they probe this bucket and are stored in another one. With more streams, they are rows of
    streams that are stored in several buckets."""
    taken_rows: int
    """Earlier rows of spread keys that new buckets copied (backfill); not among ``rows_in``."""
    rows_out: int
    late_rows: int
    """Rows that came after the watermark had passed their event time. In a join by several keys
    each copy of a row counts."""
    unmatched_retractions: int
    """Retractions of rows that were not stored. In a join by several keys each copy counts."""
    largest_bucket_rows_in: int
    bucket_rows_in: tuple[int, ...]
    """Rows of each of these buckets, the fewest first."""
    watched_rows: int
    """Rows among which hot keys were counted; rows of earlier micro-batches count less and less.
    0 without ``skew``."""
    hottest_keys: tuple[HotKey, ...]
    """The hottest keys, the one with the most rows first; at most one per bucket."""
    probed_keys: int
    """Keys that were probed, once per stream that they were probed in."""
    matches: int
    """Rows stored under the probed keys."""
    fan_out: tuple[int, ...]
    """Histogram of probed keys by the rows they found: none, 1, 2 to 3, 4 to 7, and so on; the last
    place has no upper end."""
    runs_searched: int
    """Pairs of a key and a sorted run that no filter ruled out."""
    filter_negatives: int
    filter_false_positives: int
    cache_hits: int
    """Blocks found in the block cache."""
    cache_misses: int
    state_memory_bytes: int
    """Memory of the state before the commit."""
    peak_state_bytes: int
    memory_limit_bytes: int
    memory_bytes: Mapping[str, int]
    """Memory by component; each value is the most that one worker held."""
    state_disk_bytes: int
    largest_bucket_disk_bytes: int
    spilled_bytes: int
    """Bytes written to disk, before and at the commit."""
    checkpoint_bytes: int
    """Part of ``spilled_bytes``: rows of this micro-batch."""
    merged_bytes: int
    """Part of ``spilled_bytes``: older files that were merged."""
    commit_ms: int
    """The longest commit of a bucket."""
    checkpoint_ms: float
    """Sum of all commits."""
    hand_overs: int
    """Buckets that another process had served before."""
    hand_over_ms: float
    """Time to open those buckets, summed."""
    longest_hand_over_ms: float
    worker_rss_bytes: int
    worker_peak_rss_bytes: int
    worker_idle_rss_bytes: int
    worker_growth_bytes: int
    counts: Mapping[str, int]
    """The join's own counters, by name."""

    @property
    def hottest_key_share(self) -> float:
        """Share of the watched rows that have the hottest key; 0.0 without ``skew``."""
        return self.hottest_keys[0].share if self.hottest_keys else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of the blocks asked for that were in the cache; 0.0 if none was asked for."""
        return _ratio(self.cache_hits, self.cache_hits + self.cache_misses)

    @property
    def filter_usefulness(self) -> float:
        """Share of the absent keys that a Bloom filter turned away."""
        return _ratio(self.filter_negatives, self.filter_negatives + self.filter_false_positives)

    @property
    def memory_use(self) -> float:
        """Peak memory of the state, as a share of its cap."""
        return _ratio(self.peak_state_bytes, self.memory_limit_bytes)

    @property
    def write_amplification(self) -> float:
        """Bytes written to files per byte of this micro-batch; 1.0: nothing was merged."""
        return _ratio(self.checkpoint_bytes + self.merged_bytes, self.checkpoint_bytes)

    @property
    def matches_per_key(self) -> float:
        """Mean number of rows stored under a probed key."""
        return _ratio(self.matches, self.probed_keys)

    @property
    def rows_skew(self) -> float:
        """Rows of the fullest bucket of this micro-batch, divided by the mean; 1.0 is even."""
        return _ratio(self.largest_bucket_rows_in * self.buckets, self.rows_in)

    @property
    def rows_gini(self) -> float:
        """Gini coefficient of the rows of these buckets: 0.0 is even, near 1.0 one has them all."""
        ranks = range(1 - len(self.bucket_rows_in), len(self.bucket_rows_in), 2)
        weighed = sum(rank * rows for rank, rows in zip(ranks, self.bucket_rows_in, strict=True))
        return _ratio(weighed, len(self.bucket_rows_in) * self.rows_in)

    @property
    def state_skew(self) -> float:
        """Disk of the largest of these buckets, divided by their mean."""
        return _ratio(self.largest_bucket_disk_bytes * self.buckets, self.state_disk_bytes)

    def _as_tables(self) -> Iterable[ShownTable]:
        """All fields and ratios."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        own["fan_out"] = " ".join(map(str, self.fan_out))
        own["hottest_keys"] = "; ".join(
            f"{each.key}: {each.rows} rows, {each.share:.1%}" for each in self.hottest_keys
        )
        ratios = {name: getattr(self, name) for name in RATIOS}
        yield fields_shown(f"QueryMetrics of micro-batch {self.batch_id}", {**own, **ratios})


def metrics_of(progress: "StreamingQueryProgress") -> QueryMetrics | None:
    """Read the metrics of a micro-batch from a progress report.

    Args:
        progress: ``query.lastProgress``, or ``event.progress`` in a listener.

    Returns:
        The metrics; None if the query has no operator of lsmstate.

    Example:
        ```python
        metrics = metrics_of(query.lastProgress)
        print(metrics.rows_out, metrics.peak_state_bytes, metrics.hottest_keys)
        ```
    """
    reported = (progress["observedMetrics"] or {}).get(OBSERVATION)
    if reported is None:
        return None
    observed = by_name(reported)
    found: dict[str, Any] = {
        "query_id": str(progress["id"]),
        "query_name": progress["name"],
        "batch_id": progress["batchId"],
        "batch_ms": progress["batchDuration"],
        "fan_out": tuple(observed["fan_out"]),
        "bucket_rows_in": tuple(observed["bucket_rows_in"]),
        "hottest_keys": hottest_keys(observed["hottest"], observed["watched_rows"]),
        "counts": {
            name.removeprefix(COUNT): count
            for name, count in observed.items()
            if name.startswith(COUNT)
        },
        "memory_bytes": {name: observed[f"memory_{name}_bytes"] for name in _MEMORY},
    }
    for field in fields(QueryMetrics):
        if field.name not in found:
            found[field.name] = observed[field.name]
    return QueryMetrics(**found)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
