"""Events of a query as the JVM has them, which PySpark copies into Python.

PySpark makes its copy of a progress in more than a hundred calls, whether a listener needs it or
not. Here a listener gets the JVM's own progress. Its JSON takes one call.
"""

import json
from collections.abc import Callable
from typing import Any, Final, cast

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from lsmstate.spark_integration.catalyst.catalyst import java_class

_WRAPPER: Final = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"
#: What JSON leaves out where it is empty.
_EMPTY: Final = {"name": None, "observedMetrics": None}


class _Events(JStreamingQueryListener):
    """What the JVM calls: PySpark's own, except for a progress."""

    def __init__(self, listener: StreamingQueryListener, progressed: Callable[[Any], None]) -> None:
        super().__init__(listener)
        self._progressed = progressed

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        self._progressed(jevent.progress())


def java_listener(
    jvm: Any, listener: StreamingQueryListener, progressed: Callable[[Any], None]
) -> Any:
    """The listener as the JVM takes it. ``progressed`` is called with each progress of the JVM in
    place of ``onQueryProgress``."""
    return java_class(jvm, _WRAPPER)(_Events(listener, progressed))


def progress_of(progress: Any) -> StreamingQueryProgress:
    """A progress of the JVM by the names of its fields, as ``query.lastProgress`` has them."""
    # Read by name only, which a dictionary does as well.
    return cast("StreamingQueryProgress", {**_EMPTY, **json.loads(progress.json())})
