"""A join that forgets: any local join, with rows judged by event time before and results after.

The local join knows nothing of time: the store hides what is due, and the watermark up to which it
does lies in the store too, so that it is exactly as old as the rows.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.parts.time_checks import BoundCheck, LateRows
from lsmstate.joins.protocols import Batch, LocalJoin, Role, Spec
from lsmstate.joins.specs.event_time import WATERMARK, EventTime
from lsmstate.store import MultimapStore, Mutation

#: The counter of rows that came late.
LATE_ROWS: Final = "late_rows"
_NAME: Final = "watermark"


class Timed(Spec, Protocol):
    """A spec with event times."""

    @property
    def event_time(self) -> EventTime:
        """Event times of the streams, and how long their rows are kept."""
        ...

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        ...

    def bounds_of(self, stream: str) -> tuple[Bound, ...]:
        """The intervals without whose times a row of the stream is in no result."""
        ...


class EventTimeJoin:
    """A local join whose rows are forgotten by event time. Its results all come from ``process``;
    one that waits for the watermark keeps its own (FinalJoin).

    Not thread-safe. The store belongs to the caller, who commits and closes it.
    """

    def __init__(
        self, joined: LocalJoin, spec: Timed, store: MultimapStore, check: BoundCheck | None = None
    ) -> None:
        """Take the watermark up to which the store's rows are forgotten.

        Args:
            joined: The local join, over the same store.
            spec: What is joined, with its event times.
            store: The store, whose streams are ``spec.stream_schemas``.
            check: The intervals that results are checked for; None: the local join checks them.
        """
        self._joined = joined
        self._spec = spec
        self._event_time = spec.event_time
        self._check = check
        self._store = store
        self._lateness = {
            name: LateRows(name, column, spec.streams[name])
            for name, column in self._event_time.columns.items()
        }
        #: Microseconds since 1970; None before the first ``advance``.
        self.watermark_us = kept_watermark(store)
        #: With ``late="side"``: the late rows of the last batch.
        self.late_rows: pa.RecordBatch | None = None
        self._late_count = 0
        #: The watermark by which everything was forgotten; another one was broken off.
        self._forgotten_us: int | None = None
        self._forget()

    @property
    def malformed_rows(self) -> pa.RecordBatch | None:
        """Those that the local join keeps aside, if it does."""
        found: pa.RecordBatch | None = getattr(self._joined, "malformed_rows", None)
        return found

    @property
    def counts(self) -> Mapping[str, int]:
        """Those of the local join, which late rows do not reach, and ``late_rows``."""
        return {**self._joined.counts, LATE_ROWS: self._late_count}

    def process(self, batch: Batch) -> Results:
        """Store a batch as the local join does, but for late rows; see EventTime.

        A row that has no value in a column of an interval is in no result, and is not stored. Where
        there are results without partners, that holds for the intervals of the join that adds the
        row's stream; by those of later joins it only has no partner.
        """
        stream, rows = batch.stream, batch.rows
        self._spec.check_stream(stream)
        self._forget()
        is_late = self._late(stream, rows)
        can_match = self._can_match(stream, rows)
        is_wanted = can_match if self._event_time.late == "join" else can_match & ~is_late
        if not is_wanted.all():
            batch = _filtered(batch, is_wanted)
        results = self._joined.process(batch)
        if batch.role != Role.PROBE:  # which another bucket counts
            self._late_count += int(is_late.sum())
        if self._event_time.late == "side":
            self.late_rows = rows.filter(pa.array(is_late))
        return results if self._check is None else results.through(self._check.keep)

    def advance(self, watermark_us: int) -> Results:
        """Forget what is due by this watermark, in microseconds since 1970; no results. A lower
        one than before changes nothing. To be called between batches, their results read."""
        if self.watermark_us is None or watermark_us > self.watermark_us:
            # First: broken off in between, no row passes for one in time whose partners are gone.
            self._store.write([watermark_write(watermark_us)])
            self.watermark_us = watermark_us
        self._forget()
        return Results(())

    def finish(self) -> None:
        """End the micro-batch of the local join inside, before a commit."""
        self._joined.finish()

    def close(self) -> None:
        """Release the memory of the local join inside."""
        self._joined.close()

    def _forget(self) -> None:
        """Forget what is due by the watermark, unless that is done."""
        watermark_us = self.watermark_us
        if watermark_us is None or watermark_us == self._forgotten_us:
            return
        self._joined.advance(watermark_us)
        for name, schema in self._store.streams.items():
            if schema.expiry is not None:
                owner = self._spec.owners[name]
                self._store.advance(name, self._lateness[owner].watermark(watermark_us))
        self._forgotten_us = watermark_us

    def _late(self, stream: str, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        lateness = self._lateness.get(stream)
        found = np.zeros(batch.num_rows, dtype=np.bool_)
        if lateness is None:
            return found
        if self.watermark_us is not None:
            found = lateness.late(batch, self.watermark_us)
        if self._event_time.needs_time:
            times = batch.column(self._event_time.columns[stream])
            found |= times.is_null().to_numpy(zero_copy_only=False)
        return found

    def _can_match(self, stream: str, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        found = np.ones(batch.num_rows, dtype=np.bool_)
        for bound in self._spec.bounds_of(stream):
            for column in (bound.later, bound.earlier):
                if column.stream == stream:
                    found &= batch.column(column.name).is_valid().to_numpy(zero_copy_only=False)
        return found


def _filtered(batch: Batch, wanted: npt.NDArray[np.bool_]) -> Batch:
    """Some rows of a batch, with what stands beside them."""
    mask = pa.array(wanted)
    computed, marks = batch.computed, batch.marks
    if isinstance(computed, pa.RecordBatch):
        computed = computed.filter(mask)
    elif computed is not None:
        computed = computed.take(np.flatnonzero(wanted))
    if marks is not None:
        marks = marks.filter(mask)
    return batch._replace(rows=batch.rows.filter(mask), computed=computed, marks=marks)


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
