"""The stateful function of every join: one local join over a bucket's store."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import pyarrow as pa

from lsmstate.joins.kinds import kind_of
from lsmstate.joins.local.aggregates.groups import Groups
from lsmstate.joins.local.changes.input import UNMATCHED_RETRACTIONS
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.protocols import Batch, Context, Spec
from lsmstate.spark_integration.joins.late_rows import NO_LATE_ROWS, LateRows
from lsmstate.spark_integration.joins.malformed_rows import NO_MALFORMED_ROWS, MalformedRows
from lsmstate.spark_integration.joins.shown_columns import ShownColumns
from lsmstate.spark_integration.plan.bucket import Bucket, BucketFunction, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import InputPlan
from lsmstate.store import MultimapStore

_log = logging.getLogger("lsmstate")


class ResultTimes(Protocol):
    """The event time of results, in one call for a bucket."""

    def arrived(self, batch: InputBatch) -> None:
        """Look at the times of rows that arrive."""
        ...

    def added(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The results with their time."""
        ...

    def tick(self, watermark_us: int | None) -> pa.RecordBatch:
        """A row of nulls with the latest time, which moves the result's watermark."""
        ...


def run_join(
    spec: Spec,
    inputs: Sequence[InputPlan],
    *,
    unmatched: str = "count",
    late: LateRows = NO_LATE_ROWS,
    malformed: MalformedRows = NO_MALFORMED_ROWS,
    result_times: Callable[[pa.Schema], ResultTimes] | None = None,
    gives_picks: bool = False,
    most_results: float | None = None,
    groups: Callable[[], Groups] | None = None,
    shown: ShownColumns | None = None,
) -> BucketFunction:
    """Make the function that Spark calls for each bucket and micro-batch.

    Rows are late by the watermark of the previous micro-batch, as in Spark's joins. All batches of
    an input in one micro-batch count as one, so a retraction may come before its row.

    Args:
        spec: What is joined.
        inputs: The inputs of the operator.
        unmatched: What becomes of a retraction of a row that is not stored.
        late: What becomes of late rows.
        malformed: What becomes of malformed rows.
        result_times: Makes what adds the event time to results; None: they have none.
        most_results: Most results for each row of a batch; None: they are logged.
        gives_picks: Whether the plan has ``parts``, so that results may leave as picks.
        groups: Makes what results are aggregated in; None: they leave as they are.
        shown: The columns of results that leave, where none is added; None: all.

    Returns:
        The function.
    """
    plans: Mapping[str, InputPlan] = {source.name: source for source in inputs}
    makes_keys = {name: not spec.computed(name) for name in plans}
    learned_as = str(spec.described())

    def narrowed(
        found: Iterable[pa.RecordBatch | Picked],
    ) -> Iterable[pa.RecordBatch | Picked]:
        return found if shown is None else map(shown, found)

    # A worker has only the kinds that it imports, so the kind travels.
    make = kind_of(spec).opened

    def join(
        bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch | Picked]:
        context = Context(
            bucket=bucket.place,
            buckets=bucket.buckets,
            micro_batch=bucket.batch_id,
            watermark_us=bucket.watermark_us,
            unmatched=unmatched,
            most_results=most_results,
            learned=learned(learned_as),
        )
        joined = make(spec, store, context)
        times = None if result_times is None else result_times(bucket.schema)
        grouped = None if groups is None else groups()
        late.forget(bucket, store)
        for batch, is_more_coming in _with_more(batches):
            rows, keys = batch.rows, None
            if makes_keys[batch.input]:
                rows = plans[batch.input].with_cast_keys(rows, batch.keys)
            else:
                keys = batch.keys
            arriving = Batch(batch.input, rows, keys, batch.role, batch.marks, is_more_coming)
            found = joined.process(arriving)
            if times is not None:
                times.arrived(batch)
                yield from map(times.added, found)
            elif grouped is not None:
                yield from grouped.add(found)
            else:
                yield from narrowed(found.picks() if gives_picks else found)
            late.keep(bucket, store, batch, joined.late_rows, joined.watermark_us)
            malformed.keep(bucket, store, batch, getattr(joined, "malformed_rows", None))
        if bucket.watermark_us is not None:
            final = joined.advance(bucket.watermark_us)
            yield from narrowed(final) if grouped is None else grouped.add(final)
        joined.finish()
        if grouped is not None:
            yield from grouped.rows()
        if times is not None:
            bucket.tally.ticks = 1
            yield times.tick(bucket.watermark_us)
        bucket.tally.counts.update(joined.counts)
        _warn(bucket)

    return join


@lru_cache(maxsize=64)
def learned(_join: str) -> ProbeOrder:
    """The order of probes that this worker has learned. A call for a bucket continues where the
    last call of the same join ended."""
    return ProbeOrder()


def _warn(bucket: Bucket) -> None:
    ignored = bucket.tally.counts.get(UNMATCHED_RETRACTIONS, 0)
    if ignored:
        _log.warning(
            "bucket %d, micro-batch %d: ignored %d retractions of rows that are not stored",
            bucket.number,
            bucket.batch_id,
            ignored,
        )


def _with_more(batches: Iterator[InputBatch]) -> Iterator[tuple[InputBatch, bool]]:
    """Each batch, and whether the next one is of the same input."""
    waiting = next(batches, None)
    while waiting is not None:
        following = next(batches, None)
        yield waiting, following is not None and following.input == waiting.input
        waiting = following
