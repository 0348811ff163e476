"""Results that come once: matches at once, the rest when the watermark says so.

``FinalJoin`` is put around a local join. That one stores rows and finds matches, and can say what
becomes of a row that has waited (``Decides``). Rows of which that matters wait in a stream of
their own, by event time. When no row can come that matters to them, they are decided and leave it.
So nothing is noted when a partner comes: what a row has found follows from the stored rows alone,
also after a restart, and late rows are never stored.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.parts.bound_rows import coalesced, parts_of
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.write_parts import Beside, no_more
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS
from lsmstate.joins.local.timed.waiting_rows import WaitingRows
from lsmstate.joins.protocols import Batch, Spec, check_is_stored
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore


class WaitingSpec(Spec, Protocol):
    """A spec whose results wait for the watermark."""

    @property
    def event_time(self) -> EventTime:
        """Event times of the streams, and how long their rows are kept."""
        ...

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store that forgets rows, whose rows it holds."""
        ...

    @property
    def waits_us(self) -> Mapping[str, int]:
        """By stream whose rows wait, how long after their event time."""
        ...


class Decides(Protocol):
    """A local join that knows what becomes of a row without a match."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Its counters, by name."""
        ...

    def can_match(self, stream: str, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which rows may match one that comes. The others are decided when they arrive."""
        ...

    def process(self, batch: Batch, beside: Beside = no_more) -> Results:
        """Store a batch together with what stands ``beside`` it, and return its matches; read or
        close them before the next call."""
        ...

    def decided(
        self, stream: str, rows: pa.RecordBatch, *, can_match: bool
    ) -> Iterator[pa.RecordBatch]:
        """The results of rows that no further row will match; stored ones may, if they
        ``can_match``."""
        ...

    def close(self) -> None:
        """Release memory, as ``LocalJoin.close`` does."""
        ...


class FinalJoin:
    """A local join whose results come once, over ``store``, whose streams are
    ``spec.stream_schemas``.

    Watermark, rows that leave and partners that are forgotten change together, after the results
    were handed out: a call that is broken off is made again from the state before. Not thread-safe.
    The store belongs to the caller, who commits and closes it.
    """

    def __init__(
        self, joined: Decides, spec: WaitingSpec, store: MultimapStore, piece_bytes: int
    ) -> None:
        """``joined``: the local join, over the same store."""
        self._joined = joined
        self._spec = spec
        self._store = store
        self._piece_bytes = piece_bytes
        self._waiting = WaitingRows(
            store, spec.streams, spec.event_time, spec.owners, spec.waits_us
        )
        self._unfinished: Results | None = None
        self._matches = Results(())

    @property
    def counts(self) -> Mapping[str, int]:
        """Those of the local join, which late rows do not reach, and ``late_rows``."""
        return {**self._joined.counts, LATE_ROWS: self._waiting.late_count}

    @property
    def watermark_us(self) -> int | None:
        """Microseconds since 1970; None before the first ``advance``."""
        return self._waiting.watermark_us

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """With ``late="side"``: the late rows of the last batch."""
        return self._waiting.late_rows

    def process(self, batch: Batch) -> Results:
        """Store a batch, but for late rows, and return the results that are known with it: matches,
        and rows that can match nothing, such as those without an event time.

        Args:
            batch: The rows; columns are taken by name.

        Returns:
            The results in pieces of at most ``piece_bytes`` or one row, computed as they are read.
            Read them to the end, or close them, before the next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, earlier results are not
                read, or a condition fails on a row. Nothing is stored.
        """
        stream, call = batch.stream, f"process({batch.stream!r})"
        self._spec.check_stream(stream)
        check_is_stored(batch)
        self._settle(call)
        rows = as_batch(batch.rows, self._spec.streams[stream], call)
        is_late = self._waiting.late(stream, rows)
        can_match = self._joined.can_match(stream, rows)
        column = self._spec.event_time.columns.get(stream)
        if column is not None:
            can_match &= rows.column(column).is_valid().to_numpy(zero_copy_only=False)
        in_time = rows.filter(pa.array(can_match & ~is_late))
        waits = stream in self._spec.waits_us
        parts = parts_of(in_time, max(1, self._piece_bytes // 2)) if waits else []
        self._matches = self._joined.process(
            Batch(stream, in_time),
            lambda: (self._waiting.writes(stream, part) for part in parts),
        )
        self._waiting.note_late(rows, is_late)
        if not waits:
            return self._given(self._matches)
        others = rows.filter(pa.array(~can_match & ~is_late))
        alone = self._joined.decided(stream, others, can_match=False)
        return self._given(chain(alone, self._matches))

    def advance(self, watermark_us: int) -> Results:
        """The results that are known for good by this watermark, in microseconds since 1970; once
        they are consumed, what is not needed any more is forgotten. A lower watermark than before
        gives and changes nothing.

        Cost: a look for the partners of each row whose waiting is over.
        """
        self._settle("advance()")
        if not self._waiting.is_new(watermark_us):
            return Results((), schema=self._spec.output_schema)
        return self._given(self._decided(watermark_us), watermark_us)

    def finish(self) -> None:
        """To be called before a commit: end what the last call began. InvalidArgumentError if its
        results were neither consumed nor closed."""
        self._settle("commit()")

    def close(self) -> None:
        """Release the memory of the local join."""
        self._joined.close()

    def _settle(self, call: str) -> None:
        check_finished(call, self._unfinished)
        self._matches.close()
        self._waiting.settle()  # results given up unread are given up

    def _given(self, pieces: Iterator[pa.RecordBatch], watermark_us: int | None = None) -> Results:
        def handed_out() -> Iterator[pa.RecordBatch]:
            yield from coalesced(pieces, self._piece_bytes)
            if watermark_us is not None:
                self._waiting.go_on(watermark_us)

        self._unfinished = Results(handed_out(), schema=self._spec.output_schema)
        return self._unfinished

    def _decided(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        for name in self._spec.waits_us:
            for rows in self._waiting.due(name, watermark_us, self._piece_bytes):
                yield from self._joined.decided(name, rows, can_match=True)
