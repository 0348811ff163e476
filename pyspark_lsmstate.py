"""The data source ``lsmstate`` under the module name in which Spark looks for it."""

from lsmstate.spark_integration.state_reader.data_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
