"""The function that applyInPandasWithState calls, once per bucket and micro-batch.

    put the frames in order -> open the store at the pointer -> the operator's function -> commit

Invariant: the pointer goes to Spark after the last frame of results. A call that fails or is closed
early leaves the previous pointer in place.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState

from lsmstate.joins.protocols import Role
from lsmstate.options import MIB
from lsmstate.spark_integration.checkpoint.attempt import (
    attempt_store,
    bucket_files,
    working_directory,
)
from lsmstate.spark_integration.checkpoint.commit_pointer import read_pointer, write_pointer
from lsmstate.spark_integration.checkpoint.task_run import TaskRun, current_run
from lsmstate.spark_integration.metrics.call import CallMetrics
from lsmstate.spark_integration.metrics.worker_memory import give_back, settle
from lsmstate.spark_integration.plan.bucket import Bucket, BucketFunction, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.skew.key_watch import KeyWatch
from lsmstate.spark_integration.stateful_operator.borrowed_store import lent
from lsmstate.spark_integration.stateful_operator.frames import FrameSpool, joined
from lsmstate.spark_integration.stateful_operator.result_checks import checked_results
from lsmstate.spark_integration.stateful_operator.result_frames import ResultFrame, ResultPacker
from lsmstate.spark_integration.tables.table_watch import TableWatch

OUTPUT_TYPE: Final = (
    T.StructType()
    .add("rows", T.IntegerType())
    .add("payload", T.BinaryType())
    .add("metrics", T.ArrayType(T.LongType()))
    .add("hottest", T.StringType())
)
_COLUMNS: Final = tuple(OUTPUT_TYPE.names)
#: A function is given batches of about this, and under a small cap of that part of it: a put of
#: the rows of one batch has to fit into an eighth of the cap, also where it makes them wider.
_BATCH_BYTES: Final = 1 * MIB
_BATCH_SHARE: Final = 64
#: Results that may wait in the worker before it is made to hand them over.
_PENDING_BYTES: Final = 4 * MIB

StatefulFunction = Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Any]


def stateful_function(plan: StatefulPlan, function: BucketFunction) -> StatefulFunction:
    """The function that Spark calls per bucket. It yields frames of results and one row of
    metrics."""
    asked, pacer = plan, _Pacer()

    def call(
        key: tuple[Any, ...], pieces: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        settle()
        run = current_run(asked)
        plan = asked.settled(run.pinned.buckets, run.pinned.adopted)
        packer = ResultPacker(plan)
        watermark_ms = state.getCurrentWatermarkMs() if plan.watches_time else 0
        # 0: no watermark yet. Spark's own operators take it for the year 1970.
        watermark_us = watermark_ms * 1000 if watermark_ms > 0 else None
        number, ids = int(key[0]), run.pinned.bucket_ids
        bucket = Bucket(
            number,
            run.batch_id,
            plan.output,
            watermark_us,
            place=ids.index(number) if number in ids else -1,
            buckets=run.pinned.buckets,
        )
        files = bucket_files(run, bucket.number)
        directory = working_directory(files)
        with closing(FrameSpool(directory, min(plan.memory_bytes // 8, 8 * MIB))) as spool:
            for frames in pieces:
                spool.add(frames)
            previous = read_pointer(state, run.pinned.pointers.get(bucket.number))
            measured = CallMetrics(directory, previous, number)
            with attempt_store(plan, run, files, previous) as store:
                measured.opened(store)
                batches = _batches(plan, spool, measured)
                watch = KeyWatch(plan, store, run, bucket) if plan.skew else None
                if watch is not None:
                    batches = watch.passing(batches)
                observed = TableWatch.of(plan, store, run, bucket)
                if observed is not None:
                    batches = observed.passing(batches)
                waiting: list[ResultFrame] = []
                with lent(store, bucket, measured.fan_out) as borrowed:
                    found = checked_results(function, bucket, batches, borrowed)
                    for frame in packer.frames(found):
                        measured.rows_out += frame.rows
                        waiting.append(frame)
                        if pacer.is_due(run, len(frame.payload)):
                            yield _results(waiting, nothing=run.flush_rows)
                            waiting.clear()
                if waiting:
                    yield _results(waiting)
                measured.rows_out -= bucket.tally.ticks
                measured.counts = bucket.tally.counts
                measured.counters = plan.counters
                if watch is not None:
                    watch.keep()
                    measured.watched(watch.rows, watch.taken_rows)
                if observed is not None:
                    measured.counts = {**measured.counts, **observed.counts}
                    observed.keep()
                pointer = measured.commit(store)
                if watch is not None:
                    watch.publish(pointer)
                if observed is not None:
                    observed.publish()
                hottest = None if watch is None else watch.hottest()
                yield _metrics(measured.result(store).values(), hottest)
        give_back()
        write_pointer(state, pointer)
        if plan.watches_time:
            # Called again as soon as the watermark is later than now, with rows or without.
            state.setTimeoutTimestamp(max(1, watermark_ms))

    # Spark quotes the name where it refuses a plan that holds the operator twice.
    call.__name__ = (
        f"{plan.operator}_may_stand_once_in_a_query_use_foreachBatch_to_read_its_result_twice"
    )
    return call


class _Pacer:
    """Says when Spark's worker must hand over its results, before they fill its memory.

    The worker collects results until their row count passes maxRecordsPerBatch, whatever their
    size, and over all buckets of a task. So after every few MiB of payload it gets that many rows
    of nulls, which the plan drops right above.
    """

    def __init__(self) -> None:
        self._task = -1
        self._pending = 0

    def is_due(self, run: TaskRun, payload_bytes: int) -> bool:
        """Whether the results must be handed over with this much more. The count then
        starts again."""
        if run.task_attempt_id != self._task:
            self._task, self._pending = run.task_attempt_id, 0
        self._pending += payload_bytes
        if self._pending < _PENDING_BYTES:
            return False
        self._pending = 0
        return True


def _results(frames: list[ResultFrame], nothing: int = 0) -> pd.DataFrame:
    """The frames, followed by that many rows of nulls.

    It is one array of objects whose first cell is no null. Spark's worker then takes a third of the
    time that separate frames and nulls would take.
    """
    cells = np.full((len(frames) + nothing, len(_COLUMNS)), None, dtype=object)
    for i, frame in enumerate(frames):
        cells[i, :2] = frame
    return pd.DataFrame(cells, columns=_COLUMNS)


def _metrics(numbers: list[int], hottest: str | None) -> pd.DataFrame:
    """The row in which a bucket reports its metrics."""
    return pd.DataFrame([(None, None, numbers, hottest)], columns=_COLUMNS, dtype=object)


def _batches(plan: StatefulPlan, spool: FrameSpool, measured: CallMetrics) -> Iterator[InputBatch]:
    """The batches of the bucket, in an order that does not change on a retry."""
    frames = spool.in_order([plan.framed(source) for source in plan.inputs])
    for kind, routed in joined(frames, min(_BATCH_BYTES, plan.memory_bytes // _BATCH_SHARE)):
        source = plan.inputs[kind.stream]
        measured.rows_in += routed.num_rows
        is_copy = kind.role != Role.STORE and plan.skew is not None
        measured.copied_rows += routed.num_rows if is_copy else 0
        rows, keys = source.rows_of(routed), source.keys_of(routed)
        yield InputBatch(source.name, rows, keys, kind.role, source.marks_of(routed))
