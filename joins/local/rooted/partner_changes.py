"""Rows that get their first partner by a change, or lose their last, where partners are so in time.

By keys alone that is asked of a key: its rows have the same partners. With intervals it is asked of
each row of the stream that the changed one is compared with, by counting its partners; and where
that is compared with several streams, of each combination of their rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.local.parts.bound_rows import (
    BoundRows,
    equal_pairs,
    fetch_bytes,
    fetched_pairs,
    grouped,
)
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.rooted.combinations import Found, keeps, key_values, parts_by
from lsmstate.joins.local.rooted.search import Probed
from lsmstate.joins.specs.multi_key import GraphSpec, Index
from lsmstate.joins.specs.rooted_steps import Step
from lsmstate.schema.arrow_sizes import least_row_bytes, row_sizes


class Turned:
    """Of one step, whose stream changes: rows of the stream it is compared with."""

    def __init__(
        self,
        graph: GraphSpec,
        step: Step,
        indexes: Sequence[Index],
        piece_bytes: int,
        combined: Callable[[Probed, Found], Iterator[Found]] | None = None,
    ) -> None:
        """``combined``: rows of ``step.earlier`` in all combinations with rows of the other
        streams that the step names, before it; None where there are no others."""
        self._graph = graph
        self._step = step
        self._piece_bytes = piece_bytes
        self._combined = combined or (lambda _store, found: iter([found]))
        self._codec = KeyCodec(graph.key_schema(step.classes))
        names = {(index.stream, index.classes): index.name for index in indexes}
        self._own = names[step.stream, step.classes]
        self._other = names[step.earlier, step.earlier_classes]

    def found(
        self, store: Probed, rows: Mapping[bool, pa.RecordBatch], *, by_first: bool
    ) -> Iterator[Found]:
        """Those that got their first partner, or with ``by_first=False`` lost their last one, when
        ``rows[True]`` came and ``rows[False]`` went, as the store has it now. Cost: all pairs of
        the changed rows, and of these partners, with the rows that have their keys."""
        stream, classes = self._step.stream, self._step.classes
        keys = {sign: self._graph.key_batch(stream, rows[sign], classes) for sign in (True, False)}
        named = self._graph.key_batch(stream, rows[by_first], self._step.earlier_classes)
        distinct, _ = grouped(KeyCodec(named.schema).encode(named))
        probe = store.probe(self._other, distinct)
        wanted = np.flatnonzero(probe.counts)
        if len(wanted) == 0:
            return
        least = least_row_bytes(self._graph.streams[self._step.earlier])
        for piece in probe.fetch(wanted, fetch_bytes(probe, wanted, least, self._piece_bytes)):
            places = np.arange(piece.rows.num_rows, dtype=np.int64)
            begun = BoundRows(piece.rows, row_sizes(piece.rows), places)
            each = self._combined(store, Found({self._step.earlier: begun}))
            for here in (p for f in each for p in parts_by(self._graph, f, self._step.holders)):
                ours = key_values(self._graph, here, self._step.holders)
                come, gone = (self._matching(here, ours, rows[s], keys[s]) for s in (True, False))
                touched = np.flatnonzero(come if by_first else gone)
                now = self._partners(store, here.take(touched), ours.take(pa.array(touched)))
                before = now - come[touched] + gone[touched]
                yield here.take(touched[(before if by_first else now) == 0])

    def _matching(
        self, here: Found, ours: pa.RecordBatch, rows: pa.RecordBatch, keys: pa.RecordBatch
    ) -> Numbers:
        """Of each row here, whose keys are ``ours``, how many of ``rows`` are its partners."""
        _, groups = grouped(self._codec.encode(pa.concat_batches([ours, keys])))
        counts = np.zeros(len(here), dtype=np.int64)
        sizes = row_sizes(rows)
        for lefts, rights in equal_pairs(groups[: len(here)], groups[len(here) :]):
            counts += self._counted(here, lefts, BoundRows(rows, sizes, rights))
        return counts

    def _partners(self, store: Probed, here: Found, ours: pa.RecordBatch) -> Numbers:
        """Of each row here how many partners it has in the store."""
        distinct, groups = grouped(self._codec.encode(ours))
        probe = store.probe(self._own, distinct)
        present = np.flatnonzero(probe.counts[groups] > 0)
        least = least_row_bytes(self._graph.streams[self._step.stream])
        counts = np.zeros(len(here), dtype=np.int64)
        for lefts, partners in fetched_pairs(probe, groups[present], least, self._piece_bytes):
            counts += self._counted(here, present[lefts], partners)
        return counts

    def _counted(self, here: Found, lefts: Numbers, partners: BoundRows) -> Numbers:
        both = here.take(lefts).joined(self._step.stream, partners)
        is_kept = keeps(self._graph, self._step, both, self._step.more_keys)
        return np.bincount(lefts[is_kept], minlength=len(here))
