"""Spark looks for Python data sources in modules of such names; this is ours."""

from lsmstate.spark_integration.state_reader.data_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
