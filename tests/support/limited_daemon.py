"""Spark's daemon of Python workers, which all get a limit on their memory (RLIMIT_DATA).

Set ``spark.python.daemon.module`` to ``support.limited_daemon`` and LIMIT_BYTES in the environment.
"""

import os
import resource

from pyspark import daemon

if __name__ == "__main__":
    limit = int(os.environ["LIMIT_BYTES"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    daemon.manager()
