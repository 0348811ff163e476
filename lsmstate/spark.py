"""Streaming joins and stateful functions on Spark, and tools for their state.

- Each name is imported when it is first used.
- ``QueryState`` needs no PySpark. ``metrics_of`` needs none but the progress it is given.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lsmstate.joins.options import Skew, State, Time
    from lsmstate.spark_integration.deduplicate import deduplicate
    from lsmstate.spark_integration.demo import DemoSettings, run_demo
    from lsmstate.spark_integration.joins.asof import asof_join
    from lsmstate.spark_integration.joins.documents import natural_join
    from lsmstate.spark_integration.joins.multiway_join import multiway_join
    from lsmstate.spark_integration.joins.shares import explain_join
    from lsmstate.spark_integration.joins.similarity import similarity_join
    from lsmstate.spark_integration.metrics.listener import MetricsListener
    from lsmstate.spark_integration.metrics.prometheus import PrometheusListener
    from lsmstate.spark_integration.metrics.query import QueryMetrics, metrics_of
    from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
    from lsmstate.spark_integration.rescale.rescale import drop_original, rescale, undo_rescale
    from lsmstate.spark_integration.session.configure import configure
    from lsmstate.spark_integration.state_reader.data_source import register
    from lsmstate.spark_integration.state_reader.query_state import QueryState
    from lsmstate.spark_integration.stateful_batches import stateful_batches
    from lsmstate.spark_integration.streaming_sql import MultiwayQuery, streaming_sql, to_multiway

__all__ = [
    "Bucket",
    "DemoSettings",
    "InputBatch",
    "MetricsListener",
    "MultiwayQuery",
    "PrometheusListener",
    "QueryMetrics",
    "QueryState",
    "Skew",
    "State",
    "Time",
    "asof_join",
    "configure",
    "deduplicate",
    "drop_original",
    "explain_join",
    "metrics_of",
    "multiway_join",
    "natural_join",
    "register",
    "rescale",
    "run_demo",
    "similarity_join",
    "stateful_batches",
    "streaming_sql",
    "to_multiway",
    "undo_rescale",
]

_MODULES = {
    "Bucket": "lsmstate.spark_integration.plan.bucket",
    "DemoSettings": "lsmstate.spark_integration.demo",
    "InputBatch": "lsmstate.spark_integration.plan.bucket",
    "MetricsListener": "lsmstate.spark_integration.metrics.listener",
    "MultiwayQuery": "lsmstate.spark_integration.streaming_sql",
    "PrometheusListener": "lsmstate.spark_integration.metrics.prometheus",
    "QueryMetrics": "lsmstate.spark_integration.metrics.query",
    "QueryState": "lsmstate.spark_integration.state_reader.query_state",
    "Skew": "lsmstate.joins.options",
    "State": "lsmstate.joins.options",
    "Time": "lsmstate.joins.options",
    "asof_join": "lsmstate.spark_integration.joins.asof",
    "configure": "lsmstate.spark_integration.session.configure",
    "deduplicate": "lsmstate.spark_integration.deduplicate",
    "drop_original": "lsmstate.spark_integration.rescale.rescale",
    "explain_join": "lsmstate.spark_integration.joins.shares",
    "metrics_of": "lsmstate.spark_integration.metrics.query",
    "multiway_join": "lsmstate.spark_integration.joins.multiway_join",
    "natural_join": "lsmstate.spark_integration.joins.documents",
    "register": "lsmstate.spark_integration.state_reader.data_source",
    "rescale": "lsmstate.spark_integration.rescale.rescale",
    "run_demo": "lsmstate.spark_integration.demo",
    "similarity_join": "lsmstate.spark_integration.joins.similarity",
    "stateful_batches": "lsmstate.spark_integration.stateful_batches",
    "streaming_sql": "lsmstate.spark_integration.streaming_sql",
    "to_multiway": "lsmstate.spark_integration.streaming_sql",
    "undo_rescale": "lsmstate.spark_integration.rescale.rescale",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("pyspark", "py4j", "pandas"):  # what the extra installs
            raise
        raise ModuleNotFoundError(
            f"lsmstate.spark.{name} needs {missing}; run: pip install 'lsmstate[spark]'",
            name=missing,
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
