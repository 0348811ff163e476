"""ThetaJoin: several streams joined by any condition, over their full history.

A batch is stored in every index of its stream. Then combinations grow by one stream at a time, in
the order of ``ThetaSpec.steps``: rows are looked up by equal columns and a range, or all rows of a
stream are gone through, and what is left of the condition is checked. Combinations are made in
bounded blocks, depth first, and results are places of rows until somebody reads them.

Invariant: a combination is found once, when the last of its rows arrives.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.bound_rows import coalesced
from lsmstate.joins.local.parts.cross_product import Side, combinations
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.products import Product, RangeProduct
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.local.parts.write_parts import Beside, WriteParts, no_more, write_all
from lsmstate.joins.local.theta.finder import (
    CANDIDATES,
    Combinations,
    Finder,
    bound_rows,
    size_of,
    taken,
)
from lsmstate.joins.local.theta.kept_rows import KeptRows
from lsmstate.joins.local.theta.result_count import ResultCount
from lsmstate.joins.local.theta.stored_rows import StoredRows, check_streams_of
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.specs.theta import Step, ThetaSpec
from lsmstate.schema.arrow_sizes import row_sizes, same_sizes, sizes_of
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

    def close(self) -> None:
        """Release the memory of rows that are kept."""
        self._stored.close()

    def process(self, batch: Batch, beside: Beside = no_more) -> Results:
        """Store a batch, and return its new results.

        A row that is in no result whatever comes, by a condition on its stream alone or by a null,
        is not stored. A batch that the store refuses is not stored at all.

        Args:
            batch: The rows; columns are taken by name.
            beside: What is stored together with them.

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
        if batch.role != Role.PROBE:
            self._store_parts(stream, parts, beside)
        count = ResultCount(stream, rows.num_rows, self._most_results)
        found = self._counted(stream, count, parts)
        pieces = (
            piece
            for combinations in found
            for piece in self._picked(combinations).made(self._gatherer, self._piece_bytes)
        )
        self._unfinished = Results(
            coalesced(pieces, self._piece_bytes),
            (self._picked(combinations) for combinations in found),
            self._spec.output_schema,
            lambda needed: self._products(stream, count, parts, needed),
        )
        return self._unfinished

    def _store_parts(self, stream: str, parts: Sequence[pa.RecordBatch], beside: Beside) -> None:
        new = self._stored.new_lengths(stream, parts)
        writes = WriteParts(lambda: chain(self._stored.all_writes(stream, parts, new), beside()))
        write_all(self._store, writes, self._stored)
        self._stored.written(stream, parts, new)

    def _counted(
        self, stream: str, count: ResultCount, parts: Sequence[pa.RecordBatch]
    ) -> Iterator[Combinations]:
        """The combinations of a batch, of which there may be far too many."""
        for part in parts:
            for found in self._combinations(stream, part, self._spec.steps[stream]):
                count.add(size_of(found))
                yield found

    def _products(
        self,
        stream: str,
        count: ResultCount,
        parts: Sequence[pa.RecordBatch],
        needed: Collection[str],
    ) -> Iterator[Product | RangeProduct]:
        """The results as products. Rows of streams that are not ``needed`` are counted where an
        index says which match, not read."""
        steps = self._spec.steps[stream]
        counted = _counted_steps(steps, needed)
        kept = [step for step in steps if step.target not in {each.target for each in counted}]
        alone = steps[0].counting if len(steps) == len(kept) == 1 else None
        for part in parts:
            if alone is not None and stream in needed:
                for ranged in self._finder.ranged({stream: bound_rows(part)}, alone):
                    count.add(int((ranged.stop - ranged.first).sum()))
                    yield ranged
                continue
            found = (
                self._matched(stream, part, alone)
                if alone is not None
                else self._with_counts(self._combinations(stream, part, kept), counted, needed)
            )
            for product in found:
                count.add(int(product.times.sum()))
                yield product

    def _with_counts(
        self, found: Iterator[Combinations], counted: Sequence[Step], needed: Collection[str]
    ) -> Iterator[Product]:
        """Combinations, each of which counts as often as rows of the streams that are counted
        match it."""
        for some in found:
            counts = [self._finder.counts(some, step) for step in counted]
            times = combinations([np.ones(size_of(some), dtype=np.int64), *counts])
            if not times.all():
                places = np.flatnonzero(times)
                some, times = taken(some, places), times[places]
            starts = np.arange(len(times) + 1, dtype=np.int64)
            sides = {
                name: Side(bound.rows, starts, bound.sizes[bound.at], bound.at)
                for name, bound in some.items()
                if name in needed
            }
            yield Product(sides, times)

    def _matched(self, stream: str, rows: pa.RecordBatch, step: Step) -> Iterator[Product]:
        """Stored rows, each of which counts as often as it matches one of ``rows``."""
        for found, times in self._finder.matched({stream: bound_rows(rows)}, step):
            places = np.flatnonzero(times)
            starts = np.arange(len(places) + 1, dtype=np.int64)
            side = Side(found, starts, row_sizes(found)[places], places)
            yield Product({step.target: side}, times[places])

    def _combinations(
        self, stream: str, rows: pa.RecordBatch, steps: Sequence[Step]
    ) -> Iterator[Combinations]:
        """All combinations, of the streams of the steps, that hold one of ``rows``, depth first."""
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
            sizes = same_sizes(self._width, size_of(found))
        else:
            sizes = np.asarray(sum((each.sizes[each.at] for each in bound), np.int64(0)))
        return Picked([b.rows for b in bound], [b.at for b in bound], sizes)


def _counted_steps(steps: Sequence[Step], needed: Collection[str]) -> list[Step]:
    """The steps into streams that are not needed, and of which later ones ask nothing."""
    counted = []
    asked: set[str] = set()
    for step in reversed(steps):
        counting = step.counting
        if counting is not None and step.target not in needed and step.target not in asked:
            counted.append(counting)
        asked |= step.reads
    return counted
