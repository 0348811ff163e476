"""A listener that logs one line per micro-batch and hands out typed metrics."""

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
    """Follow the queries of a session: one log line and one callback per micro-batch.

    Only queries with an operator of lsmstate are followed. The line goes to the logger ``lsmstate``
    at level INFO. The callback runs on Spark's listener thread after the micro-batch; Spark logs
    and drops what it raises.

    Args:
        on_batch: Function that is called with the metrics of each micro-batch.

    Example:
        ```python
        listener = MetricsListener(lambda metrics: print(metrics.rows_skew))
        spark.streams.addListener(listener)
        ```
    """

    def __init__(self, on_batch: Callable[[QueryMetrics], object] | None = None) -> None:
        self._on_batch = on_batch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Log the metrics of a micro-batch and call ``on_batch``."""
        metrics = metrics_of(event.progress)
        if metrics is not None:
            _log.info("%s", described(metrics))
            if self._on_batch is not None:
                self._on_batch(metrics)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


def described(metrics: QueryMetrics) -> str:
    """The metrics of a micro-batch in one line."""
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
