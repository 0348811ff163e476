"""Partners of rows, by the steps of a ThetaSpec: looked up by equal columns and a range, or by a
look at all rows of a stream."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.predicate import Expression, text_of
from lsmstate.joins.local.parts.bound_rows import BoundRows
from lsmstate.joins.local.parts.products import RangeProduct
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.dense_ranges import DenseRanges, Matches
from lsmstate.joins.local.theta.exact_steps import are_small, exact_step
from lsmstate.joins.local.theta.kept_rows import KeptRows
from lsmstate.joins.local.theta.slabs import SecondRange
from lsmstate.joins.local.theta.step_ranges import StepRanges, most_ranges
from lsmstate.joins.local.theta.stored_rows import Mask, StoredRows
from lsmstate.joins.local.theta.stretches import stretches
from lsmstate.joins.local.theta.tiles import candidates, tiled
from lsmstate.joins.specs.theta import Step, ThetaIndex, ThetaSpec
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.store import MultimapStore, RangeBounds

#: Among a join's counts: combinations that indexes picked, which conditions then judged.
CANDIDATES: Final = "candidates"

#: One row of each stream that is known: by stream, its rows, and which each combination holds.
Combinations = Mapping[str, BoundRows]


class Piece(NamedTuple):
    """Stored rows that may match."""

    rows: pa.RecordBatch
    pairs: Iterator[tuple[Numbers, Numbers]]
    """Places of combinations, and beside each a row that it may match, in blocks."""
    checks: Sequence[PairCondition]
    """What they have to keep; the index answers the rest."""


class Finder:
    """Looks for partners in ``store``."""

    def __init__(
        self,
        spec: ThetaSpec,
        store: MultimapStore,
        stored: StoredRows,
        piece_bytes: int,
        kept: KeptRows | None = None,
    ) -> None:
        """``kept``: rows that are in memory too; None if rows may be taken back."""
        self._spec = spec
        self._store = store
        self._stored = stored
        self._piece_bytes = piece_bytes
        self._kept = kept
        self._most_ranges = most_ranges(store)
        self._exact_steps: dict[Step, Step | None] = {}
        #: Combinations that indexes have picked so far.
        self.candidates = 0

    def extended(self, found: Combinations, step: Step) -> Iterator[dict[str, BoundRows]]:
        """The combinations with the rows of one more stream, in blocks."""
        for piece in self.pieces(found, step):
            sizes: Numbers | None = None
            for lefts, rights in piece.pairs:
                if sizes is None:
                    sizes = row_sizes(piece.rows)
                grown = {**taken(found, lefts), step.target: BoundRows(piece.rows, sizes, rights)}
                if not piece.checks:
                    self.candidates += len(lefts)
                    if len(lefts):
                        yield grown
                    continue
                kept = self._matching(grown, piece.checks)
                if len(kept):
                    yield grown if len(kept) == len(lefts) else taken(grown, kept)

    def counts(self, found: Combinations, step: Step) -> Numbers:
        """How many rows of one more stream match each combination, by an exact step. No row is
        read."""
        counts = np.zeros(size_of(found), dtype=np.int64)
        for bounds, owners in self._ranges(step).of(values_of(found), len(counts)):
            assert isinstance(bounds, RangeBounds)
            np.add.at(counts, owners, self._store.count_ranges(step.index.name, bounds))
        return counts

    def matched(self, found: Combinations, step: Step) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
        """Stored rows of one more stream, and how many combinations match each, by an exact step.
        A row may come in several pieces, beside other combinations in each.

        Cost: the rows that match, whatever the number of pairs.
        """
        ranges = self._ranges(step, may_be_dense=self._reads_dense(step))
        for bounds, _ in ranges.of(values_of(found), size_of(found)):
            for rows, _, first, stop in self._matches(step.index, bounds, is_first=False):
                changes = np.zeros(rows.num_rows + 1, dtype=np.int64)
                np.add.at(changes, first, 1)
                np.add.at(changes, stop, -1)
                yield rows, np.cumsum(changes[:-1])

    def ranged(self, found: Combinations, step: Step) -> Iterator[RangeProduct]:
        """Rows of one stream beside stretches of rows of another one, by an exact step.

        Cost: the rows that match, whatever the number of pairs.
        """
        ((stream, known),) = found.items()
        ranges = self._ranges(step, may_be_dense=self._reads_dense(step))
        for bounds, owners in ranges.of(values_of(found), size_of(found)):
            for rows, at, first, stop in self._matches(step.index, bounds, is_first=False):
                some = np.flatnonzero(stop > first)
                lefts, first, stop = known.at[owners[at[some]]], first[some], stop[some]
                pairs = partial(stretches, lefts, first, stop)
                sides = (stream, known.rows), (step.target, rows)
                yield RangeProduct(*sides, lefts, first, stop, pairs)

    def partners(self, stream: str, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, Mask]]:
        """Stored rows of the other one of two streams, and which of them match one of ``rows``.
        Each comes once, in an order that writes of other streams do not change."""
        (step,) = self._spec.steps[stream]
        found = {stream: bound_rows(rows)}
        for piece in self.pieces(found, step, may_repeat=False):
            is_matched = np.zeros(piece.rows.num_rows, np.bool_)
            sizes = row_sizes(piece.rows)
            for lefts, rights in piece.pairs:
                is_open = ~is_matched[rights]
                if not is_open.all():
                    lefts, rights = lefts[is_open], rights[is_open]
                pairs = {**taken(found, lefts), step.target: BoundRows(piece.rows, sizes, rights)}
                is_matched[rights[self._matching(pairs, piece.checks)]] = True
            yield piece.rows, is_matched

    def have_partners(self, stream: str, rows: pa.RecordBatch) -> Mask:
        """Which rows match a stored one of the other stream.

        Cost: one candidate a row, and of rows that it does not match all candidates.
        """
        has_partner = np.zeros(rows.num_rows, np.bool_)
        if not rows.num_rows:
            return has_partner
        (step,) = self._spec.steps[stream]
        found = {stream: bound_rows(rows)}
        if step.kind != "scan":
            self._mark(found, step, has_partner, is_first=True)
            if not step.checks and not step.failing(values_of(found), size_of(found)):
                return has_partner
            left = np.flatnonzero(~has_partner)
            found = taken(found, left)
            has_partner_left = np.zeros(len(left), np.bool_)
            if len(left):
                self._mark(found, step, has_partner_left)
            has_partner[left] = has_partner_left
            return has_partner
        self._mark(found, step, has_partner)
        return has_partner

    def _mark(
        self, found: Combinations, step: Step, has_partner: Mask, *, is_first: bool = False
    ) -> None:
        for piece in self.pieces(found, step, is_first=is_first):
            sizes = row_sizes(piece.rows)
            for lefts, rights in piece.pairs:
                is_open = ~has_partner[lefts]
                if not is_open.all():
                    lefts, rights = lefts[is_open], rights[is_open]
                pairs = {**taken(found, lefts), step.target: BoundRows(piece.rows, sizes, rights)}
                has_partner[lefts[self._matching(pairs, piece.checks)]] = True
            if has_partner.all():
                return

    def pieces(
        self, found: Combinations, step: Step, *, is_first: bool = False, may_repeat: bool = True
    ) -> Iterator[Piece]:
        """The rows that combinations may match. With ``is_first`` only the first row that an index
        has in each range. ``may_repeat``: whether a row may come in several pieces, beside other
        combinations in each."""
        if step.kind == "scan":
            yield from self._scanned(found, step)
            return
        count = size_of(found)
        failing = step.failing(values_of(found), count)
        exact = self._exact(step)
        if exact is not None and not failing and are_small(exact, values_of(found)):
            step = exact
        checks = _checks(step, failing)
        second: SecondRange | None = None
        if step.second is not None and not is_first:
            second = SecondRange(step.second, values_of(found), count)
        if self._kept is not None and not is_first:
            found_rows = self._kept.ranges.matches(step, values_of(found), count)
            if found_rows is not None:
                for rows, at, first, stop in found_rows:
                    yield Piece(rows, stretches(at, first, stop), checks)
                return
        may_be_dense = not is_first and self._reads_dense(step)
        ranges = self._ranges(
            step, may_be_dense=may_be_dense, may_repeat=may_repeat, is_zoned=not is_first
        )
        is_first_range = True
        for bounds, owners in ranges.of(values_of(found), count):
            # Dense ranges come first. What is kept answers all of them, or none.
            if is_first_range and second is not None and isinstance(bounds, DenseRanges):
                kept = self._kept_pieces(found, step, second, failing)
                if kept is not None:
                    yield from kept
                    return
            is_first_range = False
            for rows, at, first, stop in self._matches(step.index, bounds, is_first=is_first):
                if second is None:
                    yield Piece(rows, stretches(owners[at], first, stop), checks)
                    continue
                assert step.second is not None
                if self._kept is not None and isinstance(bounds, DenseRanges):
                    self._kept.note_read(step, rows.num_rows)
                pairs, is_answered = second.pairs(rows, owners[at], first, stop)
                left = _checks(step, failing, step.second.answered) if is_answered else checks
                yield Piece(rows, pairs, left)

    def _kept_pieces(
        self,
        found: Combinations,
        step: Step,
        second: SecondRange,
        failing: frozenset[Expression],
    ) -> Iterator[Piece] | None:
        """The same of all rows of the index, which are in memory; None if they are not."""
        chunks = None if self._kept is None else self._kept.chunks(step)
        if chunks is None:
            return None
        assert step.low is not None
        assert step.second is not None
        asked = second.beside(step.low, values_of(found), size_of(found))
        checks = _checks(step, failing, step.second.answered)
        return (Piece(each.rows, asked.pairs(each.slabs), checks) for each in chunks)

    def _exact(self, step: Step) -> Step | None:
        """The step by exact bounds, if it has some."""
        if step not in self._exact_steps:
            self._exact_steps[step] = exact_step(step, self._spec.streams)
        return self._exact_steps[step]

    def _ranges(
        self,
        step: Step,
        *,
        may_be_dense: bool = False,
        may_repeat: bool = True,
        is_zoned: bool = False,
    ) -> StepRanges:
        lengths = self._stored.lengths_of(step.index) if step.kind == "interval" else ()
        return StepRanges(
            step,
            sorted(lengths),
            self._most_ranges,
            may_be_dense=may_be_dense,
            may_repeat=may_repeat,
            zones=step.zones if is_zoned else (),
        )

    def _reads_dense(self, step: Step) -> bool:
        return self._kept is not None and self._store.streams[step.index.name].expiry is None

    def _matches(
        self, index: ThetaIndex, bounds: RangeBounds | DenseRanges, *, is_first: bool
    ) -> Matches:
        if isinstance(bounds, DenseRanges):
            return bounds.matches(self._store, index, self._piece_bytes)
        found = self._store.probe_ranges(index.name, bounds, self._piece_bytes, first=is_first)
        return (each[:4] for each in found)

    def _scanned(self, found: Combinations, step: Step) -> Iterator[Piece]:
        """Each combination beside all rows of a stream that arithmetic does not rule out."""
        count = size_of(found)
        every = np.arange(count, dtype=np.int64)
        comparisons = tiled(step.checks, self._spec.streams)
        for _, rows in self._store.iterate(step.index.name, max_bytes=self._piece_bytes):
            if comparisons:
                pairs = candidates(comparisons, values_of(found), count, rows, step.target)
            else:
                stop = np.full(count, rows.num_rows)
                pairs = stretches(every, np.zeros_like(every), stop)
            yield Piece(rows, pairs, step.checks)

    def _matching(self, pairs: Combinations, checks: Sequence[PairCondition]) -> Numbers:
        """Which combinations all conditions hold for; later ones judge what earlier ones keep."""
        self.candidates += size_of(pairs)
        kept = np.arange(size_of(pairs), dtype=np.int64)
        for condition in checks:
            if not len(kept):
                break
            holds = condition.holds(values_of(pairs))
            if not holds.all():
                places = np.flatnonzero(holds)
                kept, pairs = kept[places], taken(pairs, places)
        return kept


def _checks(
    step: Step, failing: frozenset[Expression], answered: frozenset[Expression] = frozenset()
) -> list[PairCondition]:
    """What candidates have to keep: what no index answers, and conditions that fail on them."""
    left = [each for each in step.checks if each.predicate not in answered | failing]
    return left + [PairCondition(each) for each in sorted(failing, key=text_of)]


def bound_rows(rows: pa.RecordBatch) -> BoundRows:
    """Each row as a combination of its own."""
    every = np.arange(rows.num_rows, dtype=np.int64)
    return BoundRows(rows, row_sizes(rows), every, is_each=True)


def size_of(found: Combinations) -> int:
    """How many there are."""
    return len(next(iter(found.values())).at)


def taken(found: Combinations, places: Numbers) -> dict[str, BoundRows]:
    """Those at some places."""
    return {
        name: BoundRows(bound.rows, bound.sizes, places if bound.is_each else bound.at[places])
        for name, bound in found.items()
    }


def values_of(found: Combinations) -> Values:
    """A column of each combination."""

    def values(column: Column) -> pa.Array:
        bound = found[column.stream]
        if bound.is_each:
            return bound.rows.column(column.name)
        return bound.rows.column(column.name).take(pa.array(bound.at))

    return values
