"""End a query as it starts, with a sentence as the exception that every waiting call raises.

Spark swallows what a listener raises, and while no data arrives it starts no task that could fail.
The query's own fields can do it: its death cause is what ``exception()`` and ``awaitTermination()``
raise. A query that is terminated when its start event has been posted runs no batch and ends in the
usual way. Both fields are internal to Spark, but public in its bytecode.
"""

from typing import Any

from py4j.protocol import Py4JError


def refuse(query: Any, jvm: Any, sentence: str) -> bool:
    """End the query. A listener's ``onQueryStarted`` calls it with the JVM's StreamExecution.

    Returns:
        False, and nothing has changed, if this release of Spark keeps those fields elsewhere.
    """
    try:
        cause = jvm.java.lang.IllegalArgumentException(sentence)
        parameters = {
            "id": query.id().toString(),
            "runId": query.runId().toString(),
            "message": sentence,
        }
        death = jvm.org.apache.spark.sql.streaming.StreamingQueryException(
            "", cause, "", "", "STREAM_FAILED", jvm.PythonUtils.toScalaMap(parameters)
        )
        terminated = _terminated(query.state().get())
        getattr(query, "streamDeathCause_$eq")(death)
    except (Py4JError, TypeError):
        return False
    query.state().set(terminated)
    return True


def _terminated(initial: Any) -> Any:
    """The state TERMINATED, a Scala object beside INITIALIZING; its package is the release's."""
    kind = initial.getClass()
    name = kind.getName().replace("INITIALIZING", "TERMINATED")
    return kind.getClassLoader().loadClass(name).getField("MODULE$").get(None)
