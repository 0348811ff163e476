"""A join of any type whose results come once: matches at once, the rest when the watermark says so.

Rows of a root wait in a stream of their own, by event time. When no row can come that matters to
them, they are looked up with what the other streams have, and leave it. Watermark, rows that
leave and partners that are forgotten change together, after the results were handed out: a call
that is broken off is made again from the state before.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import pyarrow as pa

from lsmstate.joins.conditions.join_tree import conditions_of
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.time_checks import BoundCheck
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.local.rooted.condition_check import ConditionCheck
from lsmstate.joins.local.rooted.search import RootedSearch
from lsmstate.joins.local.timed.event_time_join import (
    LATE_ROWS,
)
from lsmstate.joins.local.timed.waiting_rows import WaitingRows
from lsmstate.joins.protocols import Batch, Context, check_is_stored
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore, Mutation


class FinalJoin:
    """The operator over ``store``, whose streams are ``spec.stream_schemas``.

    Not thread-safe. The store belongs to the caller, who commits and closes it.
    """

    def __init__(
        self,
        spec: FinalSpec,
        store: MultimapStore,
        piece_bytes: int = 1 << 20,
        probe_order: ProbeOrder | None = None,
    ) -> None:
        """``probe_order``: what an operator of the same join has learned before."""
        self._event_time = spec.event_time
        self._spec = spec
        self._store = store
        self._piece_bytes = piece_bytes
        self._matches = GraphJoin(spec.graph, store, piece_bytes, probe_order)
        self._check = BoundCheck(spec.graph, spec.event_time.bounds)
        self._others = ConditionCheck(spec.graph, conditions_of(spec.tree))
        self._searches = {name: self._search(name) for name in spec.waiting}
        waits_us = {name: each.waits_us for name, each in spec.waiting.items()}
        self._waiting = WaitingRows(
            store, spec.streams, spec.event_time, spec.graph.owners, waits_us
        )
        self._unfinished: Results | None = None

    @classmethod
    def of(cls, spec: FinalSpec, store: MultimapStore, context: Context) -> "FinalJoin":
        """The join in a bucket."""
        return cls(spec, store, context.piece_bytes, context.learned)

    @property
    def counts(self) -> Mapping[str, int]:
        """``late_rows``: rows that came late."""
        return {LATE_ROWS: self._waiting.late_count}

    @property
    def watermark_us(self) -> int | None:
        """Microseconds since 1970; None before the first ``advance``."""
        return self._waiting.watermark_us

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """With ``late="side"``: the late rows of the last batch."""
        return self._waiting.late_rows

    def process(self, arriving: Batch) -> Results:
        """Store a batch, and return the results that are known with it, as GraphJoin.process does.
        Late rows are left out. A row without an event time matches nothing."""
        stream = arriving.stream
        self._spec.check_stream(stream)
        check_is_stored(arriving)
        self._settle(f"process({stream!r})")
        batch = as_batch(arriving.rows, self._spec.streams[stream], f"process({stream!r})")
        is_late = self._waiting.late(stream, batch)
        column = self._event_time.columns.get(stream)
        is_timed = np.ones(batch.num_rows, dtype=np.bool_)
        if column is not None:
            is_timed = batch.column(column).is_valid().to_numpy(zero_copy_only=False)
        parts = self._matches.parts(stream, batch.filter(pa.array(is_timed & ~is_late)), 1)
        self._store.write_all(WriteParts(lambda: self._writes(stream, parts)))
        self._waiting.note_late(batch, is_late)
        alone = self._alone(stream, batch.filter(pa.array(~is_timed)))
        self._unfinished = Results(
            chain(alone, self._matched(stream, parts)), schema=self._spec.output_schema
        )
        return self._unfinished

    def advance(self, watermark_us: int) -> Results:
        """The results that are known for good by this watermark, in microseconds since 1970; once
        they are consumed, what is not needed any more is forgotten. A lower watermark than before
        gives and changes nothing. Cost: that of the rows whose waiting is over."""
        self._settle("advance()")
        if not self._waiting.is_new(watermark_us):
            return Results((), schema=self._spec.output_schema)
        self._unfinished = Results(self._finalised(watermark_us), schema=self._spec.output_schema)
        return self._unfinished

    def finish(self) -> None:
        """To be called before a commit: end what the last call began. InvalidArgumentError if its
        results were neither consumed nor closed."""
        self._settle("commit()")

    def _settle(self, call: str) -> None:
        check_finished(call, self._unfinished)
        self._waiting.settle()  # results given up unread are given up

    def _finalised(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        for name, search in self._searches.items():
            for rows in self._waiting.due(name, watermark_us, self._piece_bytes):
                yield from search.results(self._store, rows)
        self._waiting.go_on(watermark_us)

    def _matched(self, stream: str, parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Results with a row of every stream."""
        if not self._spec.matches_at_once:
            return
        joinable = [self._matches.joinable(stream, part) for part in parts]
        for piece in self._matches.results(stream, joinable):
            kept = self._others.keep(self._check.keep(piece))
            if kept.num_rows:
                yield pa.RecordBatch.from_arrays(kept.columns, schema=self._spec.output_schema)

    def _alone(self, stream: str, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Results of rows that nothing can match, since they have no event time."""
        if stream in self._searches and rows.num_rows:
            yield from self._searches[stream].results(self._store, rows)

    def _writes(self, stream: str, parts: list[pa.RecordBatch]) -> Iterator[list[Mutation]]:
        for part in parts:
            stored = self._matches.writes(stream, part, "append")
            yield [*stored, *self._waiting.writes(stream, part)]

    def _search(self, root: str) -> RootedSearch:
        spec = self._spec
        joins = spec.waiting[root].joins
        everywhere = {root} | {s.stream for s in joins.steps if s.kind in ("inner", "left")}
        return RootedSearch(
            spec.graph,
            joins,
            spec.indexes,
            spec.shown,
            spec.output_schema,
            self._piece_bytes,
            unmatched_only=spec.matches_at_once and everywhere == spec.streams.keys(),
        )
