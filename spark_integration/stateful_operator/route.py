"""route: the rows of one input become frames, each with the bucket that it belongs to.

It runs once per input, before the shuffle. If null keys match nothing, rows with one stop here.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from lsmstate.joins.protocols import Role, Router
from lsmstate.joins.routing.hash import NO_BUCKET
from lsmstate.spark_integration.checkpoint.task_run import current_run
from lsmstate.spark_integration.columns.schemas import as_schema
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.frames import FramePacker
from lsmstate.spark_integration.stateful_operator.task_router import called_buckets, router_of

RouteFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def route_function(plan: StatefulPlan, number: int) -> RouteFunction:
    """The function that mapInArrow runs over input ``number`` of the operator."""
    asked, source = plan, plan.inputs[number]
    routed = source.routed
    framed = plan.framed(source)

    def route(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        run = current_run(asked)
        plan = asked.settled(run.pinned.buckets, run.pinned.adopted)
        ids = pa.array(run.pinned.bucket_ids, pa.int64()).to_numpy()
        packers = {role: FramePacker(number, run.partition, role) for role in Role}
        router: Router | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = as_schema(batch, routed)
            own, keys = source.rows_of(rows), source.keys_of(rows)
            if router is None:
                router = router_of(plan, source, run, (source.name, own, keys))
            found = router.route(own, keys)
            if not np.array_equal(found.positions, np.arange(rows.num_rows)):
                rows = rows.take(pa.array(found.positions))
            if found.marks is not None:
                columns = [*rows.columns, *found.marks.columns]
                rows = pa.RecordBatch.from_arrays(columns, schema=framed)
            buckets = ids[found.buckets]
            if found.roles is None:
                yield from packers[Role.STORE].add(rows, buckets)
                continue
            for role, packer in packers.items():
                yield from packer.add(rows, np.where(found.roles == role, buckets, NO_BUCKET))
        packers[Role.STORE].call(ids[bucket] for bucket in called_buckets(plan, run))
        for packer in packers.values():
            yield from packer.finish()

    return route
