"""The report of a bucket on a micro-batch, and how Spark combines the reports in its progress.

The stateful function yields one row of numbers per bucket and micro-batch. An observation between
it and unpack turns them into ``StreamingQueryProgress.observedMetrics["lsmstate"]``, which
``query.py`` reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from pyspark.sql import DataFrame

from lsmstate.spark_integration.catalyst.catalyst import observed
from lsmstate.spark_integration.metrics.fan_out import PLACES
from lsmstate.spark_integration.metrics.hottest_keys import HOTTEST, place_prefix
from lsmstate.spark_integration.metrics.query import COUNT, OBSERVATION
from lsmstate.spark_integration.metrics.state_figures import SIZES


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
        numbers = (int(getattr(self, name)) for name in _NUMBERS)
        return [*numbers, *self.fan_out, *self.counts]


_LISTS: Final = ("fan_out", "counts")
_NUMBERS: Final = tuple(f.name for f in fields(BucketMetrics) if f.name not in _LISTS)
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


def observe(frames: DataFrame, counters: Sequence[str] = ()) -> DataFrame:
    """Attach the observation. ``metrics`` is null in frames of results, and one array per
    bucket. ``counters`` are the join's own."""
    values = {"buckets": "count(metrics)"}
    for name in _NUMBERS:
        if name not in _OTHERWISE:
            values[name] = _sum(name) if name in _SUMMED else _greatest(name)
    fan_out = (_total("sum", len(_NUMBERS) + place) for place in range(PLACES))
    sizes = ", ".join(map(_of, ("bucket", "state_rows", "state_disk_bytes")))
    hottest = (f"max(CASE WHEN {_is_at(place)} THEN hottest END)" for place in range(HOTTEST))
    values |= {
        "largest_bucket_rows_in": _greatest("rows_in"),
        "largest_bucket_disk_bytes": _greatest("state_disk_bytes"),
        "commit_ms": f"cast(round({_greatest('commit_us')} / 1000) AS bigint)",
        "checkpoint_ms": f"{_sum('commit_us')} / 1000",
        "hand_over_ms": f"{_sum('hand_over_us')} / 1000",
        "longest_hand_over_ms": f"{_greatest('hand_over_us')} / 1000",
        "bucket_rows_in": f"sort_array(collect_list({_of('rows_in')}))",
        SIZES: f"flatten(collect_list(CASE WHEN metrics IS NOT NULL THEN array({sizes}) END))",
        "fan_out": f"array({', '.join(fan_out)})",
        "hottest": f"array({', '.join(hottest)})",
    }
    first = len(_NUMBERS) + PLACES
    values |= {
        f"{COUNT}{name}": _total("sum", first + place) for place, name in enumerate(counters)
    }
    return observed(frames, OBSERVATION, [f"{value} AS {name}" for name, value in values.items()])


def _of(name: str) -> str:
    """What one bucket reports."""
    return f"metrics[{_NUMBERS.index(name)}]"


def _sum(name: str) -> str:
    return _total("sum", _NUMBERS.index(name))


def _greatest(name: str) -> str:
    return _total("max", _NUMBERS.index(name))


def _is_at(place: int) -> str:
    """Whether a bucket's hottest key competes for this of the places that are shown."""
    return f"startswith(hottest, '{place_prefix(place)}')"


def _total(function: str, place: int) -> str:
    """The total; 0 for a micro-batch without a bucket."""
    return f"coalesce({function}(metrics[{place}]), 0)"
