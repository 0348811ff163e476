"""Joins of any type by several keys: what comes, and what is taken back.

A batch changes the rows of one stream. Results with these rows come or go: they are found from the
rows up to the root, and from there on as ever. Where a row of the stream it is compared with gets
its first partner, or loses the last one, the combinations it is in change sides: they are found in
the same way, from that row, and have nulls or nothing in the partner's place. Where the stream is
compared with several, so that the join graph may be a cycle, combinations of their rows get a first
partner, or lose the last one. A tree with several roots does all this for each, of which the rows
themselves come and go where they are to be in no combination of others (``root_changes``).
"""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.joins.local.changes.input import UNMATCHED_RETRACTIONS, ChangeInput
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.parts.bound_rows import parts_of
from lsmstate.joins.local.parts.changelog import ADDED, REMOVED, WRITES, Changes
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.local.rooted.combinations import Found
from lsmstate.joins.local.rooted.partner_changes import Turned
from lsmstate.joins.local.rooted.root_changes import TurnedRoots
from lsmstate.joins.local.rooted.search import Probed, RootedSearch
from lsmstate.joins.protocols import Batch, Context, check_is_stored
from lsmstate.joins.specs.changes_multi_key import RootedChangeSpec, all_rows
from lsmstate.joins.specs.rooted_steps import RootedJoins, Step
from lsmstate.store import MultimapStore, Mutation
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema

#: Rows by whether they come.
Signed = Mapping[bool, pa.RecordBatch]


class RootedChangeJoin(KeepsAllRows):
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
        self._parts = [_Part(spec, part, store, piece_bytes) for part in spec.parts]
        self._input = ChangeInput(
            store, spec.streams, spec.operations, self._keys, piece_bytes, unmatched
        )
        self._unfinished: Results | None = None

    @classmethod
    def of(
        cls, spec: RootedChangeSpec, store: MultimapStore, context: Context
    ) -> "RootedChangeJoin":
        """The join in a bucket."""
        return cls(spec, store, context.piece_bytes, context.unmatched)

    @property
    def counts(self) -> Mapping[str, int]:
        """``unmatched_retractions``: retractions left out so far."""
        return {UNMATCHED_RETRACTIONS: self._input.unmatched_retractions}

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return what it changes: first what goes, then what comes. All else is
        as in ChangeJoin.process."""
        stream = batch.stream
        self._spec.check_stream(stream)
        check_is_stored(batch)
        check_finished(f"process({stream!r})", self._unfinished)
        with self._input.undone_if_refused():
            rows, examples = self._arrived(stream, batch.rows, batch.is_more_coming)
        self._unfinished = Results(
            self._results(stream, rows, examples), schema=self._spec.output_schema
        )
        return self._unfinished

    def _arrived(
        self, stream: str, batch: pa.RecordBatch, more: bool
    ) -> tuple[Signed, list[Signed]]:
        """Store the changes that can be made; the rows by whether they come, and by part of the
        join an example of each key that changes sides."""
        changes = self._input.arrived(stream, batch)
        needed = self._spec.keys_of(stream)
        if needed:
            # Rows with a null in the key they are compared by are in no result.
            valid = self._encoded(changes.keys, needed).valid
            changes = changes if valid.all() else changes.take(np.flatnonzero(valid))
        if not changes.is_added.all():
            if needed:
                name, keys = self._spec.index(stream, needed), self._encoded(changes.keys, needed)
            else:
                codec = KeyCodec(null_safe_schema(changes.keys.schema))
                name, keys = all_rows(stream), codec.encode(null_safe_keys(changes.keys))
            changes, lost = self._input.present(stream, changes, name, keys)
            self._input.settle(stream, lost, more=more)
        examples = [part.examples(stream, changes) for part in self._parts]
        rows = {
            sign: changes.rows.filter(pa.array(changes.is_added == sign)) for sign in (False, True)
        }
        self._store.write_all(WriteParts(lambda: self._writes(stream, rows)))
        return rows, examples

    def _keys(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those without which a row is in no result; of a root all keys."""
        classes = self._spec.keys_of(stream) or self._spec.graph.held_by(stream)
        return self._spec.graph.key_batch(stream, batch, classes)

    def _encoded(self, keys: pa.RecordBatch, classes: tuple[int, ...]) -> KeyBatch:
        schema = self._spec.graph.key_schema(classes)
        return KeyCodec(schema).encode(keys.select(schema.names))

    def _writes(self, stream: str, rows: Signed) -> Iterator[list[Mutation]]:
        """What makes the changes, first what goes, in parts of at most a piece."""
        for kind, sign in WRITES:
            for part in self._indexes.parts(stream, rows[sign], 1):
                writes = self._indexes.writes(stream, part, kind)
                if all_rows(stream) in self._store.streams:
                    keys = null_safe_keys(self._keys(stream, part))
                    writes.append(Mutation(kind, all_rows(stream), keys, part))
                yield writes

    def _results(
        self, stream: str, rows: Signed, examples: list[Signed]
    ) -> Iterator[pa.RecordBatch]:
        for sign, operation in ((False, REMOVED), (True, ADDED)):
            for part, turned in zip(self._parts, examples, strict=True):
                for piece in part.results(stream, rows, turned, sign=sign):
                    columns = [pa.repeat(operation, piece.num_rows), *piece.columns]
                    yield pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)


