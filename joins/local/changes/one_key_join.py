"""Joins of any type and of changelogs: what comes, and what is taken back.

The result at a key follows from which streams have rows there (``join_tree.products``). A batch
changes the rows of one stream: where some were there before and some are after, results with the
rows that came or went come or go; where the first comes or the last goes, the products change, and
those that are no longer part of the result are taken back, before those that now are come.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import required_streams
from lsmstate.joins.local.changes.input import UNMATCHED_RETRACTIONS, ChangeInput
from lsmstate.joins.local.changes.results import Changed, Emitted, Emitter
from lsmstate.joins.local.parts.changelog import WRITES, Changes
from lsmstate.joins.local.parts.combiner import GroupedRows, starts_of
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.protocols import Batch, Context, check_is_stored
from lsmstate.joins.specs.changes import ChangeSpec, null_stream
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.store import MultimapStore, Mutation, Probe
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema


class ChangeJoin(KeepsAllRows):
    """The operator over one store, whose streams are ``spec.stream_schemas``.

    ``unmatched`` says what becomes of a retraction of a row that is not there: "count" leaves it
    out, as Flink does, and counts it in ``unmatched_retractions``; "error" refuses the batch
    (InvalidArgumentError). Not thread-safe. The store belongs to the caller.
    """

    def __init__(
        self,
        spec: ChangeSpec,
        store: MultimapStore,
        piece_bytes: int = 1 << 20,
        unmatched: str = "count",
        probe_order: ProbeOrder | None = None,
    ) -> None:
        if piece_bytes < 1:
            raise InvalidArgumentError(f"piece_bytes={piece_bytes!r}: must be at least 1")
        wanted = [schema.name for schema in spec.stream_schemas]
        if list(store.streams) != wanted:
            raise InvalidArgumentError(
                f"the store holds the streams {', '.join(store.streams)}, the join needs "
                f"{', '.join(wanted)}; open the store with spec.stream_schemas"
            )
        self._spec = spec
        self._store = store
        self._piece_bytes = piece_bytes
        self._input = ChangeInput(
            store, spec.streams, spec.operations, spec.keys.key_batch, piece_bytes, unmatched
        )
        self._codec = KeyCodec(spec.keys.key_schema)
        self._null_codec = KeyCodec(null_safe_schema(spec.keys.key_schema))
        self._probe_order = probe_order or ProbeOrder()
        self._emitter = Emitter(spec, piece_bytes)
        self._required = required_streams(spec.tree)
        self._unfinished: Results | None = None

    @classmethod
    def of(cls, spec: ChangeSpec, store: MultimapStore, context: Context) -> "ChangeJoin":
        """The join in a bucket."""
        return cls(spec, store, context.piece_bytes, context.unmatched, context.learned)

    @property
    def counts(self) -> Mapping[str, int]:
        """``unmatched_retractions``: retractions left out so far."""
        return {UNMATCHED_RETRACTIONS: self._input.unmatched_retractions}

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return what it changes.

        A batch that is refused changes nothing.

        Args:
            batch: The rows, with the operation column if the stream is a changelog. Its rows count
                together, in whatever order they stand. With ``is_more_coming``, a retraction whose
                row is not there waits for the next batch of the stream. ``computed`` is the key of
                each row.

        Returns:
            The changes in pieces of at most ``piece_bytes`` or one row, computed as they are read,
            with the columns ``spec.output_schema``. Read them to the end, or close them, before the
            next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, or earlier results are not
                read.
            MemoryLimitError: More than 4 MiB of retractions wait.

        Cost:
            That of an inner join's probes. A retraction reads its stream's rows of the key.
        """
        stream = batch.stream
        self._spec.check_stream(stream)
        check_is_stored(batch)
        check_finished(f"process({stream!r})", self._unfinished)
        assert batch.computed is None or isinstance(batch.computed, pa.RecordBatch)
        with self._input.undone_if_refused():
            changes = self._input.arrived(stream, batch.rows, batch.computed)
            changed, alone = self._arrived(stream, changes, batch.is_more_coming)
        emitted = self._emitted(stream, changed, alone)
        self._unfinished = Results(
            self._emitter.rows(emitted),
            schema=self._spec.output_schema,
            products=lambda needed: self._emitter.counted(emitted, needed),
        )
        return self._unfinished

    def _arrived(self, stream: str, changes: Changes, more: bool) -> tuple[Changed, Changes]:
        """Store the changes that can be made; these, and those of rows that match nothing."""
        encoded = self._codec.encode(changes.keys)
        alone = changes.take(np.flatnonzero(~encoded.valid))
        if len(alone):
            changes = changes.take(np.flatnonzero(encoded.valid))
        if not self._spec.is_preserved(stream):
            alone = alone.take(np.zeros(0, dtype=np.int64))
        if not changes.is_added.all() or not alone.is_added.all():
            present = self._input.present
            changes, lost = present(stream, changes, stream, self._codec.encode(changes.keys))
            null_keys = self._null_codec.encode(null_safe_keys(alone.keys))
            alone, also_lost = present(stream, alone, null_stream(stream), null_keys)
            self._input.settle(stream, lost.then(also_lost), more=more)
        return self._stored(stream, changes, alone), alone

    def _stored(self, stream: str, changes: Changes, alone: Changes) -> Changed:
        """Make the changes and those of rows ``alone``; what the former were, by key, and where
        there were rows before and after."""
        keys = self._codec.encode(changes.keys)
        distinct, starts = keys.distinct()
        groups = np.repeat(np.arange(len(distinct)), np.diff(starts))
        is_added = changes.is_added[keys.order]
        sizes = row_sizes(changes.rows)
        counts = {}
        grouped = {}
        for sign, mask in ((True, is_added), (False, ~is_added)):
            counts[sign] = np.bincount(groups[mask], minlength=len(distinct)).astype(np.int64)
            grouped[sign] = GroupedRows(
                changes.rows, keys.order[mask], starts_of(counts[sign]), sizes
            )
        had = has = np.ones(len(distinct), dtype=np.bool_)
        if counts[False].any() or self._emitter.depends_on(stream):
            before = self._store.probe(stream, distinct).counts
            had, has = before > 0, before + counts[True] - counts[False] > 0
        self._store.write_all(
            WriteParts(
                lambda: chain(
                    self._writes(stream, changes, keys), self._writes_alone(stream, alone)
                )
            )
        )
        return Changed(distinct, grouped[True], grouped[False], had, has)

    def _writes(self, stream: str, changes: Changes, keys: KeyBatch) -> Iterator[list[Mutation]]:
        """What makes the changes, first what goes, in parts of at most a piece."""
        for kind, sign in WRITES:
            places = np.flatnonzero(changes.is_added == sign)
            rows, own = changes.rows, keys
            if len(places) < len(changes):
                rows, own = rows.take(pa.array(places)), keys.take(places)
            for part in pieces_of(row_sizes(rows), self._piece_bytes):
                length = part.stop - part.start
                some = own
                if length < len(own):
                    some = own.take(np.arange(part.start, part.stop))
                yield [Mutation(kind, stream, some, rows.slice(part.start, length))]

    def _writes_alone(self, stream: str, alone: Changes) -> Iterator[list[Mutation]]:
        name = null_stream(stream)
        if name in self._store.streams:  # else no changelog: nothing takes these rows back
            keys = self._null_codec.encode(null_safe_keys(alone.keys))
            yield from self._writes(name, alone, keys)

    def _emitted(self, stream: str, changed: Changed, alone: Changes) -> Iterator[Emitted]:
        yield from self._emitter.alone(stream, alone)
        keys = np.arange(len(changed.keys), dtype=np.int64)
        if stream not in self._spec.shown:
            keys = keys[changed.had != changed.has]
        probes: dict[str, Probe] = {}
        others = [name for name in self._spec.streams if name != stream]
        for other in self._probe_order.order(stream, others, self._required):
            if len(keys) == 0:
                return
            probe = probes[other] = self._store.probe(other, changed.keys, keys)
            asked = len(keys)
            found = keys[probe.counts[keys] > 0]
            self._probe_order.record(stream, other, asked, len(found))
            if other in self._required:
                keys = found
        # So that the order of the results does not depend on that of probing.
        probes = {name: probes[name] for name in others}
        yield from self._emitter.changed(stream, changed, probes, keys)
