"""route: the rows of one input -> frames, each with the bucket it belongs to.

Runs once per input, before the shuffle. Where null keys match nothing, rows with one stop here.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from cython_ext.key_codec import KeyCodec
from joins.routing.hash import NO_BUCKET, bucket_of
from lsmstate.null_safe_store import null_safe_keys, null_safe_schema
from spark_integration.frames import FramePacker
from spark_integration.plan import StatefulPlan
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
        codec = KeyCodec(null_safe_schema(source.key) if plan.keeps_null_keys else source.key)
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = as_schema(batch, routed)
            keys = source.keys_of(rows)
            encoded = codec.encode(null_safe_keys(keys) if plan.keeps_null_keys else keys)
            buckets = bucket_of(encoded, run.pinned.buckets)
            has_bucket = buckets != NO_BUCKET
            buckets[has_bucket] = ids[buckets[has_bucket]]
            yield from packer.add(rows, buckets)
        yield from packer.finish()

    return route
