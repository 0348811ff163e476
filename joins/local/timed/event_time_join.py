"""A join that forgets: any local join, with rows judged by event time before and results after.

The local join knows nothing of time: the store hides what is due, and the watermark up to which it
does lies in the store too, so that it is exactly as old as the rows.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.changes.multi_key_join import GraphChangeJoin
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.parts.time_checks import BoundCheck, LateRows
from lsmstate.joins.local.rooted.change_join import RootedChangeJoin
from lsmstate.joins.specs.changes import GraphChangeSpec
from lsmstate.joins.specs.changes_multi_key import RootedChangeSpec
from lsmstate.joins.specs.event_time import WATERMARK, EventTime
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.store import MultimapStore, Mutation

_NAME = "watermark"


class EventTimeJoin:
    """The join of ``spec`` over ``store``, whose streams are ``event_time.store_streams(spec)``, or
    where results are taken back ``spec.stream_schemas``.

    Not thread-safe. The store belongs to the caller, who commits and closes it.
    """

    def __init__(
        self,
        spec: JoinSpec | GraphSpec | GraphChangeSpec | RootedChangeSpec,
        event_time: EventTime,
        store: MultimapStore,
        piece_bytes: int = 1 << 20,
        probe_order: ProbeOrder | None = None,
        unmatched: str = "count",
    ) -> None:
        """``probe_order``: what an operator of the same join has learned before; ``unmatched`` as
        in ChangeJoin."""
        self.event_time = event_time
        self._spec = spec
        self._join: UMJoin | GraphJoin | GraphChangeJoin | RootedChangeJoin
        self._check = None
        if isinstance(spec, RootedChangeSpec):
            self._join = RootedChangeJoin(spec, store, piece_bytes, unmatched)
        elif isinstance(spec, GraphChangeSpec):
            self._join = GraphChangeJoin(spec, store, piece_bytes, unmatched)
            self._check = BoundCheck(spec.graph, event_time.bounds)
        elif isinstance(spec, GraphSpec):
            self._join = GraphJoin(spec, store, piece_bytes, probe_order)
            self._check = BoundCheck(spec, event_time.bounds)
        else:
            self._join = UMJoin(spec, store, piece_bytes, probe_order)
            self._check = BoundCheck(spec, event_time.bounds)
        self._store = store
        self._lateness = {
            name: LateRows(name, column, spec.streams[name])
            for name, column in event_time.columns.items()
        }
        #: Microseconds since 1970; None before the first ``advance``.
        self.watermark_us = kept_watermark(store)
        #: Rows that came late, since this object was made.
        self.late_count = 0
        #: With ``late="side"``: the late rows of the last batch.
        self.late_rows: pa.RecordBatch | None = None
        if self.watermark_us is not None:
            self._forget(self.watermark_us)  # perhaps it was broken off

    @property
    def unmatched_retractions(self) -> int:
        """Retractions left out so far, but for late ones."""
        if isinstance(self._join, GraphChangeJoin | RootedChangeJoin):
            return self._join.unmatched_retractions
        return 0

    def process(
        self,
        stream: str,
        batch: pa.RecordBatch,
        keys: pa.RecordBatch | None = None,
        *,
        more: bool = False,
    ) -> Results:
        """As the join's own; see EventTime for what happens to late rows. ``keys``: UMJoin only;
        ``more``: changelogs only.

        A row that has no value in a column of an interval is in no result, and is not stored. Where
        there are results without partners, that holds for the intervals of the join that adds the
        row's stream; by those of later joins it only has no partner.
        """
        self._spec.check_stream(stream)
        is_late = self._late(stream, batch)
        can_match = self._can_match(stream, batch)
        is_wanted = can_match if self.event_time.late == "join" else can_match & ~is_late
        if not is_wanted.all():
            wanted = pa.array(is_wanted)
            keys = None if keys is None else keys.filter(wanted)
            rows = batch.filter(wanted)
        else:
            rows = batch
        if isinstance(self._join, GraphChangeJoin | RootedChangeJoin):
            results = self._join.process(stream, rows, more=more)
        elif isinstance(self._join, GraphJoin):
            assert keys is None, "a join by several keys makes its own"
            results = self._join.process(stream, rows)
        else:
            results = self._join.process(stream, rows, keys)
        self.late_count += int(is_late.sum())
        if self.event_time.late == "side":
            self.late_rows = batch.filter(pa.array(is_late))
        return results if self._check is None else results.through(self._check.keep)

    def advance(self, watermark_us: int) -> None:
        """Forget what is due by this watermark, in microseconds since 1970. A lower one than
        before changes nothing. To be called between batches, their results consumed."""
        if self.watermark_us is not None and watermark_us <= self.watermark_us:
            return
        # First: broken off in between, no row passes for one in time whose partners are forgotten.
        self._store.write([watermark_write(watermark_us)])
        self._forget(watermark_us)

    def _forget(self, watermark_us: int) -> None:
        self.watermark_us = watermark_us
        for name, schema in self._store.streams.items():
            if schema.expiry is not None:
                owner = self._spec.owners[name]
                self._store.advance(name, self._lateness[owner].watermark(watermark_us))

    def _late(self, stream: str, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        lateness = self._lateness.get(stream)
        found = np.zeros(batch.num_rows, dtype=np.bool_)
        if lateness is None:
            return found
        if self.watermark_us is not None:
            found = lateness.late(batch, self.watermark_us)
        if self.event_time.needs_time:
            times = batch.column(self.event_time.columns[stream])
            found |= times.is_null().to_numpy(zero_copy_only=False)
        return found

    def _can_match(self, stream: str, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        bounds = self.event_time.bounds
        if isinstance(self._spec, RootedChangeSpec):
            bounds = self._spec.bounds_of(stream)
        found = np.ones(batch.num_rows, dtype=np.bool_)
        for bound in bounds:
            for column in (bound.later, bound.earlier):
                if column.stream == stream:
                    found &= batch.column(column.name).is_valid().to_numpy(zero_copy_only=False)
        return found


def kept_watermark(store: MultimapStore) -> int | None:
    """The watermark up to which the rows of a store are forgotten."""
    kept = store.get(WATERMARK.name, (_NAME,))
    return kept["watermark_us"][0].as_py() if kept.num_rows else None


def watermark_write(watermark_us: int) -> Mutation:
    """What keeps it."""
    return Mutation(
        "put",
        WATERMARK.name,
        pa.RecordBatch.from_pylist([{"name": _NAME}], schema=WATERMARK.key),
        pa.RecordBatch.from_pylist([{"watermark_us": watermark_us}], schema=WATERMARK.rows),
    )
