"""What a task knows of its query: local properties that the driver set, and the pinned settings."""

from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned, adopt_or_pin
from lsmstate.spark_integration.checkpoint.starts import UNTOLD, Starts
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan, Wanted
from lsmstate.state_location import StatePlace

#: Local properties; ``query_start.py`` sets them on the query's own thread before its first batch.
ROOT_PROPERTY: Final = "lsmstate.root"
VERSION_PROPERTY: Final = "lsmstate.lsm.version"
REFUSAL_PROPERTY: Final = "lsmstate.refusal"
STARTS_PROPERTY: Final = "lsmstate.starts"
#: Set by Spark, which also hands every setting of the query's session to its tasks this way.
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"

PARTITIONS: Final = "spark.sql.shuffle.partitions"
FLUSH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
RETAINED_BATCHES: Final = "spark.sql.streaming.minBatchesToRetain"
#: What holds where nobody said otherwise: a setting at Spark's default does not travel.
SPARK_DEFAULTS: Final = {PARTITIONS: 200, FLUSH_ROWS: 10_000, RETAINED_BATCHES: 100}

#: What this process read of the micro-batch it is in.
_adopted: dict[tuple[StatePlace, str, int, str, int, str | None], Pinned] = {}


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One task of one micro-batch of one query."""

    place: StatePlace
    pinned: Pinned
    flush_rows: int
    retained_batches: int
    """How many micro-batches Spark may go back to."""
    batch_id: int
    partition: int
    attempt: str
    """Names the attempt among all attempts of this micro-batch."""
    task_attempt_id: int
    starts: Starts = UNTOLD
    """Of the query, where rows are routed by tables; the task is of the newest."""


def current_run(plan: StatefulPlan) -> TaskRun:
    """The run of the calling task. InvalidArgumentError says why the query cannot run."""
    context = TaskContext.get()
    if context is None:
        raise InvalidArgumentError(f"{plan.operator} runs inside a Spark task only")
    refusal = context.getLocalProperty(REFUSAL_PROPERTY)
    if refusal:
        raise InvalidArgumentError(refusal)
    batch = context.getLocalProperty(_BATCH_PROPERTY)
    query = context.getLocalProperty(_QUERY_PROPERTY)
    if batch is None or query is None:
        raise InvalidArgumentError(
            f"{plan.operator} runs in a streaming query only; start it with writeStream"
        )
    root = context.getLocalProperty(ROOT_PROPERTY) or plan.state_dir
    if root is None:
        raise InvalidArgumentError(
            "the workers do not know the query's checkpoint location; name a directory for the "
            f"state: {plan.operator}(..., state=State(state_dir=...))"
        )
    place = plan.storage.place(root)
    version = context.getLocalProperty(VERSION_PROPERTY)
    partitions = _setting(context, PARTITIONS)
    pinned = _pinned(place, plan.wanted(), partitions, query, int(batch), version)
    _check_version(pinned, version, int(batch))
    flush_rows = _setting(context, FLUSH_ROWS)
    if flush_rows <= 0:
        raise InvalidArgumentError(
            f"{FLUSH_ROWS}={flush_rows} lets Spark collect results without bound; set it to "
            f"{SPARK_DEFAULTS[FLUSH_ROWS]}, or another positive number, and start again"
        )
    starts = context.getLocalProperty(STARTS_PROPERTY)
    return TaskRun(
        place=place,
        pinned=pinned,
        flush_rows=flush_rows,
        retained_batches=max(1, _setting(context, RETAINED_BATCHES)),
        batch_id=int(batch),
        partition=context.partitionId(),
        attempt=f"{context.attemptNumber()}.{context.taskAttemptId()}",
        task_attempt_id=context.taskAttemptId(),
        starts=UNTOLD if starts is None else Starts.from_text(starts),
    )


def _check_version(pinned: Pinned, started_with: str | None, batch_id: int) -> None:
    """The buckets change between two runs of a query, and only forward."""
    if started_with is not None and int(started_with) != pinned.version:
        raise InvalidArgumentError(
            f"the state was rescaled to {pinned.buckets} buckets while the query ran; start the "
            "query again"
        )
    if batch_id < pinned.first_batch:
        raise InvalidArgumentError(
            f"micro-batch {batch_id} comes before the rescale to {pinned.buckets} buckets, which "
            f"count from micro-batch {pinned.first_batch} on; run lsmstate rescale CHECKPOINT "
            "--undo before you go back to it"
        )


def _pinned(
    place: StatePlace,
    wanted: Wanted,
    partitions: int,
    query: str,
    batch: int,
    started_with: str | None,
) -> Pinned:
    """The pinned settings. They are read per bucket if that is cheap, else once per micro-batch and
    version of the settings, because an undone rescale gives the same micro-batch other settings."""
    if place.local_directory is not None:
        return adopt_or_pin(place, wanted, partitions, query, is_new=batch == 0)
    key = (place, wanted.to_json(), partitions, query, batch, started_with)
    if key not in _adopted:
        _adopted.clear()
        _adopted[key] = adopt_or_pin(place, wanted, partitions, query, is_new=batch == 0)
    return _adopted[key]


def _setting(context: TaskContext, name: str) -> int:
    return int(context.getLocalProperty(name) or SPARK_DEFAULTS[name])
