"""Rows that wait until the watermark decides on them, and the watermark itself.

Rows wait in streams of their own, by event time. Watermark, rows that leave and rows that are
forgotten change together, after the results were handed out: a call that is broken off is made
again from the state before.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.parts.time_checks import LateRows
from lsmstate.joins.local.timed.event_time_join import kept_watermark, watermark_write
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.joins.specs.final import TICKS, waiting_stream
from lsmstate.store import KeyBounds, MultimapStore, Mutation


class WaitingRows:
    """The rows of some streams that wait in ``store``, and late rows of all."""

    def __init__(
        self,
        store: MultimapStore,
        streams: Mapping[str, pa.Schema],
        event_time: EventTime,
        owners: Mapping[str, str],
        waits_us: Mapping[str, int],
    ) -> None:
        """Take the watermark up to which rows are forgotten.

        Args:
            store: The store.
            streams: The streams of the join.
            event_time: Their event times.
            owners: By stream of the store that forgets rows, whose rows it holds.
            waits_us: By stream whose rows wait, how long after their event time.
        """
        self._store = store
        self._event_time = event_time
        self._owners = owners
        self._waits_us = waits_us
        self._lateness = {
            name: LateRows(name, column, streams[name])
            for name, column in event_time.columns.items()
        }
        #: Microseconds since 1970; None before the first one.
        self.watermark_us = kept_watermark(store)
        #: With ``late="side"``: the late rows of the last batch.
        self.late_rows: pa.RecordBatch | None = None
        self.late_count = 0
        self._next_us = self.watermark_us
        if self.watermark_us is not None:
            self._forget(self.watermark_us)  # perhaps it was broken off

    def late(self, stream: str, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which rows are late."""
        if stream not in self._lateness or self.watermark_us is None:
            return np.zeros(rows.num_rows, dtype=np.bool_)
        return self._lateness[stream].late(rows, self.watermark_us)

    def note_late(self, rows: pa.RecordBatch, is_late: npt.NDArray[np.bool_]) -> None:
        """Count the late rows of a batch, and keep them if they are to be handed out."""
        self.late_count += int(is_late.sum())
        if self._event_time.late == "side":
            self.late_rows = rows.filter(pa.array(is_late))

    def writes(self, stream: str, rows: pa.RecordBatch) -> list[Mutation]:
        """What lets rows wait; nothing for streams whose rows do not."""
        if stream not in self._waits_us:
            return []
        ticks = rows.column(self._event_time.columns[stream]).view(pa.int64())
        keys = pa.RecordBatch.from_arrays([ticks], schema=TICKS)
        return [Mutation("append", waiting_stream(stream), keys, rows)]

    def is_new(self, watermark_us: int) -> bool:
        """Whether a watermark is past the one before. ``settle`` passes it in any case."""
        if self.watermark_us is not None and watermark_us <= self.watermark_us:
            return False
        self._next_us = watermark_us
        return True

    def due(self, stream: str, watermark_us: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of a stream whose waiting is over by a watermark."""
        due = self._store.iterate(
            waiting_stream(stream),
            high=(self._due_before(stream, watermark_us),),
            max_bytes=max_bytes,
        )
        return (rows for _, rows in due)

    def settle(self) -> None:
        """Pass the watermark whose results were given up unread."""
        if self._next_us is not None and self._next_us != self.watermark_us:
            self.go_on(self._next_us)

    def go_on(self, watermark_us: int) -> None:
        """Forget the rows whose waiting is over, and go on from this watermark."""
        leaving = [
            Mutation(
                "delete_range",
                waiting_stream(name),
                KeyBounds(high=(self._due_before(name, watermark_us),)),
            )
            for name in self._waits_us
        ]
        self._store.write([*leaving, watermark_write(watermark_us)])
        self.watermark_us = self._next_us = watermark_us
        self._forget(watermark_us)

    def _forget(self, watermark_us: int) -> None:
        for name, schema in self._store.streams.items():
            if schema.expiry is not None:
                watermark = self._lateness[self._owners[name]].watermark(watermark_us)
                self._store.advance(name, watermark)

    def _due_before(self, stream: str, watermark_us: int) -> int:
        """Event times before this have waited long enough, in what their column counts."""
        last_us = watermark_us - self._waits_us[stream]
        last = self._lateness[stream].ticks(last_us)  # beyond 1677 to 2262 if in nanoseconds
        return min(max(last + 1, -(1 << 63)), (1 << 63) - 1)
