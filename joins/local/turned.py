"""Rows that get their first partner by a change, or lose their last, where partners are so in time.

By keys alone that is asked of a key: its rows have the same partners. With intervals it is asked of
each row of the stream that the changed one is compared with, by counting its partners.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from cython_ext.key_codec import KeyCodec
from joins.graph_spec import GraphSpec, Index
from joins.local.bound_rows import BoundRows, equal_pairs, fetch_bytes, fetched_pairs, grouped
from joins.local.found import Found, keeps
from joins.local.picked import Numbers
from joins.rooted_joins import Step
from lsmstate.arrow_sizes import least_row_bytes, row_sizes
from lsmstate.store import StoreReader


class Turned:
    """Of one step, whose stream changes: rows of the stream it is compared with."""

    def __init__(
        self, graph: GraphSpec, step: Step, indexes: Sequence[Index], piece_bytes: int
    ) -> None:
        self._graph = graph
        self._step = step
        self._piece_bytes = piece_bytes
        self._codec = KeyCodec(graph.key_schema(step.classes))
        self._own, self._other = (
            next(i.name for i in indexes if (i.stream, i.classes) == (stream, step.classes))
            for stream in (step.stream, step.earlier)
        )

    def found(
        self, store: StoreReader, rows: Mapping[bool, pa.RecordBatch], *, by_first: bool
    ) -> Iterator[Found]:
        """Those that got their first partner, or with ``by_first=False`` lost their last one, when
        ``rows[True]`` came and ``rows[False]`` went, as the store has it now. Cost: all pairs of
        the changed rows, and of these partners, with the rows that have their keys."""
        keys = {sign: self._keys(self._step.stream, each) for sign, each in rows.items()}
        distinct, _ = grouped(self._codec.encode(keys[by_first]))
        probe = store.probe(self._other, distinct)
        wanted = np.flatnonzero(probe.counts)
        if len(wanted) == 0:
            return
        least = least_row_bytes(self._graph.streams[self._step.earlier])
        for piece in probe.fetch(wanted, fetch_bytes(probe, wanted, least, self._piece_bytes)):
            places = np.arange(piece.rows.num_rows, dtype=np.int64)
            here = Found({self._step.earlier: BoundRows(piece.rows, row_sizes(piece.rows), places)})
            ours = self._keys(self._step.earlier, piece.rows)
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

    def _partners(self, store: StoreReader, here: Found, ours: pa.RecordBatch) -> Numbers:
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
        return np.bincount(lefts[keeps(self._step, both)], minlength=len(here))

    def _keys(self, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._graph.key_batch(stream, rows, self._step.classes)
