"""Metrics of queries for Prometheus (``pip install 'lsmstate[prometheus]'``)."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import (
        REGISTRY,
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "PrometheusListener needs prometheus_client; run: pip install 'lsmstate[prometheus]'",
        name=error.name,
    ) from error
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from lsmstate.spark_integration.metrics.fan_out import PLACES, least_rows
from lsmstate.spark_integration.metrics.listener import MetricsListener
from lsmstate.spark_integration.metrics.query import QueryMetrics, metrics_of

#: Field of QueryMetrics -> what it counts, added up over the micro-batches since the query began.
_COUNTERS: Final = {
    "rows_in": "Rows that arrived at buckets.",
    "copied_rows": "Rows among rows_in that are there because a hot key is spread.",
    "taken_rows": "Earlier rows of spread keys that new buckets copied.",
    "rows_out": "Rows of the result.",
    "late_rows": "Rows that came after the watermark had passed their event time.",
    "unmatched_retractions": "Retractions of rows that were not stored.",
    "probed_keys": "Keys that were probed in a stream.",
    "matches": "Rows stored under the probed keys.",
    "runs_searched": "Pairs of a key and a sorted run that no filter ruled out.",
    "filter_negatives": "Absent keys that a filter turned away.",
    "filter_false_positives": "Absent keys that a filter let through.",
    "cache_hits": "Blocks found in the block cache.",
    "cache_misses": "Blocks read from disk.",
    "spilled_bytes": "Bytes of state written to disk.",
    "checkpoint_bytes": "Part of the spilled bytes: rows of the micro-batch.",
    "merged_bytes": "Part of the spilled bytes: older files that were merged.",
    "hand_overs": "Buckets that another process had served before.",
}
_SECONDS: Final = {
    "checkpoint_ms": ("checkpoint_seconds", "Commits of buckets."),
    "hand_over_ms": ("hand_over_seconds", "Opening buckets that another process had served."),
}
#: Those of the last micro-batch.
_GAUGES: Final = {
    "batch_id": "The last micro-batch.",
    "buckets": "Buckets that had rows.",
    "peak_state_bytes": "Peak memory of the state of a worker.",
    "memory_limit_bytes": "Memory cap of the state of a worker.",
    "state_disk_bytes": "State on disk of the buckets that had rows.",
    "worker_rss_bytes": "Resident memory of the largest worker.",
    "commit_ms": "Longest commit of a bucket, in milliseconds.",
    "longest_hand_over_ms": "Longest opening of a bucket, in milliseconds.",
    "rows_skew": "Rows of the fullest bucket, divided by the mean.",
    "hottest_key_share": "Share of the hottest key among the counted rows.",
    "state_skew": "Disk of the largest bucket, divided by the mean.",
}


@dataclass
class _Query:
    """A running query and its totals."""

    last: QueryMetrics
    totals: dict[str, float] = field(default_factory=dict)
    fan_out: list[int] = field(default_factory=lambda: [0] * PLACES)
    counts: dict[str, int] = field(default_factory=dict)
    """The join's own counters."""

    def add(self, metrics: QueryMetrics) -> None:
        self.last = metrics
        for name in (*_COUNTERS, *_SECONDS):
            self.totals[name] = self.totals.get(name, 0) + getattr(metrics, name)
        for name, count in metrics.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.fan_out = [a + b for a, b in zip(self.fan_out, metrics.fan_out, strict=True)]


class PrometheusListener(MetricsListener):
    """Export the metrics of a session's running queries as ``lsmstate_...{query="name or id"}``.

    The program starts the server. A query is exported from its first micro-batch until it
    terminates. If two queries have one name, the second one is exported under its id.

    Args:
        registry: Registry of the metrics. Default: that of Prometheus.

    Example:
        ```python
        spark.streams.addListener(PrometheusListener())
        prometheus_client.start_http_server(9100, addr="127.0.0.1")
        ```
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._registry = registry
        registry.register(self)

    def close(self) -> None:
        """Remove the metrics from the registry. Remove the listener from the session first."""
        self._registry.unregister(self)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Add the metrics of a micro-batch. MetricsListener logs it, this listener does not."""
        metrics = metrics_of(event.progress)
        if metrics is not None:
            with self._lock:
                query = self._queries.setdefault(metrics.query_id, _Query(metrics))
                query.add(metrics)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Remove the metrics of the query."""
        with self._lock:
            self._queries.pop(str(event.id), None)

    def describe(self) -> Iterator[Metric]:
        """Nothing is described in advance; the registry asks as it registers."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The metrics of all queries. The registry calls it, in any thread."""
        with self._lock:
            queries = {
                label: (query.last, dict(query.totals), list(query.fan_out))
                for label, query in self._labelled()
            }
            counts = {label: dict(query.counts) for label, query in self._labelled()}
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(f"lsmstate_{name}", text, labels=["query"])
            for label, (_, totals, _) in queries.items():
                family.add_metric([label], totals[name])
            yield family
        for name, (shown, text) in _SECONDS.items():
            family = CounterMetricFamily(f"lsmstate_{shown}", text, labels=["query"])
            for label, (_, totals, _) in queries.items():
                family.add_metric([label], totals[name] / 1000)
            yield family
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"lsmstate_{name}", text, labels=["query"])
            for label, (last, _, _) in queries.items():
                gauge.add_metric([label], getattr(last, name))
            yield gauge
        memory = GaugeMetricFamily(
            "lsmstate_memory_bytes", "State in memory.", labels=["query", "component"]
        )
        fan_out = HistogramMetricFamily(
            "lsmstate_fan_out", "Rows that probed keys found.", labels=["query"]
        )
        for label, (last, totals, keys) in queries.items():
            for component, size in last.memory_bytes.items():
                memory.add_metric([label, component], size)
            fan_out.add_metric([label], _cumulated(keys), totals["matches"])
        yield memory
        yield fan_out
        own = CounterMetricFamily(
            "lsmstate_join_count", "Counters of one kind of join.", labels=["query", "counter"]
        )
        for label, found in counts.items():
            for name, count in found.items():
                own.add_metric([label, name], count)
        yield own

    def _labelled(self) -> Iterator[tuple[str, _Query]]:
        taken: set[str] = set()
        for query_id, query in self._queries.items():
            name = query.last.query_name
            label = query_id if name is None or name in taken else name
            taken.add(label)
            yield label, query


def _cumulated(keys: list[int]) -> list[tuple[str, int]]:
    """Buckets of Prometheus: how many keys found at most so many rows."""
    buckets: list[tuple[str, int]] = []
    total = 0
    for place, count in enumerate(keys):
        total += count
        is_last = place == len(keys) - 1
        most = "+Inf" if is_last else str(float(least_rows(place + 1) - 1))
        buckets.append((most, total))
    return buckets
