"""Rows of a root that get their first partner by a change, or lose their last, where a partner is a
combination of other streams' rows: those on the right of a right or full join that closes a cycle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.joins.local.parts.bound_rows import BoundRows, fetch_bytes, parts_of
from lsmstate.joins.local.rooted.combinations import Found, key_values, parts_by
from lsmstate.joins.local.rooted.overlay_store import RowsInstead
from lsmstate.joins.local.rooted.search import Probed, RootedSearch
from lsmstate.joins.specs.multi_key import GraphSpec, Index
from lsmstate.joins.specs.rooted_steps import RootedJoins
from lsmstate.schema.arrow_sizes import least_row_bytes, row_sizes


class TurnedRoots:
    """Of ``joins``, which are inner and the last of them with the root."""

    def __init__(
        self, graph: GraphSpec, joins: RootedJoins, indexes: Sequence[Index], piece_bytes: int
    ) -> None:
        *self._steps, self._last = joins.steps
        self._graph = graph
        self._indexes = indexes
        self._piece_bytes = piece_bytes
        self._root = self._last.stream
        #: Those whose changes it can be asked of.
        self.streams = joins.streams - {self._root}
        shown = graph.shown_rows[self._root]
        self._search = RootedSearch(graph, joins, indexes, [self._root], shown, piece_bytes)
        self._codec = KeyCodec(graph.key_schema(self._last.classes))
        looked_up = (self._root, self._last.classes)
        self._own = next(i.name for i in indexes if (i.stream, i.classes) == looked_up)

    def found(
        self, store: Probed, stream: str, rows: Mapping[bool, pa.RecordBatch], *, by_first: bool
    ) -> Iterator[Found]:
        """Those that got their first partner, or with ``by_first=False`` lost their last one, when
        ``rows[True]`` of ``stream`` came and ``rows[False]`` went, as the store has it now. Cost:
        all combinations that hold a changed row, and all that hold a row of the root which one of
        these matches. Memory: the distinct keys by which they match, besides pieces."""
        probe = store.probe(self._own, self._reached(store, stream, rows[by_first]))
        wanted = np.flatnonzero(probe.counts)
        if len(wanted) == 0:
            return
        changed = {
            sign: RowsInstead(store, self._graph, self._indexes, stream, rows[sign])
            for sign in (True, False)
        }
        least = least_row_bytes(self._graph.streams[self._root])
        for piece in probe.fetch(wanted, fetch_bytes(probe, wanted, least, self._piece_bytes)):
            places = np.arange(piece.rows.num_rows, dtype=np.int64)
            here = BoundRows(piece.rows, row_sizes(piece.rows), places)
            touching = self._search.counts(changed[by_first], self._root, here)
            here = replace(here, at=np.flatnonzero(touching))
            others = self._search.counts(changed[not by_first], self._root, here)
            now = self._search.counts(store, self._root, here)
            # Of those that came, or went, by which it is the first one, or was the last.
            rest = now - touching + others if by_first else now
            yield Found({self._root: replace(here, at=here.at[rest[here.at] == 0])})

    def _reached(self, store: Probed, stream: str, rows: pa.RecordBatch) -> KeyBatch:
        """The keys by which the root's rows match combinations that hold one of the rows."""
        reached: set[bytes | None] = set()
        for part in parts_of(rows, self._piece_bytes):
            begun = self._search.begun(stream, part)
            for found in self._search.risen(store, begun, stream, self._steps):
                for here in parts_by(self._graph, found, self._last.holders):
                    values = key_values(self._graph, here, self._last.holders)
                    reached.update(self._codec.encode(values).distinct()[0].to_pylist())
        return KeyBatch.from_bytes(list(reached))
