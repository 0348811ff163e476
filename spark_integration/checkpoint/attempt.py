"""The store of one bucket for one task attempt: opened at a pointer, closed with the attempt.

Workers change between micro-batches, so nothing stays open across them. No pointer names what an
attempt wrote and did not commit, so it does no harm.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lsmstate.errors import InvalidArgumentError
from lsmstate.opening import open_attempt
from lsmstate.remote.bucket import DurableBucket
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.store import MultimapStore
from lsmstate.store_base.null_safe import NullSafeStore, null_safe_streams


def bucket_files(run: TaskRun, bucket: int) -> str | DurableBucket:
    """The place of a bucket's files: a local directory, which is created if needed, or a remote
    one."""
    try:
        return run.place.bucket(bucket)
    except OSError as error:
        raise InvalidArgumentError(
            f"the state directory {run.place.where} cannot be written to ({error.strerror}); make "
            "it writable for the user Spark runs as, or choose another with state_dir"
        ) from error


def working_directory(files: str | DurableBucket) -> str:
    """A local directory of the bucket, for files that end with the task."""
    return files if isinstance(files, str) else files.directory


@contextmanager
def attempt_store(
    plan: StatefulPlan, run: TaskRun, files: str | DurableBucket, pointer: str | None
) -> Iterator[MultimapStore]:
    """The store of a bucket, as the last accepted micro-batch left it. Cost: one manifest read."""
    store = open_attempt(
        files,
        null_safe_streams(plan.state) if plan.keeps_null_keys else plan.state,
        backend=plan.backend,
        pointer=pointer,
        batch_id=run.batch_id,
        # Task attempt ids repeat after a restart of the driver, names of files never may.
        attempt_id=f"{run.attempt}-{uuid.uuid4().hex[:12]}",
        options=replace(plan.options, retained_batches=run.retained_batches),
    )
    try:
        yield NullSafeStore(plan.state, store) if plan.keeps_null_keys else store
    finally:
        store.close()
