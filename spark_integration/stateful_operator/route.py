"""route: the rows of one input become frames, each with the bucket that it belongs to.

It runs once per input, before the shuffle. If null keys match nothing, rows with one stop here.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from lsmstate.joins.routing.hash import NO_BUCKET
from lsmstate.spark_integration.checkpoint.task_run import current_run
from lsmstate.spark_integration.columns.schemas import as_schema
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.frames import FramePacker
from lsmstate.spark_integration.stateful_operator.routers import called_buckets, router_of

RouteFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def route_function(plan: StatefulPlan, number: int) -> RouteFunction:
    """The function that mapInArrow runs over input ``number`` of the operator."""
    source = plan.inputs[number]
    routed = source.routed

    def route(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        run = current_run(plan)
        ids = pa.array(run.pinned.bucket_ids, pa.int64()).to_numpy()
        stored = FramePacker(number, run.partition)
        probing = FramePacker(number, run.partition, is_stored=False)
        router = router_of(plan, source, run)
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = as_schema(batch, routed)
            positions, buckets, is_stored = router.route(rows)
            if not np.array_equal(positions, np.arange(rows.num_rows)):
                rows = rows.take(pa.array(positions))
            if is_stored is None:
                yield from stored.add(rows, ids[buckets])
            else:
                yield from stored.add(rows, np.where(is_stored, ids[buckets], NO_BUCKET))
                yield from probing.add(rows, np.where(is_stored, NO_BUCKET, ids[buckets]))
        stored.call(ids[bucket] for bucket in called_buckets(plan, run))
        yield from stored.finish()
        yield from probing.finish()

    return route
