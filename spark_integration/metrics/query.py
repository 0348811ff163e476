"""The metrics of a micro-batch, typed: what an operator's query reports in its progress."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from lsmstate.spark_integration.metrics.hottest_keys import HotKey, hottest_keys

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

OBSERVATION: Final = "lsmstate"
_MEMORY: Final = ("memtable", "cache", "tables", "merge", "probe", "frames", "spare")


@dataclass(frozen=True, slots=True)
class QueryMetrics:
    """One micro-batch of one query, over the buckets that had rows in it.

    Sums, except what is called largest or longest, and memory, of which the worker that held the
    most counts. What is counted by the store, the backends ``rocksdb`` and ``memory`` know in part.
    """

    query_id: str
    query_name: str | None
    batch_id: int
    batch_ms: int
    """The whole micro-batch, as Spark measured it."""
    buckets: int
    """Those that had rows."""
    rows_in: int
    copied_rows: int
    """Of those, rows of spread keys that came for them: of two streams rows that looked for matches
    and are stored in another bucket, of more those of streams that are stored in several."""
    taken_rows: int
    """Earlier rows of spread keys that buckets took over from others; not among ``rows_in``."""
    rows_out: int
    late_rows: int
    """Rows that came after the watermark had passed their event time; of a join by several keys
    their copies, one a bucket."""
    unmatched_retractions: int
    """Rows of changelogs that were to be taken back and were not there; copies as above."""
    largest_bucket_rows_in: int
    watched_rows: int
    """Rows among which hot keys were counted; those of former micro-batches fade. 0 without
    ``skew``."""
    hottest_keys: tuple[HotKey, ...]
    """The hottest keys of some buckets, the one with the most rows first."""
    probed_keys: int
    """Keys that were looked up, once for each stream they were looked up in."""
    matches: int
    """Rows that are stored under the probed keys."""
    fan_out: tuple[int, ...]
    """Probed keys by the rows they found: none, 1, 2 to 3, 4 to 7, ...; the last place is open."""
    runs_searched: int
    """Pairs of a key and a sorted run that no filter ruled out."""
    filter_negatives: int
    filter_false_positives: int
    cache_hits: int
    """Blocks found in the block cache."""
    cache_misses: int
    state_memory_bytes: int
    """Before the commit."""
    peak_state_bytes: int
    memory_limit_bytes: int
    memory_bytes: Mapping[str, int]
    """By component; each is the most that one worker held."""
    state_disk_bytes: int
    largest_bucket_disk_bytes: int
    spilled_bytes: int
    """All that was written to disk, before and at the commit."""
    checkpoint_bytes: int
    """Of that, rows of this micro-batch."""
    merged_bytes: int
    """Of that, older files written anew."""
    commit_ms: int
    """The longest commit of a bucket."""
    checkpoint_ms: float
    """All commits together."""
    hand_overs: int
    """Buckets that another process had served last."""
    hand_over_ms: float
    """What opening those took, all together."""
    longest_hand_over_ms: float
    worker_rss_bytes: int
    worker_peak_rss_bytes: int
    worker_idle_rss_bytes: int
    worker_growth_bytes: int

    @property
    def hottest_key_share(self) -> float:
        """Of the watched rows those of the hottest key; 0.0 without ``skew``."""
        return self.hottest_keys[0].share if self.hottest_keys else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Blocks found in the cache, of those asked for; 0.0 if none was."""
        return _ratio(self.cache_hits, self.cache_hits + self.cache_misses)

    @property
    def filter_usefulness(self) -> float:
        """Absent keys that a filter turned away, of all absent keys it was asked for."""
        return _ratio(self.filter_negatives, self.filter_negatives + self.filter_false_positives)

    @property
    def memory_use(self) -> float:
        """The peak of the state in memory as a share of its cap."""
        return _ratio(self.peak_state_bytes, self.memory_limit_bytes)

    @property
    def write_amplification(self) -> float:
        """Bytes of files written for each byte of this micro-batch's; 1.0 is without merges."""
        return _ratio(self.checkpoint_bytes + self.merged_bytes, self.checkpoint_bytes)

    @property
    def matches_per_key(self) -> float:
        return _ratio(self.matches, self.probed_keys)

    @property
    def rows_skew(self) -> float:
        """The bucket with the most rows of this micro-batch against the mean; 1.0 is even."""
        return _ratio(self.largest_bucket_rows_in * self.buckets, self.rows_in)

    @property
    def state_skew(self) -> float:
        """The bucket with the largest state on disk against the mean of those met."""
        return _ratio(self.largest_bucket_disk_bytes * self.buckets, self.state_disk_bytes)


def metrics_of(progress: "StreamingQueryProgress") -> QueryMetrics | None:
    """The metrics in a progress (``query.lastProgress``, ``event.progress``); None if the query
    holds no operator of ours."""
    observed: Mapping[str, Any] | Any = (progress["observedMetrics"] or {}).get(OBSERVATION)
    if observed is None:
        return None
    found: dict[str, Any] = {
        "query_id": str(progress["id"]),
        "query_name": progress["name"],
        "batch_id": progress["batchId"],
        "batch_ms": progress["batchDuration"],
        "fan_out": tuple(observed["fan_out"]),
        "hottest_keys": hottest_keys(observed["hottest"], observed["watched_rows"]),
        "memory_bytes": {name: observed[f"memory_{name}_bytes"] for name in _MEMORY},
    }
    for field in fields(QueryMetrics):
        if field.name not in found:
            found[field.name] = observed[field.name]
    return QueryMetrics(**found)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
