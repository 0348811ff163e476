"""What a task knows of the query it runs in: local properties the driver set, and query.json."""

from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from lsmstate.errors import InvalidArgumentError
from spark_integration.pinned import Pinned, adopt_or_pin
from spark_integration.plan import JoinPlan

#: Local properties; ``query.py`` sets them on the query's own thread before its first batch.
ROOT_PROPERTY: Final = "lsmstate.root"
PARTITIONS_PROPERTY: Final = "lsmstate.partitions"
FLUSH_ROWS_PROPERTY: Final = "lsmstate.flushRows"
RETAINED_PROPERTY: Final = "lsmstate.retainedBatches"
REFUSAL_PROPERTY: Final = "lsmstate.refusal"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"

#: Spark's default for spark.sql.execution.arrow.maxRecordsPerBatch, where nobody said otherwise.
_DEFAULT_FLUSH_ROWS: Final = 10_000
#: The same for spark.sql.streaming.minBatchesToRetain.
_DEFAULT_RETAINED_BATCHES: Final = 100


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One task of one micro-batch of one query."""

    root: str
    pinned: Pinned
    flush_rows: int
    retained_batches: int
    """How many micro-batches Spark may go back to."""
    batch_id: int
    partition: int
    attempt: str
    """Names the attempt among all attempts of this micro-batch."""
    task_attempt_id: int


def current_run(plan: JoinPlan) -> TaskRun:
    """The run of the calling task. InvalidArgumentError says why the query cannot run."""
    context = TaskContext.get()
    if context is None:
        raise InvalidArgumentError("the join runs inside a Spark task only")
    refusal = context.getLocalProperty(REFUSAL_PROPERTY)
    if refusal:
        raise InvalidArgumentError(refusal)
    batch = context.getLocalProperty(_BATCH_PROPERTY)
    query = context.getLocalProperty(_QUERY_PROPERTY)
    if batch is None or query is None:
        raise InvalidArgumentError(
            "the join runs in a streaming query only; start it with writeStream"
        )
    root = context.getLocalProperty(ROOT_PROPERTY) or plan.state_dir
    if root is None:
        raise InvalidArgumentError(
            "the workers were not told where the query's checkpoint lies; name a directory for "
            "the state: multiway_join(..., state_dir=...)"
        )
    partitions = int(context.getLocalProperty(PARTITIONS_PROPERTY) or plan.default_buckets)
    return TaskRun(
        root=root,
        pinned=adopt_or_pin(root, plan.wanted(), partitions, query),
        flush_rows=int(context.getLocalProperty(FLUSH_ROWS_PROPERTY) or _DEFAULT_FLUSH_ROWS),
        retained_batches=int(
            context.getLocalProperty(RETAINED_PROPERTY) or _DEFAULT_RETAINED_BATCHES
        ),
        batch_id=int(batch),
        partition=context.partitionId(),
        attempt=f"{context.attemptNumber()}.{context.taskAttemptId()}",
        task_attempt_id=context.taskAttemptId(),
    )
