"""ThetaJoin: several streams joined by any condition, over their full history.

A batch is stored in every index of its stream. Then combinations grow by one stream at a time, in
the order of ``ThetaSpec.steps``: rows are looked up by equal columns and a range, or all rows of a
stream are gone through, and what is left of the condition is checked. Combinations are made in
bounded blocks, depth first, and results are places of rows until somebody reads them.

Invariant: a combination is found once, when the last of its rows arrives.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.local.parts.bound_rows import BoundRows, coalesced, parts_of
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Numbers, Picked
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.local.theta.lengths import length_classes
from lsmstate.joins.local.theta.slabs import SecondRange
from lsmstate.joins.local.theta.step_ranges import StepRanges, key_values
from lsmstate.joins.local.theta.stretches import stretches
from lsmstate.joins.local.theta.tiles import candidates, tiled
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.specs.theta import LENGTHS, Step, ThetaIndex, ThetaSpec
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore, Mutation

#: A batch that gives more results a row is logged.
MANY_RESULTS: Final = 1000

_log = logging.getLogger(__name__)

#: One row of each stream that is known: by stream, its rows, and which each combination holds.
Combinations = Mapping[str, BoundRows]


class ThetaJoin(KeepsAllRows):
    """The local join of a ThetaSpec. Not thread-safe. The store belongs to the caller, who commits
    and closes it."""

    def __init__(self, spec: ThetaSpec, store: MultimapStore, context: Context) -> None:
        """InvalidArgumentError if the store lacks a stream, or ``piece_bytes`` is less than 1."""
        if context.piece_bytes < 1:
            raise InvalidArgumentError(f"piece_bytes={context.piece_bytes!r}: must be at least 1")
        wanted = [schema.name for schema in spec.stream_schemas]
        if not store.streams.keys() >= set(wanted):
            raise InvalidArgumentError(
                f"the store holds the streams {', '.join(store.streams)}, the join needs "
                f"{', '.join(wanted)}; open the store with spec.stream_schemas"
            )
        self._spec = spec
        self._store = store
        self._piece_bytes = context.piece_bytes
        self._most_results = context.most_results
        self._gatherer = Gatherer(list(spec.streams.values()), spec.output_schema)
        self._unfinished: Results | None = None
        #: By index of intervals the length classes in use; read when they are first asked for.
        self._lengths: dict[ThetaIndex, set[int]] = {}
        self._candidates = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """``candidates``: combinations that indexes picked so far, of two or more streams."""
        return {CANDIDATES: self._candidates}

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
            Per stream a piece of rows and 16,384 combinations in memory, whatever the data.
        """
        stream = batch.stream
        call = f"process({stream!r})"
        self._spec.check_stream(stream)
        check_finished(call, self._unfinished)
        rows = self._kept(stream, as_batch(batch.rows, self._spec.streams[stream], call))
        indexes = self._spec.indexes_of(stream)
        copies = max(1, len(indexes))
        parts = parts_of(rows, max(1, self._piece_bytes // copies))
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

    def _kept(self, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the conditions on their stream alone hold for."""
        for condition in self._spec.filters(stream):
            if not rows.num_rows:
                break
            holds = condition.holds(partial(_own_column, rows))
            rows = rows if holds.all() else rows.filter(pa.array(holds))
        return rows

    def _store_parts(self, stream: str, parts: Sequence[pa.RecordBatch]) -> None:
        new: dict[ThetaIndex, set[int]] = {}
        for index in self._spec.indexes_of(stream):
            if index.high is not None:
                known = self._lengths_of(index)
                found = (length_classes(*_ends(index, part)) for part in parts)
                new[index] = {int(n) for each in found for n in np.unique(each)} - known
        self._store.write_all(WriteParts(lambda: self._writes(stream, parts, new)))
        for index, classes in new.items():
            self._lengths[index] |= classes

    def _writes(
        self,
        stream: str,
        parts: Sequence[pa.RecordBatch],
        new: Mapping[ThetaIndex, set[int]],
    ) -> Iterator[list[Mutation]]:
        """What stores the rows in all indexes, part by part, each as one; the classes first."""
        lengths = [
            Mutation("append", index.lengths_name, listed, listed)
            for index, classes in new.items()
            if classes
            for listed in [pa.record_batch([pa.array(sorted(classes), pa.int16())], schema=LENGTHS)]
        ]
        if lengths:
            yield lengths
        for part in parts:
            yield [
                Mutation("append", index.name, key_values(index, part), part)
                for index in self._spec.indexes_of(stream)
            ]

    def _lengths_of(self, index: ThetaIndex) -> set[int]:
        if index not in self._lengths:
            pieces = self._store.scan(index.lengths_name)
            self._lengths[index] = {n for piece in pieces for n in piece.column(0).to_pylist()}
        return self._lengths[index]

    def _counted(
        self, stream: str, rows: int, parts: Sequence[pa.RecordBatch]
    ) -> Iterator[Combinations]:
        """The combinations of a batch, of which there may be far too many."""
        count, is_told = 0, False
        for part in parts:
            for found in self._combinations(stream, part):
                count += size_of(found)
                most = self._most_results
                if most is not None and count > most * rows:
                    raise InvalidArgumentError(
                        f"process({stream!r}): {rows:,} rows have more than {count - 1:,} results, "
                        f"and most_results={most!r} is the most for each row; connect the streams "
                        "by a narrower condition, or raise it"
                    )
                if count > MANY_RESULTS * rows and not is_told:
                    is_told = True
                    _log.warning(
                        "%s rows of stream %r have more than %s results each; a narrower "
                        "condition, or most_results=, keeps a query from giving as many",
                        *(f"{rows:,}", stream, f"{MANY_RESULTS:,}"),
                    )
                yield found

    def _combinations(self, stream: str, rows: pa.RecordBatch) -> Iterator[Combinations]:
        """All combinations of all streams that hold one of ``rows``, depth first."""
        steps = self._spec.steps[stream]
        own = BoundRows(rows, row_sizes(rows), np.arange(rows.num_rows, dtype=np.int64))
        stack: list[Iterator[Combinations]] = [iter([{stream: own}])]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
            elif len(stack) > len(steps):
                yield found
            else:
                stack.append(self._extended(found, steps[len(stack) - 1]))

    def _extended(self, found: Combinations, step: Step) -> Iterator[Combinations]:
        """The combinations with the rows of one more stream, in blocks."""
        for lefts, bound in self._candidates_of(found, step):
            self._candidates += len(lefts)
            grown = {**taken(found, lefts), step.target: bound}
            grown = _checked(grown, step.checks)
            if size_of(grown):
                yield grown

    def _candidates_of(
        self, found: Combinations, step: Step
    ) -> Iterator[tuple[Numbers, BoundRows]]:
        """Places of combinations, and beside each a row that it may match."""
        if step.kind == "scan":
            yield from self._scanned(found, step)
            return
        lengths = self._lengths_of(step.index) if step.kind == "interval" else ()
        ranges = StepRanges(step, sorted(lengths))
        count = size_of(found)
        second: SecondRange | None = None
        if step.second is not None:
            second = SecondRange(step.second, values_of(found), count)
        for bounds, owners in ranges.of(values_of(found), count):
            name = step.index.name
            for rows, at, first, stop, _ in self._store.probe_ranges(
                name, bounds, self._piece_bytes
            ):
                sizes = row_sizes(rows)
                pairs = (
                    stretches(owners[at], first, stop)
                    if second is None
                    else second.pairs(rows, owners[at], first, stop)
                )
                for lefts, rights in pairs:
                    yield lefts, BoundRows(rows, sizes, rights)

    def _scanned(self, found: Combinations, step: Step) -> Iterator[tuple[Numbers, BoundRows]]:
        """Each combination beside all rows of a stream that arithmetic does not rule out."""
        count = size_of(found)
        every = np.arange(count, dtype=np.int64)
        comparisons = tiled(step.checks, self._spec.streams)
        for _, rows in self._store.iterate(step.index.name, max_bytes=self._piece_bytes):
            sizes = row_sizes(rows)
            if comparisons:
                pairs = candidates(comparisons, values_of(found), count, rows, step.target)
            else:
                stop = np.full(count, rows.num_rows)
                pairs = stretches(every, np.zeros_like(every), stop)
            for lefts, rights in pairs:
                yield lefts, BoundRows(rows, sizes, rights)

    def _picked(self, found: Combinations) -> Picked:
        """Whole combinations as results."""
        bound = [found[name] for name in self._spec.streams]
        sizes = sum((each.sizes[each.at] for each in bound), np.int64(0))
        return Picked([b.rows for b in bound], [b.at for b in bound], np.asarray(sizes))


#: Among a join's counts: combinations that indexes picked, which conditions then judged.
CANDIDATES: Final = "candidates"


def size_of(found: Combinations) -> int:
    """How many there are."""
    return len(next(iter(found.values())).at)


def taken(found: Combinations, places: Numbers) -> dict[str, BoundRows]:
    """Those at some places."""
    return {
        name: BoundRows(bound.rows, bound.sizes, bound.at[places]) for name, bound in found.items()
    }


def values_of(found: Combinations) -> Values:
    """A column of each combination."""

    def values(column: Column) -> pa.Array:
        bound = found[column.stream]
        return bound.rows.column(column.name).take(pa.array(bound.at))

    return values


def _checked(found: dict[str, BoundRows], checks: Sequence[PairCondition]) -> dict[str, BoundRows]:
    """The combinations that all conditions hold for; later ones judge what earlier ones keep."""
    for condition in checks:
        if not size_of(found):
            break
        holds = condition.holds(values_of(found))
        if not holds.all():
            found = taken(found, np.flatnonzero(holds))
    return found


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)


def _ends(index: ThetaIndex, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    assert index.low is not None
    assert index.high is not None
    values = partial(_own_column, rows)
    return index.low.values(values, rows.num_rows), index.high.values(values, rows.num_rows)
