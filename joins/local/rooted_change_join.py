"""Left, semi and anti joins by several keys: what comes, and what is taken back.

A batch changes the rows of one stream. Results with these rows come or go: they are found from the
rows up to the root, and from there on as ever. Where a stream gets its first row of a key, or loses
the last one, the combinations it is compared with change sides: they are found in the same way,
from one such row, and have nulls or nothing in its place.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

from cython_ext.key_codec import KeyCodec
from joins.changes import ADDED, REMOVED, Changes
from joins.local.bound_rows import parts_of
from joins.local.change_input import ChangeInput
from joins.local.graph_join import GraphJoin
from joins.local.results import Results, check_finished
from joins.local.rooted_search import Found, RootedSearch
from joins.rooted_change_spec import RootedChangeSpec, all_rows
from joins.rooted_joins import Step
from lsmstate.null_safe_store import null_safe_keys, null_safe_schema
from lsmstate.store import MultimapStore, Mutation


class RootedChangeJoin:
    """The operator over one store, whose streams are ``spec.stream_schemas``; ``unmatched`` as in
    ChangeJoin. Not thread-safe. The store belongs to the caller."""

    def __init__(
        self,
        spec: RootedChangeSpec,
        store: MultimapStore,
        piece_bytes: int = 1 << 20,
        unmatched: str = "count",
    ) -> None:
        self._spec = spec
        self._store = store
        self._piece_bytes = piece_bytes
        self._indexes = GraphJoin(spec.graph, store, piece_bytes)
        self._search = RootedSearch(
            spec.graph, spec.joins, spec.graph.indexes, spec.shown, spec.rows_schema, piece_bytes
        )
        self._input = ChangeInput(
            store, spec.streams, spec.operations, self._keys, piece_bytes, unmatched
        )
        self._unfinished: Results | None = None

    @property
    def unmatched_retractions(self) -> int:
        """Retractions left out so far."""
        return self._input.unmatched_retractions

    def process(self, stream: str, batch: pa.RecordBatch, *, more: bool = False) -> Results:
        """Store the batch now; return what it changes: first what goes, then what comes. All else
        as in ChangeJoin.process."""
        self._spec.check_stream(stream)
        check_finished(f"process({stream!r})", self._unfinished)
        changes = self._input.arrived(stream, batch)
        step = self._spec.joins.step_of(stream)
        encoded = None
        if step is not None:
            # Rows with a null in the key they are compared by are in no result.
            encoded = self._step_codec(step).encode(changes.keys)
            if not encoded.valid.all():
                changes = changes.take(np.flatnonzero(encoded.valid))
                encoded = self._step_codec(step).encode(changes.keys)
        if not changes.is_added.all():
            if step is None:
                codec = KeyCodec(null_safe_schema(changes.keys.schema))
                name, keys = all_rows(stream), codec.encode(null_safe_keys(changes.keys))
            else:
                assert encoded is not None
                name, keys = self._index_name(step), encoded
            changes, lost = self._input.present(stream, changes, name, keys)
            self._input.settle(stream, lost, more=more)
        turned = {True: changes.rows.slice(0, 0), False: changes.rows.slice(0, 0)}
        if step is not None and step.kind != "inner":
            turned = self._turned(step, changes)
        rows = {sign: changes.rows.filter(pa.array(changes.is_added == sign)) for sign in (0, 1)}
        for sign, kind in ((0, "retract"), (1, "append")):
            self._write(stream, rows[sign], "append" if kind == "append" else "retract")
        self._unfinished = Results(
            self._results(stream, step, {False: rows[0], True: rows[1]}, turned)
        )
        return self._unfinished

    def _keys(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Of the root all keys, of others those they are compared by."""
        step = self._spec.joins.step_of(stream)
        classes = self._spec.graph.held_by(stream) if step is None else step.classes
        return self._spec.graph.key_batch(stream, batch, classes)

    def _step_codec(self, step: Step) -> KeyCodec:
        return KeyCodec(self._spec.graph.key_schema(step.classes))

    def _index_name(self, step: Step) -> str:
        wanted = (step.stream, step.classes)
        return next(i.name for i in self._spec.graph.indexes if (i.stream, i.classes) == wanted)

    def _turned(self, step: Step, changes: Changes) -> dict[bool, pa.RecordBatch]:
        """One row of each key of which the first comes (True), or the last goes (False)."""
        distinct, starts = self._step_codec(step).encode(changes.keys).distinct()
        order = self._step_codec(step).encode(changes.keys).order
        signs = np.where(changes.is_added[order], 1, -1)
        before = self._store.probe(self._index_name(step), distinct).counts
        after = before + np.add.reduceat(signs, starts[:-1]) if len(distinct) else before
        examples = order[starts[:-1]]
        return {
            True: changes.rows.take(pa.array(examples[(before == 0) & (after > 0)])),
            False: changes.rows.take(pa.array(examples[(before > 0) & (after == 0)])),
        }

    def _write(self, stream: str, rows: pa.RecordBatch, kind: Literal["append", "retract"]) -> None:
        for part in self._indexes.parts(stream, rows, 1):
            writes = self._indexes.writes(stream, part, kind)
            if all_rows(stream) in self._store.streams:
                keys = null_safe_keys(self._keys(stream, part))
                writes.append(Mutation(kind, all_rows(stream), keys, part))
            self._store.write(writes)

    def _results(
        self,
        stream: str,
        step: Step | None,
        rows: dict[bool, pa.RecordBatch],
        turned: dict[bool, pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        for sign, operation in ((False, REMOVED), (True, ADDED)):
            pieces: list[Iterator[pa.RecordBatch]] = []
            if step is None or step.kind in ("inner", "left"):
                pieces.append(self._search.grown(self._store, self._with(stream, rows[sign])))
            if step is not None and step.kind != "inner":
                # A row is without partner where the last one goes, and with one where one comes.
                which = turned[sign if step.kind == "semi" else not sign]
                beside = (self._without(found, step) for found in self._with(stream, which))
                pieces.append(self._search.grown(self._store, beside, without=stream))
            for found in pieces:
                for piece in found:
                    columns = [pa.repeat(operation, piece.num_rows), *piece.columns]
                    yield pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)

    def _with(self, stream: str, rows: pa.RecordBatch) -> Iterator[Found]:
        """Combinations of the rows with those that lead to them from the root."""
        for part in parts_of(rows, self._piece_bytes):
            yield from self._search.risen(self._store, self._search.begun(stream, part), stream)

    def _without(self, found: Found, step: Step) -> Found:
        """The combinations with nulls, or nothing, for the step's stream."""
        if step.kind == "left":
            return found.without(step.stream, self._spec.streams[step.stream])
        bound = {name: rows for name, rows in found.bound.items() if name != step.stream}
        return Found(bound, found.has_nulls)
