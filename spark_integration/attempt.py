"""The store of one bucket for one task attempt: opened at a pointer, given up with the attempt.

Workers change between micro-batches, so nothing is kept open across them; what an attempt wrote
and did not commit is named by no pointer and harms nobody.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lsmstate.backends import open_attempt
from lsmstate.errors import InvalidArgumentError
from lsmstate.null_safe_store import NullSafeStore, null_safe_streams
from lsmstate.store import MultimapStore
from spark_integration.buckets import bucket_directory_name
from spark_integration.plan import StatefulPlan
from spark_integration.run import TaskRun


def bucket_directory(run: TaskRun, bucket: int) -> str:
    """Where the files of a bucket lie; made if it is not there."""
    path = os.path.join(run.root, bucket_directory_name(bucket))
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"the state directory {path} cannot be written to ({error.strerror}); make it "
            "writable for the user Spark runs as, or choose another with state_dir"
        ) from error
    return path


@contextmanager
def attempt_store(
    plan: StatefulPlan, run: TaskRun, directory: str, pointer: str | None
) -> Iterator[MultimapStore]:
    """The bucket's store as the last accepted micro-batch left it. Cost: one manifest read."""
    store = open_attempt(
        directory,
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
