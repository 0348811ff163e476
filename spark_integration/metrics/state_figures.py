"""Rows and bytes of a whole state, from the reports of those buckets that had rows."""

from collections.abc import Mapping
from typing import Any, Final

from lsmstate.spark_integration.catalyst.state_operators import set_figures
from lsmstate.spark_integration.metrics.query import QueryMetrics
from lsmstate.spark_integration.metrics.reports import SIZES

#: Rows of a state whose backend does not count them.
UNKNOWN: Final = -1
#: Of a bucket: rows in files, and bytes on disk.
Sizes = dict[int, tuple[int, int]]


class StateFigures:
    """Adds up the buckets of one query, and tells Spark's progress.

    Args:
        jvm: The JVM.
        known: The buckets that an earlier run has reported.
    """

    def __init__(self, jvm: Any, known: Mapping[int, tuple[int, int]]) -> None:
        self._java = jvm
        self.sizes: Sizes = dict(known)

    def told(self, metrics: QueryMetrics, observed: Any, progress: Any) -> None:
        """Take the report of a micro-batch, and set Spark's figures in its progress of the JVM."""
        flat = list(observed[SIZES])
        for bucket, rows, size in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            self.sizes[int(bucket)] = (int(rows), int(size))
        rows = [rows for rows, _ in self.sizes.values()]
        figures = {
            **({"numRowsTotal": sum(rows)} if UNKNOWN not in rows else {}),
            "numRowsUpdated": metrics.rows_in,
            "memoryUsedBytes": metrics.state_memory_bytes,
        }
        disk = {"lsmstateDiskBytes": sum(size for _, size in self.sizes.values())}
        set_figures(progress, self._java, figures, disk)
