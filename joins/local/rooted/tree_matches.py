"""TreeMatches: a tree of joins of any type, with what becomes of a row of a root that has waited.

Matches are combinations with a row of every stream, which the equalities of all streams find. What
becomes of a root's row that has fewer partners says a look along the tree (``RootedSearch``).
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.join_tree import conditions_of
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.parts.time_checks import BoundCheck
from lsmstate.joins.local.parts.write_parts import Beside, WriteParts, no_more
from lsmstate.joins.local.rooted.condition_check import ConditionCheck
from lsmstate.joins.local.rooted.search import RootedSearch
from lsmstate.joins.protocols import Batch, Context
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.store import MultimapStore


class TreeMatches:
    """What ``FinalJoin`` is put around for a ``FinalSpec``. Not thread-safe."""

    def __init__(self, spec: FinalSpec, store: MultimapStore, context: Context) -> None:
        self._spec = spec
        self._store = store
        self._piece_bytes = context.piece_bytes
        self._joined = GraphJoin(spec.graph, store, context.piece_bytes, context.learned)
        self._bounds = BoundCheck(spec.graph, spec.event_time.bounds)
        self._others = ConditionCheck(spec.graph, conditions_of(spec.tree))
        self._searches = {name: self._search(name) for name in spec.waiting}

    @property
    def counts(self) -> Mapping[str, int]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing to release: all rows are in the store."""

    def can_match(self, stream: str, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """All: a row that lacks one key may match by another."""
        return np.ones(rows.num_rows, np.bool_)

    def process(self, batch: Batch, beside: Beside = no_more) -> Results:
        """Store a batch in all indexes that have its keys, together with what stands ``beside`` it,
        and return the results with a row of every stream."""
        stream, spec = batch.stream, self._spec
        parts = self._joined.parts(stream, batch.rows)
        self._store.write_all(
            WriteParts(
                lambda: chain(
                    (self._joined.writes(stream, part, "append") for part in parts), beside()
                )
            )
        )
        if not spec.matches_at_once:
            return Results((), schema=spec.output_schema)
        joinable = [self._joined.joinable(stream, part) for part in parts]
        found = Results(self._joined.results(stream, joinable), schema=spec.output_schema)
        return found.through(self._kept)

    def decided(
        self, stream: str, rows: pa.RecordBatch, *, can_match: bool
    ) -> Iterator[pa.RecordBatch]:
        """What becomes of rows of a root; one without an event time finds nothing."""
        return self._searches[stream].results(self._store, rows)

    def _kept(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        kept = self._others.keep(self._bounds.keep(piece))
        return pa.RecordBatch.from_arrays(kept.columns, schema=self._spec.output_schema)

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
