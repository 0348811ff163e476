"""Stateful operators on Spark, and looking into them; a name is imported when it is first used.

``QueryState`` needs no PySpark, ``metrics_of`` none beside a progress.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_integration.api import multiway_join
    from spark_integration.bucket import Bucket, InputBatch
    from spark_integration.data_source import register
    from spark_integration.demo import DemoSettings, run_demo
    from spark_integration.metrics_listener import MetricsListener
    from spark_integration.prometheus import PrometheusListener
    from spark_integration.query_metrics import QueryMetrics, metrics_of
    from spark_integration.query_state import QueryState
    from spark_integration.rescale import drop_original, rescale, undo_rescale
    from spark_integration.shares_choice import explain_join
    from spark_integration.stateful_batches import stateful_batches
    from spark_integration.streaming_sql import MultiwayQuery, streaming_sql, to_multiway

__all__ = [
    "Bucket",
    "DemoSettings",
    "InputBatch",
    "MetricsListener",
    "MultiwayQuery",
    "PrometheusListener",
    "QueryMetrics",
    "QueryState",
    "drop_original",
    "explain_join",
    "metrics_of",
    "multiway_join",
    "register",
    "rescale",
    "run_demo",
    "stateful_batches",
    "streaming_sql",
    "to_multiway",
    "undo_rescale",
]

_MODULES = {
    "Bucket": "spark_integration.bucket",
    "DemoSettings": "spark_integration.demo",
    "InputBatch": "spark_integration.bucket",
    "MetricsListener": "spark_integration.metrics_listener",
    "MultiwayQuery": "spark_integration.streaming_sql",
    "PrometheusListener": "spark_integration.prometheus",
    "QueryMetrics": "spark_integration.query_metrics",
    "QueryState": "spark_integration.query_state",
    "drop_original": "spark_integration.rescale",
    "explain_join": "spark_integration.shares_choice",
    "metrics_of": "spark_integration.query_metrics",
    "multiway_join": "spark_integration.api",
    "register": "spark_integration.data_source",
    "rescale": "spark_integration.rescale",
    "run_demo": "spark_integration.demo",
    "stateful_batches": "spark_integration.stateful_batches",
    "streaming_sql": "spark_integration.streaming_sql",
    "to_multiway": "spark_integration.streaming_sql",
    "undo_rescale": "spark_integration.rescale",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
