"""late="side": late rows leave the join beside its result, and are kept in its state.

- A Spark operator has one result. So the bucket's store keeps late rows, in one stream per input
  (``a (late)``), by micro-batch. They can be read as of any micro-batch.
- Late rows are part of an attempt's commit. A killed, repeated or overtaken attempt therefore
  neither loses nor doubles one, because no stored pointer names its files. A sink of our own would
  have to tell attempts apart itself.
- If a row has copies in several buckets, only its own bucket keeps it. Rows with a null key that
  stop before the shuffle match nothing at any time, and are not kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.protocols import Role, Routing
from lsmstate.joins.routing.shares_router import SharesRouting
from lsmstate.joins.routing.theta_router import ThetaRouting
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.store import MultimapStore, StreamSchema

SIDE: Final = "side"
#: What a join pins that keeps them: of which inputs.
LATE_KEPT: Final = "late rows kept"
_KEY: Final = pa.schema([("micro_batch", pa.int64())])
#: Columns beside the row's own: the micro-batch, and the watermark that had passed it.
BATCH_COLUMN: Final = "_batch"
WATERMARK_COLUMN: Final = "_watermark"


@dataclass(frozen=True)
class LateRows:
    """What becomes of the late rows of a join; made by ``LateRows.of``."""

    streams: Mapping[str, StreamSchema]
    """By input, the stream of the store that keeps them; none unless ``late="side"``."""
    batches: int | None
    """For how many micro-batches; None: for ever."""

    @classmethod
    def of(
        cls, inputs: Sequence[InputPlan], timing: EventTime | None, batches: int | None
    ) -> "LateRows":
        """The late rows of a join. InvalidArgumentError if an input has a column that is added."""
        if timing is None or timing.late != SIDE:
            return cls({}, None)
        return cls(
            {p.name: _stream(p, timing) for p in inputs if p.name in timing.columns}, batches
        )

    def added_to(self, plan: StatefulPlan) -> StatefulPlan:
        """The plan with the streams of late rows. InvalidArgumentError if a name is taken."""
        taken = {stream.name for stream in plan.state}
        for name, stream in self.streams.items():
            if stream.name in taken:
                raise InvalidArgumentError(
                    f"late='side' keeps the late rows of {name!r} in a stream {stream.name!r}, and "
                    "an input has that name; rename that input"
                )
        kept = ", ".join(repr(stream.name) for stream in self.streams.values())
        return replace(
            plan,
            state=(*plan.state, *self.streams.values()),
            settings={**plan.settings, LATE_KEPT: list(self.streams) or None},
            routing=_marking_copies(plan.routing) if self.streams else plan.routing,
            explanation=plan.explanation + (f"\nlate rows are kept in {kept}" if kept else ""),
        )

    def forget(self, bucket: Bucket, store: MultimapStore) -> None:
        """Delete late rows that are older than they are kept. Cost: a look at the oldest one."""
        if self.batches is None:
            return
        first = (bucket.batch_id - self.batches + 1,)
        for stream in self.streams.values():
            # A deletion is a write: only where there is something to delete.
            if next(store.iterate(stream.name, high=first, max_bytes=1), None) is not None:
                store.delete_range(stream.name, high=first)

    def keep(
        self,
        bucket: Bucket,
        store: MultimapStore,
        batch: InputBatch,
        late: pa.RecordBatch | None,
        watermark_us: int | None,
    ) -> None:
        """Store late rows of a batch, perhaps with keys beside them. The batch's results must be
        read before, because a write ends the reads that they come from."""
        if late is None or not late.num_rows or batch.role != Role.STORE:
            return
        stream = self.streams.get(batch.input)
        if stream is None:
            return
        count = late.num_rows
        batches = pa.repeat(pa.scalar(bucket.batch_id, pa.int64()), count)
        watermarks = pa.repeat(pa.scalar(watermark_us, pa.int64()), count)
        columns = [
            *late.columns[: len(batch.rows.schema)],
            batches,
            watermarks.view(stream.rows.field(WATERMARK_COLUMN).type),
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=stream.rows)
        store.append(stream.name, rows, pa.RecordBatch.from_arrays([batches], schema=_KEY))


#: Of a join that keeps none.
NO_LATE_ROWS: Final = LateRows({}, None)


def _marking_copies(routing: Routing) -> Routing:
    """The routing, by which only one bucket takes a row for its own."""
    if isinstance(routing, SharesRouting | ThetaRouting):
        return replace(routing, marks_copies=True)
    return routing


def late_stream(name: str) -> str:
    """The stream of the store with the late rows of an input."""
    return f"{name} (late)"


def keeps_late_rows(stream: StreamSchema) -> bool:
    """Whether it is a stream of late rows."""
    return (
        stream.name.endswith(late_stream(""))
        and stream.key == _KEY
        and stream.rows.names[-2:] == [BATCH_COLUMN, WATERMARK_COLUMN]
    )


def check_late(late: str, batches: int | None, backend: str) -> None:
    """InvalidArgumentError for options that do not fit each other."""
    if batches is not None and late != SIDE:
        raise InvalidArgumentError(
            f"late_batches={batches!r} applies to late='side', and this join has late={late!r}; "
            "leave late_batches out"
        )
    if batches is not None and (
        isinstance(batches, bool) or not isinstance(batches, int) or batches < 1
    ):
        raise InvalidArgumentError(
            f"late_batches={batches!r}: must be a whole number of at least 1, or None"
        )
    if late == SIDE and backend != "lsm":
        raise InvalidArgumentError(
            f"late='side' with backend={backend!r}: late rows are kept in the state, and only the "
            "state of backend 'lsm' can be read; choose that backend, or late='drop' or late='join'"
        )


def _stream(plan: InputPlan, timing: EventTime) -> StreamSchema:
    taken = {name.lower(): name for name in plan.rows.names}
    for name in (BATCH_COLUMN, WATERMARK_COLUMN):
        if name in taken:
            raise InvalidArgumentError(
                f"late='side' adds a column {name!r} to late rows, and stream {plan.name!r} has "
                f"a column {taken[name]!r}; rename it before the join"
            )
    zone = plan.rows.field(timing.columns[plan.name]).type.tz
    added = [(BATCH_COLUMN, pa.int64()), (WATERMARK_COLUMN, pa.timestamp("us", zone))]
    rows = pa.schema([*plan.rows, *(pa.field(name, kind) for name, kind in added)])
    return StreamSchema(late_stream(plan.name), _KEY, rows)
