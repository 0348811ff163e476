"""Joins of two streams by any condition whose results come once: pairs at once, other results when
the watermark says so.

Rows of which it matters whether they have a partner wait in a stream of their own, by event time.
When no partner can come any more they leave it, and are looked up in the index of the other stream,
whose rows are kept that long. So nothing is noted when a partner comes: what a row has found
follows from the stored rows alone, also after a restart, and late rows are never stored.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.bound_rows import coalesced
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.local.theta.finder import CANDIDATES, Finder, bound_rows, size_of
from lsmstate.joins.local.theta.result_count import ResultCount
from lsmstate.joins.local.theta.results import SideResults
from lsmstate.joins.local.theta.step_ranges import key_values
from lsmstate.joins.local.theta.stored_rows import StoredRows, check_streams_of
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS
from lsmstate.joins.local.timed.waiting_rows import WaitingRows
from lsmstate.joins.protocols import Batch, Context, check_is_stored
from lsmstate.joins.specs.theta import ThetaIndex
from lsmstate.joins.specs.theta_sides import ThetaFinalSpec
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore, Mutation


class ThetaFinalJoin:
    """The local join of a ThetaFinalSpec. Not thread-safe. The store belongs to the caller, who
    commits and closes it."""

    def __init__(self, spec: ThetaFinalSpec, store: MultimapStore, context: Context) -> None:
        """InvalidArgumentError if the store lacks a stream, or ``piece_bytes`` is less than 1."""
        if context.piece_bytes < 1:
            raise InvalidArgumentError(f"piece_bytes={context.piece_bytes!r}: must be at least 1")
        check_streams_of(store, spec.stream_schemas)
        self._spec = spec
        self._sides = spec.sides
        self._event_time = spec.event_time
        self._store = store
        self._piece_bytes = context.piece_bytes
        theta = spec.sides.theta
        self._stored = StoredRows(theta, store)
        self._finder = Finder(theta, store, self._stored, context.piece_bytes)
        self._made = SideResults(spec.sides, context.piece_bytes)
        self._waiting = WaitingRows(
            store, spec.streams, spec.event_time, spec.owners, spec.waits_us
        )
        self._most_results = context.most_results
        self._unfinished: Results | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """``candidates``: pairs that indexes picked so far; ``late_rows``: rows that came late."""
        return {CANDIDATES: self._finder.candidates, LATE_ROWS: self._waiting.late_count}

    @property
    def watermark_us(self) -> int | None:
        """Microseconds since 1970; None before the first ``advance``."""
        return self._waiting.watermark_us

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """With ``late="side"``: the late rows of the last batch."""
        return self._waiting.late_rows

    def process(self, batch: Batch) -> Results:
        """Store a batch, but for late rows, and return the results that are known with it: pairs,
        and rows that can match nothing, such as those without an event time.

        Args:
            batch: The rows; columns are taken by name.

        Returns:
            The results in pieces of at most ``piece_bytes`` or one row, computed as they are read.
            Read them to the end, or close them, before the next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, earlier results are not
                read, or a condition fails on a row.
        """
        stream, sides = batch.stream, self._sides
        call = f"process({stream!r})"
        self._spec.check_stream(stream)
        check_is_stored(batch)
        self._settle(call)
        rows = as_batch(batch.rows, self._spec.streams[stream], call)
        is_late = self._waiting.late(stream, rows)
        keys = KeyCodec(sides.index_of(stream).key_schema)
        can_match = self._stored.passing(stream, rows)
        can_match &= keys.encode(key_values(sides.index_of(stream), rows)).valid
        times = rows.column(self._event_time.columns[stream])
        can_match &= times.is_valid().to_numpy(zero_copy_only=False)
        in_time = rows.filter(pa.array(can_match & ~is_late))
        parts = self._stored.parts(stream, in_time, self._piece_bytes, more_copies=1)
        new = self._stored.new_lengths(stream, parts) if stream in self._spec.indexed else {}
        self._store.write_all(WriteParts(lambda: self._writes(stream, parts, new)))
        self._stored.learned(new)
        self._waiting.note_late(rows, is_late)
        alone: Iterator[pa.RecordBatch] = iter(())
        if sides.shows_alone(stream):
            alone = self._made.alone(stream, rows.filter(pa.array(~can_match & ~is_late)))
        pieces = coalesced(chain(alone, self._matched(stream, parts)), self._piece_bytes)
        self._unfinished = Results(pieces, schema=self._spec.output_schema)
        return self._unfinished

    def advance(self, watermark_us: int) -> Results:
        """The results that are known for good by this watermark, in microseconds since 1970; once
        they are consumed, what is not needed any more is forgotten. A lower watermark than before
        gives and changes nothing.

        Cost: a look for one partner of each row whose waiting is over.
        """
        self._settle("advance()")
        if not self._waiting.is_new(watermark_us):
            return Results((), schema=self._spec.output_schema)
        pieces = coalesced(self._decided(watermark_us), self._piece_bytes)
        self._unfinished = Results(
            self._handed_out(pieces, watermark_us), schema=self._spec.output_schema
        )
        return self._unfinished

    def finish(self) -> None:
        """To be called before a commit: end what the last call began. InvalidArgumentError if its
        results were neither consumed nor closed."""
        self._settle("commit()")

    def _settle(self, call: str) -> None:
        check_finished(call, self._unfinished)
        self._waiting.settle()  # results given up unread are given up

    def _writes(
        self, stream: str, parts: list[pa.RecordBatch], new: dict[ThetaIndex, set[int]]
    ) -> Iterator[list[Mutation]]:
        lengths = self._stored.length_writes(new)
        if lengths:
            yield lengths
        for part in parts:
            writes = self._stored.writes(stream, part) if stream in self._spec.indexed else []
            yield [*writes, *self._waiting.writes(stream, part)]

    def _matched(self, stream: str, parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Results with a row of each stream."""
        if not self._sides.shows_pairs:
            return
        (step,) = self._sides.theta.steps[stream]
        rows = sum(part.num_rows for part in parts)
        count = ResultCount(stream, rows, self._most_results)
        for part in parts:
            for pairs in self._finder.extended({stream: bound_rows(part)}, step):
                count.add(size_of(pairs))
                yield from self._made.pairs(pairs)

    def _decided(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        for name in self._sides.counted:
            for rows in self._waiting.due(name, watermark_us, self._piece_bytes):
                has_partner = self._finder.have_partners(name, rows)
                is_shown = ~has_partner if self._sides.shows_alone(name) else has_partner
                yield from self._made.alone(name, rows.filter(pa.array(is_shown)))

    def _handed_out(
        self, pieces: Iterator[pa.RecordBatch], watermark_us: int
    ) -> Iterator[pa.RecordBatch]:
        yield from pieces
        self._waiting.go_on(watermark_us)