class _Part:
    """What becomes of the rows of one root."""

    def __init__(
        self, spec: RootedChangeSpec, joins: RootedJoins, store: MultimapStore, piece_bytes: int
    ) -> None:
        self._spec = spec
        self._joins = joins
        self._store = store
        self._piece_bytes = piece_bytes
        indexes = spec.graph.indexes
        self._search = RootedSearch(
            spec.graph, joins, indexes, spec.shown, spec.rows_schema, piece_bytes
        )
        self._turned = {
            step.stream: Turned(
                spec.graph,
                step,
                indexes,
                piece_bytes,
                None if step.is_by_one else partial(self._combined, step),
            )
            for step in joins.steps
            if not step.is_by_key
        }
        self._turned_roots: TurnedRoots | None = None
        if joins.unless is not None:
            self._turned_roots = TurnedRoots(spec.graph, joins.unless, indexes, piece_bytes)

    def examples(self, stream: str, changes: Changes) -> Signed:
        """One row of each key of which the first comes (True), or the last goes (False), before
        the changes are made. None where more than the keys of one stream says what matches."""
        step = self._joins.step_of(stream)
        if step is None or step.kind == "inner" or not step.is_by_key:
            return {}
        schema = self._spec.graph.key_schema(step.classes)
        keys = KeyCodec(schema).encode(changes.keys.select(schema.names))
        distinct, starts = keys.distinct()
        signs = np.where(changes.is_added[keys.order], 1, -1)
        before = self._store.probe(self._spec.index(stream, step.classes), distinct).counts
        after = before + np.add.reduceat(signs, starts[:-1]) if len(distinct) else before
        chosen = keys.order[starts[:-1]]
        return {
            True: changes.rows.take(pa.array(chosen[(before == 0) & (after > 0)])),
            False: changes.rows.take(pa.array(chosen[(before > 0) & (after == 0)])),
        }

    def results(
        self, stream: str, rows: Signed, examples: Signed, *, sign: bool
    ) -> Iterator[pa.RecordBatch]:
        """What comes (``sign``) or goes, as changes of ``rows`` make it."""
        step = self._joins.step_of(stream)
        if step is None and stream != self._joins.root:
            if self._turned_roots is not None and stream in self._turned_roots.streams:
                found = self._turned_roots.found(self._store, stream, rows, by_first=not sign)
                yield from self._search.grown(self._store, found, without=stream)
            return
        if step is None or step.kind in ("inner", "left"):
            yield from self._search.grown(self._store, self._risen(stream, rows[sign]))
        if step is not None and step.kind != "inner":
            # A row is without partner where the last one goes, and with one where one comes.
            by_first = sign if step.kind == "semi" else not sign
            if step.is_by_key:
                found = self._risen(stream, examples[by_first])
            else:
                found = self._turned[stream].found(self._store, rows, by_first=by_first)
            if step.is_by_one and not step.is_by_key:
                turned = found
                found = (
                    risen
                    for each in turned
                    for risen in self._search.risen(self._store, each, step.earlier)
                )
            beside = (self._without(each, step) for each in found)
            yield from self._search.grown(self._store, beside, without=stream)

    def _risen(self, stream: str, rows: pa.RecordBatch) -> Iterator[Found]:
        """Combinations of the rows with those that lead to them from the root."""
        for part in parts_of(rows, self._piece_bytes):
            yield from self._search.risen(self._store, self._search.begun(stream, part), stream)

    def _combined(self, step: Step, store: Probed, found: Found) -> Iterator[Found]:
        """Rows of ``step.earlier`` in combinations with all that the step names."""
        steps = self._joins.lineage(step.stream)[:-1]
        return self._search.risen(store, found, step.earlier, steps)

    def _without(self, found: Found, step: Step) -> Found:
        """The combinations with nulls, or nothing, for the step's stream."""
        if step.kind == "left":
            return found.without(step.stream, self._spec.streams[step.stream])
        bound = {name: rows for name, rows in found.bound.items() if name != step.stream}
        return Found(bound, found.has_nulls)
