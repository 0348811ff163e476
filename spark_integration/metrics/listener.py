"""A listener that follows the queries of a session: one line of log per micro-batch, and typed
metrics for whoever wants them."""

import logging
from collections.abc import Callable
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lsmstate.options import MIB
from lsmstate.spark_integration.metrics.query import QueryMetrics, metrics_of

_log: Final = logging.getLogger("lsmstate")


class MetricsListener(StreamingQueryListener):
    """Register it with ``spark.streams.addListener(MetricsListener(...))``.

    Each micro-batch of a query that holds an operator of ours is logged under ``lsmstate`` at
    level INFO and given to ``on_batch``; other queries are left alone. It is called on Spark's
    listener thread, after the micro-batch: what it raises, Spark logs and drops.
    """

    def __init__(self, on_batch: Callable[[QueryMetrics], object] | None = None) -> None:
        self._on_batch = on_batch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch has ended."""
        metrics = metrics_of(event.progress)
        if metrics is not None:
            _log.info("%s", described(metrics))
            if self._on_batch is not None:
                self._on_batch(metrics)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing to do."""


def described(metrics: QueryMetrics) -> str:
    """A micro-batch in one line."""
    cap = metrics.memory_limit_bytes / MIB
    return (
        f"query {metrics.query_name or metrics.query_id} batch {metrics.batch_id}: "
        f"{metrics.rows_in} rows in, {metrics.rows_out} out, {metrics.batch_ms} ms; "
        f"{metrics.buckets} buckets, skew {metrics.rows_skew:.1f}{_hot(metrics)}; "
        f"{metrics.probed_keys} keys probed, {metrics.matches} matches; "
        f"memory {metrics.peak_state_bytes / MIB:.1f} of {cap:.1f} MiB, "
        f"disk {metrics.state_disk_bytes / MIB:.1f} MiB; "
        f"cache {metrics.cache_hit_rate:.0%}, filters {metrics.filter_usefulness:.0%}; "
        f"wrote {metrics.spilled_bytes / MIB:.1f} MiB, longest commit {metrics.commit_ms} ms; "
        f"{metrics.hand_overs} hand-overs, {metrics.hand_over_ms:.0f} ms"
    )


def _hot(metrics: QueryMetrics) -> str:
    if not metrics.hottest_keys:
        return ""
    hot = metrics.hottest_keys[0]
    spread = f", {hot.spread} spread" if hot.spread else ""
    return f", hottest key {hot.key} ({hot.share:.0%} of the rows{spread})"
