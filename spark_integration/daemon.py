"""PySpark's worker daemon with the imports done: a worker costs a fork, not a second of CPU.

Spark forks every Python worker from one daemon, and each worker imports pandas, pyarrow and
lsmstate anew. With ``spark.python.daemon.module=lsmstate.spark_integration.daemon`` they are
imported once, and all workers share their memory.

Invariant: no thread runs beside the daemon's own. A fork copies no thread, and a lock that another
thread holds at that moment stays locked in the worker for ever. That is why Spark's daemon does not
import them.
"""

import gc
import os

# Each starts threads of its library as it is imported. The workers inherit what is set here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # Spark's own default is the cores of a task
os.environ.setdefault("ARROW_IO_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from lsmstate.spark_integration.metrics.worker_memory import ENVIRONMENT, WORKER

# Two pools of workers have a daemon each, which imports what its workers run.
if os.environ.get(WORKER) == ENVIRONMENT[WORKER]:
    import lsmstate.lsm.store
    import lsmstate.spark_integration.joins.run_join
    import lsmstate.spark_integration.stateful_operator.body
else:
    import lsmstate.spark_integration.stateful_operator.route
    import lsmstate.spark_integration.stateful_operator.unpack  # noqa: F401

if __name__ == "__main__":
    # Spark's worker collects garbage after each task. What was imported is none: without it that
    # takes microseconds instead of 60 ms, and copies no memory that the workers share.
    gc.collect()
    gc.freeze()
    manager()
