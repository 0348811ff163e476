"""The observation that combines the reports of buckets on a micro-batch.

It stands between the stateful node and unpack, and becomes
``StreamingQueryProgress.observedMetrics["lsmstate"]``, which ``query.py`` reads.

Spark plans an observation anew in each micro-batch, and generates code for its aggregates in each
task. So it has five of them, and whole arrays are added up where all reports have come together.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from lsmstate.spark_integration.catalyst.catalyst import observed
from lsmstate.spark_integration.metrics.fan_out import PLACES
from lsmstate.spark_integration.metrics.hottest_keys import HOTTEST
from lsmstate.spark_integration.metrics.reports import (
    COUNTERS,
    GREATEST,
    HOTTEST_TEXTS,
    NUMBERS,
    OBSERVATION,
    SIZES,
    SUMS,
)

_SIZES: Final = ("bucket", "state_rows", "state_disk_bytes")


def observe(frames: DataFrame, counters: Sequence[str] = ()) -> DataFrame:
    """Attach the observation. ``metrics`` is null in frames of results, and one array per
    bucket. ``counters`` are the join's own."""
    count = len(NUMBERS) + PLACES + len(counters)
    sizes = ", ".join(map(_of, _SIZES))
    values = {
        "buckets": "count(metrics)",
        SUMS: _combined(count, "x + y"),
        GREATEST: _combined(count, "greatest(x, y)"),
        COUNTERS: f"'{' '.join(counters)}'",
        "bucket_rows_in": f"sort_array(collect_list({_of('rows_in')}))",
        SIZES: f"flatten(collect_list(CASE WHEN metrics IS NOT NULL THEN array({sizes}) END))",
        HOTTEST_TEXTS: f"slice(sort_array(collect_list(hottest), false), 1, {HOTTEST})",
    }
    return observed(frames, OBSERVATION, [f"{value} AS {name}" for name, value in values.items()])


def _combined(count: int, function: str) -> str:
    """The reports combined place by place; zeros for a micro-batch without a bucket."""
    zeros = f"array_repeat(0L, {count})"
    return (
        f"aggregate(collect_list(metrics), {zeros}, (a, b) -> zip_with(a, b, (x, y) -> {function}))"
    )


def _of(name: str) -> str:
    """What one bucket reports."""
    return f"metrics[{NUMBERS.index(name)}]"
