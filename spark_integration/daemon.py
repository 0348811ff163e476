"""PySpark's worker daemon with the imports done: a worker costs a fork, not a second of CPU.

Spark forks every Python worker from one daemon, and each worker imports pandas, pyarrow and
lsmstate anew. With ``spark.python.daemon.module=lsmstate.spark_integration.daemon`` they are
imported once, and all workers share their memory.

Spark names ``pyspark.zip`` first, which holds no byte code: each daemon and worker would compile
what it imports of it. PySpark is therefore imported from its folder.

Invariant: no thread runs beside the daemon's own. A fork copies no thread, and a lock that another
thread holds at that moment stays locked in the worker for ever. That is why Spark's daemon does not
import them.
"""

# ruff: noqa: E402, F401

import gc
import importlib.abc
import os
import sys

# Each starts threads of its library as it is imported. The workers inherit what is set here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # Spark's own default is the cores of a task
os.environ.setdefault("ARROW_IO_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

from lsmstate.spark_integration.session.unpacked_pyspark import import_unpacked

import_unpacked()

import pyarrow as pa
import pyarrow.parquet
import pyspark.sql.pandas.serializers
import pyspark.worker
from pyspark.daemon import manager

from lsmstate.spark_integration.metrics.worker_memory import ENVIRONMENT, ROWS_ENVIRONMENT, WORKER


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """Finds no pandas."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError("these workers do without pandas")


# Each pool of workers has a daemon, which imports what its workers run.
if os.environ.get(WORKER) == ROWS_ENVIRONMENT[WORKER]:
    # pyarrow looks for pandas once, as it makes its first array, and imports it: a second of CPU.
    # Nothing that routes rows or unpacks results has a use for it.
    sys.meta_path.insert(0, _WithoutPandas())
    pa.array([None])
    del sys.meta_path[0]
    import lsmstate.spark_integration.stateful_operator.route
    import lsmstate.spark_integration.stateful_operator.unpack
else:
    import pandas
if os.environ.get(WORKER) == ENVIRONMENT[WORKER]:
    import pyarrow.dataset
    import pyspark.testing.utils  # GroupState.update does

    import lsmstate.lsm.store
    import lsmstate.spark_integration.joins.run_join
    import lsmstate.spark_integration.stateful_operator.body

if __name__ == "__main__":
    # Spark's worker collects garbage after each task. What was imported is none: without it that
    # takes microseconds instead of 60 ms, and copies no memory that the workers share.
    gc.collect()
    gc.freeze()
    # A worker begins by reading the index of each archive anew, once for each of its folders.
    sys.path_importer_cache.clear()
    manager()
