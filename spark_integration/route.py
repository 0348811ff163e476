"""route: the rows of one input -> frames, each with the bucket it belongs to.

Runs once per input, before the shuffle. Where null keys match nothing, rows with one stop here.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from spark_integration.frames import FramePacker
from spark_integration.plan import StatefulPlan
from spark_integration.routers import router_of
from spark_integration.run import current_run
from spark_integration.schemas import as_schema

RouteFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def route_function(plan: StatefulPlan, number: int) -> RouteFunction:
    """The function mapInArrow runs over input ``number`` of the operator."""
    source = plan.inputs[number]
    routed = source.routed

    def route(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        run = current_run(plan)
        ids = pa.array(run.pinned.bucket_ids, pa.int64()).to_numpy()
        packer = FramePacker(number, run.partition)
        router = router_of(plan, source, run.pinned)
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = as_schema(batch, routed)
            positions, buckets = router.route(source.keys_of(rows))
            if not np.array_equal(positions, np.arange(rows.num_rows)):
                rows = rows.take(pa.array(positions))
            yield from packer.add(rows, ids[buckets])
        yield from packer.finish()

    return route
