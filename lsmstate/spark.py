"""Joins on Spark Structured Streaming; PySpark is imported when a name is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_integration.api import multiway_join
    from spark_integration.demo import DemoSettings, run_demo

__all__ = ["DemoSettings", "multiway_join", "run_demo"]

_MODULES = {
    "DemoSettings": "spark_integration.demo",
    "multiway_join": "spark_integration.api",
    "run_demo": "spark_integration.demo",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
