"""What each bucket reports of a micro-batch, and what Spark makes of the reports.

The stateful function yields one row of numbers per bucket and micro-batch. Spark's progress then
has arrays of them under ``OBSERVATION``: the sum and the greatest of each number, by place.
``by_name`` gives them their names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from lsmstate.spark_integration.metrics.fan_out import PLACES

OBSERVATION: Final = "lsmstate"
#: What the names of a join's own counters begin with.
COUNT: Final = "count_"
#: Among the observed metrics: for each bucket its number, and what its state takes.
SIZES: Final = "bucket_sizes"
#: Columns of an observation.
SUMS: Final = "sums"
GREATEST: Final = "greatest"
COUNTERS: Final = "counters"
HOTTEST_TEXTS: Final = "hottest"
_AS_OBSERVED: Final = ("buckets", "bucket_rows_in", SIZES, HOTTEST_TEXTS)


@dataclass(frozen=True, slots=True)
class BucketMetrics:
    """Counters of one bucket and micro-batch. Rows and keys are counts; other names end in their
    unit."""

    rows_in: int
    copied_rows: int
    taken_rows: int
    watched_rows: int
    rows_out: int
    late_rows: int
    unmatched_retractions: int
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
    memory_spare_bytes: int
    peak_state_bytes: int
    state_disk_bytes: int
    bucket: int
    state_rows: int
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
    counts: tuple[int, ...]
    """The join's own counters, in the order of the plan's."""

    def values(self) -> list[int]:
        """The numbers as they travel: those of the fan-out, and then the join's own, last."""
        numbers = (int(getattr(self, name)) for name in NUMBERS)
        return [*numbers, *self.fan_out, *self.counts]


_LISTS: Final = ("fan_out", "counts")
NUMBERS: Final = tuple(f.name for f in fields(BucketMetrics) if f.name not in _LISTS)
#: Those that are added up over the buckets.
_SUMMED: Final = (
    "rows_in",
    "copied_rows",
    "taken_rows",
    "watched_rows",
    "rows_out",
    "late_rows",
    "unmatched_retractions",
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
_OTHERWISE: Final = ("commit_us", "hand_over_us", "bucket", "state_rows")


def by_name(observed: Any) -> dict[str, Any]:
    """What was observed in a micro-batch, a Row or a mapping, by name. Numbers are 0 where no
    bucket was called."""
    counters = [f"{COUNT}{name}" for name in observed[COUNTERS].split()]
    names = (*NUMBERS, *map(str, range(PLACES)), *counters)
    sums = dict(zip(names, observed[SUMS], strict=True))
    most: Mapping[str, int] = dict(zip(names, observed[GREATEST], strict=True))
    totals = {name: sums[name] if name in _SUMMED else most[name] for name in NUMBERS}
    return {
        **{name: totals[name] for name in NUMBERS if name not in _OTHERWISE},
        **{name: sums[name] for name in counters},
        **{name: observed[name] for name in _AS_OBSERVED},
        "fan_out": [sums[str(place)] for place in range(PLACES)],
        "largest_bucket_rows_in": most["rows_in"],
        "largest_bucket_disk_bytes": most["state_disk_bytes"],
        "commit_ms": round(most["commit_us"] / 1000),
        "checkpoint_ms": sums["commit_us"] / 1000,
        "hand_over_ms": sums["hand_over_us"] / 1000,
        "longest_hand_over_ms": most["hand_over_us"] / 1000,
    }
