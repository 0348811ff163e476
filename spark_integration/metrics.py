"""What one bucket reports of one micro-batch, and how Spark adds it up in its progress events.

The stateful function yields one row of numbers per bucket and micro-batch; an observation between
it and unpack turns them into ``StreamingQueryProgress.observedMetrics["lsmstate"]``, which
``query_metrics.py`` reads.
"""

from dataclasses import dataclass, fields
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_integration.fan_out import PLACES
from spark_integration.query_metrics import OBSERVATION


@dataclass(frozen=True, slots=True)
class BucketMetrics:
    """Counters of one bucket and micro-batch; rows and keys are counts, the rest says its unit."""

    rows_in: int
    rows_out: int
    late_rows: int
    probed_keys: int
    matches: int
    runs_searched: int
    filter_negatives: int
    filter_false_positives: int
    cache_hits: int
    cache_misses: int
    state_memory_bytes: int
    memory_limit_bytes: int
    memory_memtable_bytes: int
    memory_cache_bytes: int
    memory_tables_bytes: int
    memory_merge_bytes: int
    memory_probe_bytes: int
    memory_frames_bytes: int
    peak_state_bytes: int
    state_disk_bytes: int
    spilled_bytes: int
    checkpoint_bytes: int
    merged_bytes: int
    commit_us: int
    hand_overs: int
    hand_over_us: int
    worker_rss_bytes: int
    worker_peak_rss_bytes: int
    worker_idle_rss_bytes: int
    worker_growth_bytes: int
    fan_out: tuple[int, ...]

    def values(self) -> list[int]:
        """As they travel: the fan-out's places behind all others."""
        return [*(int(getattr(self, name)) for name in _NUMBERS), *self.fan_out]


_NUMBERS: Final = tuple(f.name for f in fields(BucketMetrics) if f.name != "fan_out")
#: Those that are added up over the buckets.
_SUMMED: Final = (
    "rows_in",
    "rows_out",
    "late_rows",
    "probed_keys",
    "matches",
    "runs_searched",
    "filter_negatives",
    "filter_false_positives",
    "cache_hits",
    "cache_misses",
    "state_disk_bytes",
    "spilled_bytes",
    "checkpoint_bytes",
    "merged_bytes",
    "hand_overs",
)
#: Those that are shown otherwise than by their sum or their greatest.
_OTHERWISE: Final = ("commit_us", "hand_over_us")


def observe(frames: DataFrame) -> DataFrame:
    """Attach the observation; one null ``metrics`` array per frame, one filled per bucket."""
    found: list[Column] = [F.count(F.col("metrics")).alias("buckets")]
    for name in _NUMBERS:
        if name not in _OTHERWISE:
            found.append((_sum(name) if name in _SUMMED else _greatest(name)).alias(name))
    found += [
        _greatest("rows_in").alias("largest_bucket_rows_in"),
        _greatest("state_disk_bytes").alias("largest_bucket_disk_bytes"),
        F.round(_greatest("commit_us") / 1000).cast("bigint").alias("commit_ms"),
        (_sum("commit_us") / 1000).alias("checkpoint_ms"),
        (_sum("hand_over_us") / 1000).alias("hand_over_ms"),
        (_greatest("hand_over_us") / 1000).alias("longest_hand_over_ms"),
        F.array([_zero_if_none(F.sum(_item(len(_NUMBERS) + i))) for i in range(PLACES)]).alias(
            "fan_out"
        ),
    ]
    return frames.observe(OBSERVATION, *found)


def _sum(name: str) -> Column:
    return _zero_if_none(F.sum(_item(_NUMBERS.index(name))))


def _greatest(name: str) -> Column:
    return _zero_if_none(F.max(_item(_NUMBERS.index(name))))


def _item(place: int) -> Column:
    return F.col("metrics").getItem(place)


def _zero_if_none(total: Column) -> Column:
    """A micro-batch without a bucket has no numbers."""
    return F.coalesce(total, F.lit(0))
