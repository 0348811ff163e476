"""ThetaJoin: several streams joined by any condition, over their full history.

A batch is stored in every index of its stream. Then combinations grow by one stream at a time, in
the order of ``ThetaSpec.steps``: rows are looked up by equal columns and a range, or all rows of a
stream are gone through, and what is left of the condition is checked. Combinations are made in
bounded blocks, depth first, and results are places of rows until somebody reads them.

Invariant: a combination is found once, when the last of its rows arrives.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.bound_rows import coalesced
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.local.theta.finder import CANDIDATES, Combinations, Finder, bound_rows, size_of
from lsmstate.joins.local.theta.kept_rows import KeptRows
from lsmstate.joins.local.theta.result_count import ResultCount
from lsmstate.joins.local.theta.stored_rows import StoredRows, check_streams_of, write_all
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.schema.arrow_sizes import sizes_of
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore


class ThetaJoin(KeepsAllRows):
    """The local join of a ThetaSpec. Not thread-safe. The store belongs to the caller, who commits
    and closes it."""

    def __init__(self, spec: ThetaSpec, store: MultimapStore, context: Context) -> None:
        """InvalidArgumentError if the store lacks a stream, or ``piece_bytes`` is less than 1."""
        if context.piece_bytes < 1:
            raise InvalidArgumentError(f"piece_bytes={context.piece_bytes!r}: must be at least 1")
        check_streams_of(store, spec.stream_schemas)
        self._spec = spec
        self._store = store
        self._piece_bytes = context.piece_bytes
        self._most_results = context.most_results
        self._gatherer = Gatherer(list(spec.streams.values()), spec.output_schema)
        self._width = sizes_of(spec.output_schema).width
        kept = KeptRows(store, context.piece_bytes)
        self._stored = StoredRows(spec, store, kept)
        self._finder = Finder(spec, store, self._stored, context.piece_bytes, kept)
        self._unfinished: Results | None = None

    @property
    def stored(self) -> StoredRows:
        """Its rows in the store."""
        return self._stored

    @property
    def finder(self) -> Finder:
        """Looks for partners among them."""
        return self._finder

    @property
    def counts(self) -> Mapping[str, int]:
        """``candidates``: combinations that indexes picked so far, of two or more streams."""
        return {CANDIDATES: self._finder.candidates}

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return its new results.

        A row that is in no result whatever comes, by a condition on its stream alone or by a null,
        is not stored. A batch that the store refuses is not stored at all.

        Args:
            batch: The rows; columns are taken by name.

        Returns:
            The results in pieces of at most ``piece_bytes`` or one row, computed as they are read,
            with the columns ``spec.output_schema``. Read them to the end, or close them, before the
            next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, earlier results are not
                read, or a condition fails on a row.

        Cost:
            Per stream a piece of rows and 32,768 combinations in memory, whatever the data. Rows
            that two ranges are asked of are kept in memory, where a quarter of the cap holds them.
        """
        stream = batch.stream
        call = f"process({stream!r})"
        self._spec.check_stream(stream)
        check_finished(call, self._unfinished)
        rows = as_batch(batch.rows, self._spec.streams[stream], call)
        passing = self._stored.passing(stream, rows)
        if not passing.all():
            rows = rows.filter(pa.array(passing))
        parts = self._stored.parts(stream, rows, self._piece_bytes)
        if batch.role != Role.PROBE and rows.num_rows:
            self._store_parts(stream, parts)
        found = self._counted(stream, rows.num_rows, parts)
        pieces = (
            piece
            for combinations in found
            for piece in self._picked(combinations).made(self._gatherer, self._piece_bytes)
        )
        self._unfinished = Results(
            coalesced(pieces, self._piece_bytes),
            (self._picked(combinations) for combinations in found),
            self._spec.output_schema,
        )
        return self._unfinished

    def _store_parts(self, stream: str, parts: Sequence[pa.RecordBatch]) -> None:
        new = self._stored.new_lengths(stream, parts)
        writes = WriteParts(lambda: self._stored.all_writes(stream, parts, new))
        write_all(self._store, writes, self._stored)
        self._stored.written(stream, parts, new)

    def _counted(
        self, stream: str, rows: int, parts: Sequence[pa.RecordBatch]
    ) -> Iterator[Combinations]:
        """The combinations of a batch, of which there may be far too many."""
        count = ResultCount(stream, rows, self._most_results)
        for part in parts:
            for found in self._combinations(stream, part):
                count.add(size_of(found))
                yield found

    def _combinations(self, stream: str, rows: pa.RecordBatch) -> Iterator[Combinations]:
        """All combinations of all streams that hold one of ``rows``, depth first."""
        steps = self._spec.steps[stream]
        stack: list[Iterator[Combinations]] = [iter([{stream: bound_rows(rows)}])]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
            elif len(stack) > len(steps):
                yield found
            else:
                stack.append(self._finder.extended(found, steps[len(stack) - 1]))

    def _picked(self, found: Combinations) -> Picked:
        """Whole combinations as results."""
        bound = [found[name] for name in self._spec.streams]
        if self._width is not None:
            sizes = np.full(size_of(found), self._width)
        else:
            sizes = np.asarray(sum((each.sizes[each.at] for each in bound), np.int64(0)))
        return Picked([b.rows for b in bound], [b.at for b in bound], sizes)
