"""Inner joins of changelogs by several keys: results come and go with the rows they are made of."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.local.changes.counted import with_operation
from lsmstate.joins.local.changes.input import UNMATCHED_RETRACTIONS, ChangeInput
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.parts.changelog import ADDED, REMOVED
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.products import Product
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.protocols import Batch, Context, check_is_stored
from lsmstate.joins.specs.aggregates import OPERATION_STREAM
from lsmstate.joins.specs.changes import GraphChangeSpec
from lsmstate.store import MultimapStore, Mutation


class GraphChangeJoin(KeepsAllRows):
    """The operator over one store, whose streams are ``spec.stream_schemas``; ``unmatched`` as in
    ChangeJoin. Not thread-safe. The store belongs to the caller."""

    def __init__(
        self,
        spec: GraphChangeSpec,
        store: MultimapStore,
        piece_bytes: int = 1 << 20,
        unmatched: str = "count",
    ) -> None:
        self._spec = spec
        self._store = store
        self._join = GraphJoin(spec.graph, store, piece_bytes)
        self._input = ChangeInput(
            store, spec.streams, spec.operations, self._keys, piece_bytes, unmatched
        )
        #: By stream, one of its indexes: all hold all its rows.
        self._index = {index.stream: index for index in reversed(spec.graph.indexes)}
        self._unfinished: Results | None = None

    @classmethod
    def of(cls, spec: GraphChangeSpec, store: MultimapStore, context: Context) -> "GraphChangeJoin":
        """The join in a bucket."""
        return cls(spec, store, context.piece_bytes, context.unmatched)

    @property
    def counts(self) -> Mapping[str, int]:
        """``unmatched_retractions``: retractions left out so far."""
        return {UNMATCHED_RETRACTIONS: self._input.unmatched_retractions}

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return what it changes: first what goes, then what comes. All else is
        as in ChangeJoin.process and GraphJoin.process."""
        stream = batch.stream
        self._spec.check_stream(stream)
        check_is_stored(batch)
        check_finished(f"process({stream!r})", self._unfinished)
        with self._input.undone_if_refused():
            gone, come = self._arrived(stream, batch.rows, batch.is_more_coming)
        self._unfinished = Results(
            self._results(stream, gone, come),
            schema=self._spec.output_schema,
            products=lambda needed: self._products(stream, gone, come, needed),
        )
        return self._unfinished

    def _arrived(
        self, stream: str, batch: pa.RecordBatch, more: bool
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Store the changes that can be made; the rows that go, and those that come, in parts."""
        changes = self._input.arrived(stream, batch)
        if changes.keys.num_columns and not changes.is_added.all():
            # Rows with a null in a key are in no result and are not stored.
            valid = KeyCodec(changes.keys.schema).encode(changes.keys).valid
            changes = changes.take(np.flatnonzero(valid))
            index = self._index[stream]
            names = self._spec.graph.key_schema(index.classes).names
            keys = KeyCodec(changes.keys.select(names).schema).encode(changes.keys.select(names))
            changes, lost = self._input.present(stream, changes, index.name, keys)
            self._input.settle(stream, lost, more=more)
        removed = changes.rows.filter(pa.array(~changes.is_added))
        added = changes.rows.filter(pa.array(changes.is_added))
        gone = self._join.parts(stream, self._join.joinable(stream, removed))
        come = self._join.parts(stream, self._join.joinable(stream, added))
        self._store.write_all(WriteParts(lambda: self._writes(stream, gone, come)))
        return gone, come

    def _writes(
        self, stream: str, gone: list[pa.RecordBatch], come: list[pa.RecordBatch]
    ) -> Iterator[list[Mutation]]:
        for part in gone:
            yield self._join.writes(stream, part, "retract")
        for part in come:
            yield self._join.writes(stream, part, "append")

    def _keys(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._spec.graph.key_batch(stream, batch, self._spec.graph.held_by(stream))

    def _results(
        self, stream: str, gone: list[pa.RecordBatch], come: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for operation, parts in ((REMOVED, gone), (ADDED, come)):
            for piece in self._join.results(stream, parts):
                columns = [pa.repeat(operation, piece.num_rows), *piece.columns]
                yield pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)

    def _products(
        self,
        stream: str,
        gone: list[pa.RecordBatch],
        come: list[pa.RecordBatch],
        needed: Collection[str],
    ) -> Iterator[Product]:
        """The same as products; the operation is a stream of its own."""
        for operation, parts in ((REMOVED, gone), (ADDED, come)):
            for product in self._join.products(stream, parts, needed):
                shows = OPERATION_STREAM in needed
                yield with_operation(product, operation) if shows else product
