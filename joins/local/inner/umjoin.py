"""UMJoin: several streams with one common key, joined over their full history.

- A batch is first stored in its own stream. Its keys are then probed in one other stream after
  another (UMJoin paper). A key that one stream lacks is not probed any further.
- Rows are fetched only for the keys that every stream has.
- Invariant: each combination of rows is found once, when the last of its rows arrives.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.combiner import Combiner, GroupedRows
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.join_inputs import JoinInputs
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import Probe

#: A batch is probed in slices of at most this many rows.
SLICE_ROWS = 10_000

#: What a Combiner takes: rows at hand, what probes found of the other streams, and the keys that
#: all of them have.
Matches: TypeAlias = tuple[dict[str, GroupedRows], dict[str, Probe], Numbers]


class UMJoin(KeepsAllRows):
    """The operator UMJoin over one store, whose streams include ``spec.stream_schemas``.

    It is not thread-safe. The store belongs to the caller, who commits and closes it.
    """

    def __init__(
        self,
        spec: JoinSpec,
        store: JoinInputs,
        piece_bytes: int = 1 << 20,
        probe_order: ProbeOrder | None = None,
    ) -> None:
        """Check the store.

        Args:
            spec: What is joined.
            store: The store.
            piece_bytes: Most bytes of a piece of the results, unless a row is larger.
            probe_order: What an earlier operator of the same join has learned about the order of
                probes.

        Raises:
            InvalidArgumentError: The store lacks a stream, or ``piece_bytes`` is less than 1.
        """
        if piece_bytes < 1:
            raise InvalidArgumentError(f"piece_bytes={piece_bytes!r}: must be at least 1")
        if not store.streams.keys() >= spec.streams.keys():
            raise InvalidArgumentError(
                f"the store holds the streams {', '.join(store.streams)}, the join needs "
                f"{', '.join(spec.streams)}; open the store with spec.stream_schemas"
            )
        self._spec = spec
        self._store = store
        self._piece_bytes = piece_bytes
        self._codec = KeyCodec(spec.key_schema)
        self._combiner = Combiner(spec.streams, spec.output_schema, piece_bytes)
        self._probe_order = probe_order or ProbeOrder()
        self._unfinished: Results | None = None

    @classmethod
    def of(cls, spec: JoinSpec, store: JoinInputs, context: Context) -> "UMJoin":
        """The join in a bucket."""
        return cls(spec, store, context.piece_bytes, context.learned)

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return its new results.

        A batch that the store refuses is not stored at all.

        Args:
            batch: The rows; columns are taken by name. ``computed`` is the key of each row.

        Returns:
            The results in pieces of at most ``piece_bytes`` or one row, computed as they are read,
            with the columns ``spec.output_schema``. Read them to the end, or close them, before the
            next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, or earlier results are not
                read.

        Cost:
            Memory for a piece and about ``piece_bytes`` of fetched rows per stream, whatever the
            data.
        """
        arrived = self._arrive(f"process({batch.stream!r})", batch)
        matches = self._matches(batch.stream, arrived)
        self._unfinished = Results(
            (rows for m in matches for rows in self._combiner.combined(*m)),
            (picked for m in matches for picked in self._combiner.picked(*m)),
            self._spec.output_schema,
            lambda needed: (p for m in matches for p in self._combiner.products(*m, needed)),
        )
        return self._unfinished

    def give_up(self) -> None:
        """Give up the results of the last call, if any are left."""
        if self._unfinished is not None:
            self._unfinished.close()

    def _arrive(self, call: str, arriving: Batch) -> "list[Arrived]":
        """The batch in slices, which are stored if they are to be."""
        stream, rows, keys = arriving.stream, arriving.rows, arriving.computed
        self._spec.check_stream(stream)
        check_finished(call, self._unfinished)
        rows = as_batch(rows, self._spec.streams[stream], call)
        if keys is None:
            keys = self._spec.key_batch(stream, rows)
        if len(keys) != rows.num_rows:
            raise InvalidArgumentError(
                f"{call}: {rows.num_rows} rows but {len(keys)} keys; give one key per row"
            )
        if isinstance(keys, pa.RecordBatch):
            keys = self._codec.encode(keys)
        if arriving.role != Role.PROBE:
            # In one call: a batch that is refused is not stored in part.
            self._store.append(stream, rows, keys)
        return self._cut(rows, keys)

    def _cut(self, batch: pa.RecordBatch, keys: KeyBatch) -> "list[Arrived]":
        """The batch in slices of at most SLICE_ROWS rows and piece_bytes bytes."""
        sizes = row_sizes(batch)
        least = -(-self._piece_bytes // SLICE_ROWS)
        slices = list(pieces_of(np.maximum(sizes, least), self._piece_bytes))
        if len(slices) == 1:
            return [Arrived(batch, keys, sizes)]
        return [
            Arrived(
                batch.slice(s.start, s.stop - s.start),
                keys.take(np.arange(s.start, s.stop)),
                sizes[s],
            )
            for s in slices
        ]

    def _matches(self, stream: str, arrived: "list[Arrived]") -> Iterator[Matches]:
        """What the rows of each slice are combined with."""
        for part in arrived:
            distinct, starts = part.keys.distinct()
            probes, survivors = self._probe(stream, distinct)
            if len(survivors):
                own = GroupedRows(part.rows, part.keys.order, starts, part.sizes)
                yield {stream: own}, probes, survivors

    def _probe(self, stream: str, keys: KeyBatch) -> tuple[dict[str, Probe], Numbers]:
        """Probe the keys in every other stream, in the learned order, without reading a row."""
        survivors = np.arange(len(keys), dtype=np.int64)
        probes: dict[str, Probe] = {}
        others = [name for name in self._spec.streams if name != stream]
        for other in self._probe_order.order(stream, others):
            if len(survivors) == 0:
                break
            probe = probes[other] = self._store.probe(other, keys, survivors)
            asked = len(survivors)
            survivors = survivors[probe.counts[survivors] > 0]
            self._probe_order.record(stream, other, asked, len(survivors))
        # So that what is combined next does not depend on the order.
        return {name: probes[name] for name in others if name in probes}, survivors


class Arrived:
    """A slice of a batch that has been stored: rows, their keys and bytes."""

    def __init__(self, rows: pa.RecordBatch, keys: KeyBatch, sizes: Numbers) -> None:
        self.rows = rows
        self.keys = keys
        self.sizes = sizes
