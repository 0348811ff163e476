"""Joins on Spark Structured Streaming; PySpark is imported when a name is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_integration.api import multiway_join

__all__ = ["multiway_join"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_integration import api

    return getattr(api, name)
