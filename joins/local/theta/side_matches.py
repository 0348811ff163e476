"""SideMatches: two streams joined by any condition, with what becomes of a row without a partner.

Pairs are those of ``ThetaJoin``. Whether a row that has waited has a partner says a look into the
index of the other stream, whose rows are kept that long.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.parts.write_parts import Beside, WriteParts, no_more
from lsmstate.joins.local.theta.results import SideResults
from lsmstate.joins.local.theta.step_ranges import key_values
from lsmstate.joins.local.theta.stored_rows import Mask
from lsmstate.joins.local.theta.theta_join import ThetaJoin
from lsmstate.joins.protocols import Batch, Context
from lsmstate.joins.specs.theta_sides import ThetaFinalSpec
from lsmstate.store import MultimapStore


class SideMatches:
    """What ``FinalJoin`` is put around for a ``ThetaFinalSpec``. Not thread-safe."""

    def __init__(self, spec: ThetaFinalSpec, store: MultimapStore, context: Context) -> None:
        """InvalidArgumentError if the store lacks a stream, or ``piece_bytes`` is less than 1."""
        self._spec = spec
        self._sides = spec.sides
        self._store = store
        self._joined = ThetaJoin(spec.theta, store, context)
        self._made = SideResults(spec.sides, context.piece_bytes)

    @property
    def counts(self) -> Mapping[str, int]:
        """``candidates``: pairs that indexes picked so far."""
        return self._joined.counts

    def close(self) -> None:
        """Release the memory of rows that are kept."""
        self._joined.close()

    def can_match(self, stream: str, rows: pa.RecordBatch) -> Mask:
        """Not rows with a null in a key or a bound, nor those that fail the conditions on their
        stream alone."""
        index = self._sides.index_of(stream)
        keys = KeyCodec(index.key_schema).encode(key_values(index, rows))
        return self._joined.stored.passing(stream, rows) & keys.valid

    def process(self, batch: Batch, beside: Beside = no_more) -> Results:
        """Store a batch if its rows are looked up, together with what stands ``beside`` it, and
        return its pairs if they are results."""
        schema = self._spec.output_schema
        if batch.stream not in self._spec.indexed:
            self._store.write_all(WriteParts(beside))
            return Results((), schema=schema)
        found = self._joined.process(batch, beside)
        if not self._sides.shows_pairs:
            found.close()
            return Results((), schema=schema)
        return found.through(lambda piece: pa.RecordBatch.from_arrays(piece.columns, schema=schema))

    def decided(
        self, stream: str, rows: pa.RecordBatch, *, can_match: bool
    ) -> Iterator[pa.RecordBatch]:
        """Rows that are a result without a partner and have none; of a semi join those that have
        one."""
        is_shown = np.full(rows.num_rows, self._sides.shows_alone(stream))
        if can_match:
            is_shown ^= self._joined.finder.have_partners(stream, rows)
        yield from self._made.alone(stream, rows.filter(pa.array(is_shown)))
