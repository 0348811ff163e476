"""pyspark's daemon with the imports done: starting a worker costs a fork, not a second of CPU.

Spark forks every Python worker from one daemon, and pandas, pyarrow and lsmstate are imported after
the fork, in each worker again. ``spark.python.daemon.module=spark_integration.daemon`` has them
imported once; their memory is then shared by all workers as well.
"""

import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import spark_integration.stateful_body  # noqa: F401

if __name__ == "__main__":
    manager()
