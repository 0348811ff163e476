"""CrossJoin: each row that arrives meets all rows of the other stream that are stored."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore
from support.cross_join.spec import KEY, CrossSpec


class CrossJoin(KeepsAllRows):
    """The local join of a CrossSpec."""

    def __init__(self, spec: CrossSpec, store: MultimapStore, context: Context) -> None:
        self._spec = spec
        self._store = store
        self._piece_bytes = context.piece_bytes
        self._gatherer = Gatherer(list(spec.streams.values()), spec.output_schema)
        self._unfinished: Results | None = None
        self._pairs = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """``pairs``: results so far."""
        return {"pairs": self._pairs}

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return its new results."""
        stream = batch.stream
        self._spec.check_stream(stream)
        call = f"process({stream!r})"
        check_finished(call, self._unfinished)
        rows = as_batch(batch.rows, self._spec.streams[stream], call)
        if batch.role != Role.PROBE and rows.num_rows:
            keys = pa.RecordBatch.from_arrays([np.zeros(rows.num_rows, np.int8)], schema=KEY)
            self._store.append(stream, rows, keys)
        pieces = (
            piece
            for picked in self._picked(stream, rows)
            for piece in picked.made(self._gatherer, self._piece_bytes)
        )
        self._unfinished = Results(pieces, schema=self._spec.output_schema)
        return self._unfinished

    def _picked(self, stream: str, rows: pa.RecordBatch) -> Iterator[Picked]:
        first, second = self._spec.streams
        other = second if stream == first else first
        sizes = row_sizes(rows)
        for part in pieces_of(sizes, self._piece_bytes):
            here = rows.slice(part.start, part.stop - part.start)
            for _, there in self._store.iterate(other, max_bytes=self._piece_bytes):
                # One arriving row at a time: places stay as few as the stored rows of a piece.
                for place in range(here.num_rows):
                    mine = np.full(there.num_rows, place)
                    found = np.arange(there.num_rows)
                    both = ((here, mine), (there, found))
                    pairs = both if stream == first else both[::-1]
                    size = sizes[part.start + place] + row_sizes(there)
                    self._pairs += there.num_rows
                    yield Picked([b for b, _ in pairs], [at for _, at in pairs], size)
