"""Joins on Spark, and looking into them; a name is imported when it is first used.

``QueryState`` needs no PySpark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_integration.api import multiway_join
    from spark_integration.data_source import register
    from spark_integration.demo import DemoSettings, run_demo
    from spark_integration.query_state import QueryState

__all__ = ["DemoSettings", "QueryState", "multiway_join", "register", "run_demo"]

_MODULES = {
    "DemoSettings": "spark_integration.demo",
    "QueryState": "spark_integration.query_state",
    "multiway_join": "spark_integration.api",
    "register": "spark_integration.data_source",
    "run_demo": "spark_integration.demo",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
