"""A stateful operator in Spark's plan: route, the stateful node, metrics, unpack."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import (
    analyzed_plan,
    is_classic,
    mapped_together,
    scaled,
)
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.checkpoint.commit_pointer import state_type
from lsmstate.spark_integration.checkpoint.pinned_settings import check_settings
from lsmstate.spark_integration.columns.arrow_substitutes import carried_type, restore
from lsmstate.spark_integration.columns.decimals import small_decimals
from lsmstate.spark_integration.columns.key_columns import travelling
from lsmstate.spark_integration.columns.schemas import WATERMARK_METADATA
from lsmstate.spark_integration.metrics import observation as metrics
from lsmstate.spark_integration.metrics.worker_memory import ENVIRONMENT, ROWS_ENVIRONMENT
from lsmstate.spark_integration.plan.bucket import BucketFunction
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.body import OUTPUT_TYPE, stateful_function
from lsmstate.spark_integration.stateful_operator.frames import FRAME_TYPE
from lsmstate.spark_integration.stateful_operator.query_start import (
    PLAN_METADATA,
    listen,
    operators_in,
)
from lsmstate.spark_integration.stateful_operator.result_products import RowArrays
from lsmstate.spark_integration.stateful_operator.route import route_function
from lsmstate.spark_integration.stateful_operator.unpack import (
    product_function,
    unpack_function,
)
from lsmstate.state_location import local_path

#: Buckets per core, where the number of cores is known.
_BUCKETS_PER_CORE: Final = 2
_BUCKETS_OTHERWISE: Final = 8

_environment_lock = threading.Lock()


def default_buckets(spark: SparkSession) -> int:
    """The number of buckets of a query that does not set one."""
    if not is_classic(spark):
        return _BUCKETS_OTHERWISE
    return max(1, _BUCKETS_PER_CORE * spark.sparkContext.defaultParallelism)


def stateful_operator(
    plan: StatefulPlan, inputs: Inputs, function: BucketFunction, output: T.StructType
) -> DataFrame:
    """Build the operator.

    Args:
        plan: What the workers must know of it.
        inputs: The inputs.
        function: The stateful function.
        output: Columns of the result.

    Returns:
        The result of ``function`` over all buckets.

    Raises:
        InvalidArgumentError: An input is the result of another operator, the session is one of
            Spark Connect and the plan has no state directory, or that directory has the state of
            another operator.
    """
    spark = next(iter(inputs.frames.values())).sparkSession
    has_jvm = is_classic(spark)
    if has_jvm:
        _check_not_nested(inputs, plan.operator)
        listen(spark)
    elif plan.state_dir is None:
        raise InvalidArgumentError(
            "under Spark Connect the workers do not know the query's checkpoint location; name a "
            f"directory that they can write to: {plan.operator}(..., state=State(state_dir=...))"
        )
    if plan.state_dir is not None and local_path(plan.state_dir) is not None:
        check_settings(plan.state_dir, plan.wanted())  # elsewhere it is looked at when it starts
    with _workers(spark, ROWS_ENVIRONMENT):
        routed = _routed(plan, inputs)
    with _workers(spark, ENVIRONMENT):
        results = routed.groupBy("bucket").applyInPandasWithState(
            stateful_function(plan, function),
            OUTPUT_TYPE,
            state_type(),
            plan.output_mode,
            "EventTimeTimeout" if plan.watches_time else "NoTimeout",
        )
    # The rows that only make the worker hand its results over are many: neither the observation nor
    # unpack must see them.
    told = results.where(F.col("payload").isNotNull() | F.col("metrics").isNotNull())
    payloads = metrics.observe(told, plan.counters)
    with _workers(spark, ROWS_ENVIRONMENT):
        return _unpacked(payloads, plan, output)


def _check_not_nested(inputs: Inputs, operator: str) -> None:
    """Spark allows one such operator in a query, and its own message would not say which one."""
    for name, frame in inputs.frames.items():
        for found in operators_in(analyzed_plan(frame))[:1]:
            other = "another" if found.operator == operator else "a"
            raise InvalidArgumentError(
                f"input {name!r} is the result of {other} {found.operator}, and Spark allows one "
                "such operator in a query; give all streams to one operator, or write the first "
                "result to a table and read that table as a stream"
            )


def _routed(plan: StatefulPlan, inputs: Inputs) -> DataFrame:
    """All inputs as frames, in one DataFrame. The plan's settings are metadata of its bucket
    column."""
    functions = []
    for number, source in enumerate(plan.inputs):
        frame = inputs.frames[source.name]
        keys = inputs.keys_of(source.name)
        rows = travelling(frame, source.name, keys, source.key_positions)
        functions.append((rows, route_function(plan, number)))
    bucket, *others = FRAME_TYPE
    marked = T.StructField(
        bucket.name, bucket.dataType, metadata={PLAN_METADATA: plan.wanted().to_json()}
    )
    routed = mapped_together(functions, T.StructType([marked, *others]))
    if not plan.watches_time:
        return routed
    # mapInArrow dropped the mark by which Spark hands the watermark over. It is on a column of
    # nulls, since Spark drops a frame whose time is late, whatever its rows' times are.
    time = F.lit(None).cast("timestamp").alias("et", metadata={WATERMARK_METADATA: 0})
    return routed.select("*", time)


def _unpacked(payloads: DataFrame, plan: StatefulPlan, output: T.StructType) -> DataFrame:
    """The rows in the frames, with the columns of the result."""
    make = multiplied_results if len(plan.parts) > 1 else flat_results
    return make(payloads, plan, output)


def multiplied_results(payloads: DataFrame, plan: StatefulPlan, output: T.StructType) -> DataFrame:
    """The rows in the frames, which leave unpack as products."""
    arrays = RowArrays.of(plan, output)
    products = payloads.mapInArrow(product_function(plan, arrays), arrays.schema)
    return _with_types(arrays.multiplied(products), output, {})


def flat_results(payloads: DataFrame, plan: StatefulPlan, output: T.StructType) -> DataFrame:
    """The rows in the frames, which unpack makes."""
    decimals = small_decimals(output) if is_classic(payloads.sparkSession) else {}
    travelled = T.StructType(
        [
            T.StructField(
                f.name,
                T.LongType() if f.name in decimals else carried_type(f.dataType),
                f.nullable,
                f.metadata,
            )
            for f in output
        ]
    )
    integers = [place for place, f in enumerate(output) if f.name in decimals]
    rows = payloads.mapInArrow(unpack_function(plan, integers), travelled)
    return _with_types(rows, output, scaled(rows, decimals) if decimals else {})


def _with_types(rows: DataFrame, output: T.StructType, restored: Mapping[str, Column]) -> DataFrame:
    """The rows with the types of the result, where they travelled as other types."""
    others = {
        f.name: restore(F.col(quoted(f.name)), f.dataType)
        for f in output
        if carried_type(f.dataType) != f.dataType
    }
    metadata = {f.name: f.metadata for f in output}
    named = {
        name: column.alias(name, metadata=metadata[name])
        for name, column in {**restored, **others}.items()
    }
    return rows.withColumns(named) if named else rows


@contextmanager
def _workers(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Give the functions that are made meanwhile workers of their own. Spark keeps one pool of
    workers per environment, so route and unpack start no more of those that hold state."""
    if not is_classic(spark):
        yield
        return
    environment = spark.sparkContext.environment
    with _environment_lock:
        before = dict(environment)
        environment.update(wanted)
        try:
            yield
        finally:
            environment.clear()
            environment.update(before)
