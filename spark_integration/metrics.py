"""What one bucket reports of one micro-batch, and how Spark adds it up in its progress events.

The stateful function yields one row of numbers per bucket and micro-batch; an observation between
it and unpack turns them into ``StreamingQueryProgress.observedMetrics["lsmstate"]``.
"""

from dataclasses import dataclass, fields
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

OBSERVATION: Final = "lsmstate"


@dataclass(frozen=True, slots=True)
class BucketMetrics:
    """Counters of one bucket and micro-batch; rows are counts, the rest says its unit."""

    rows_in: int
    rows_out: int
    state_memory_bytes: int
    peak_state_bytes: int
    state_disk_bytes: int
    spilled_bytes: int
    worker_rss_bytes: int
    worker_peak_rss_bytes: int
    worker_idle_rss_bytes: int
    worker_growth_bytes: int
    commit_ms: int

    def values(self) -> list[int]:
        return [int(getattr(self, field.name)) for field in fields(self)]


#: Those that are added up over the buckets; of the others the greatest counts.
_SUMMED: Final = {"rows_in", "rows_out", "state_disk_bytes", "spilled_bytes"}


def observe(frames: DataFrame) -> DataFrame:
    """Attach the observation; one null ``metrics`` array per frame, one filled per bucket."""
    found: list[Column] = [F.count(F.col("metrics")).alias("buckets")]
    for place, field in enumerate(fields(BucketMetrics)):
        value = F.col("metrics").getItem(place)
        total = F.sum(value) if field.name in _SUMMED else F.max(value)
        found.append(F.coalesce(total, F.lit(0)).alias(field.name))
    return frames.observe(OBSERVATION, *found)
