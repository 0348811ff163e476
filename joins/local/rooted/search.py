"""Rows of a root stream with what the other streams have for them: left, semi and anti joins too.

Combinations grow by one stream at a time, depth first, in the order of the joins. Where a step
needs to know only whether there is a partner, no row is read; an interval between time stamps, or
another condition, is checked on the rows, pair by pair.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.conditions.key_types import cast_key
from lsmstate.joins.local.parts.bound_rows import (
    BoundRows,
    coalesced,
    distinct_places,
    fetched_pairs,
    grouped,
    parts_of,
)
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.rooted.combinations import Found, keeps
from lsmstate.joins.specs.multi_key import GraphSpec, Index
from lsmstate.joins.specs.rooted_steps import RootedJoins, Step, StepKey
from lsmstate.schema.arrow_sizes import least_row_bytes, pieces_of, row_sizes
from lsmstate.store import Probe

Mask = npt.NDArray[np.bool_]


class Probed(Protocol):
    """What is read of a store."""

    def probe(self, stream: str, keys: KeyBatch) -> Probe:
        """Look up keys. The rows found are read by the probe's ``fetch``."""
        ...


class RootedSearch:
    """Finds the results of ``joins`` in a store with ``indexes``, of which each step has one by all
    classes it compares. ``output`` has the shown columns of the streams ``shown``."""

    def __init__(
        self,
        graph: GraphSpec,
        joins: RootedJoins,
        indexes: Sequence[Index],
        shown: Sequence[str],
        output: pa.Schema,
        piece_bytes: int,
        *,
        unmatched_only: bool = False,
    ) -> None:
        """``unmatched_only``: leave out the results in which no stream is null."""
        self._graph = graph
        self._joins = joins
        self._shown = {name: graph.shown[name] for name in shown}
        self._gatherer = Gatherer([graph.shown_rows[name] for name in shown], output)
        self._piece_bytes = piece_bytes
        self._unmatched_only = unmatched_only
        self._indexes = {(index.stream, index.classes): index.name for index in indexes}
        self._last = joins.steps[-1] if joins.steps else None
        self._unless: RootedSearch | None = None
        self._unless_streams = joins.unless.streams if joins.unless else set()
        if joins.unless is not None:
            rows = graph.shown_rows[joins.root]
            self._unless = RootedSearch(
                graph, joins.unless, indexes, [joins.root], rows, piece_bytes
            )

    def results(self, store: Probed, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What becomes of the root's ``rows``, in pieces of at most ``piece_bytes`` or one row.
        Memory: per stream a piece of fetched rows, whatever the data. The store must not be
        written to meanwhile."""
        begun = (self.begun(self._joins.root, p) for p in parts_of(rows, self._piece_bytes))
        return self.grown(store, begun)

    def begun(self, stream: str, rows: pa.RecordBatch) -> Found:
        """Combinations of a row of one stream alone."""
        places = np.arange(rows.num_rows, dtype=np.int64)
        return Found({stream: BoundRows(rows, row_sizes(rows), places)})

    def grown(
        self, store: Probed, begun: Iterator[Found], without: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """What becomes of combinations that hold a row of the root at least; the step of the
        stream ``without`` was made, and those of streams that they hold. With one of
        ``joins.unless`` it is known that the root's rows are not left out."""
        found = (c for each in begun for c in self._after_all(store, each, without))
        return coalesced((p for each in found for p in self._gathered(each)), self._piece_bytes)

    def risen(
        self, store: Probed, found: Found, stream: str, steps: Sequence[Step] | None = None
    ) -> Iterator[Found]:
        """The combinations, which hold rows of ``stream`` alone, with all rows that lead to it from
        the root, after ``steps``, of which that of ``stream`` is one: by default its lineage."""
        steps = self._joins.lineage(stream) if steps is None else steps
        for rising in self._to_root(store, found, stream):
            if all(step.is_by_one and step.stream in rising.bound for step in steps):
                yield rising
            else:
                yield from self._after_steps(store, rising, steps, is_risen=True)

    def counts(self, store: Probed, stream: str, rows: BoundRows) -> Numbers:
        """Of inner joins, in how many results each row of ``stream`` is, by its place. Cost: that
        of these results, of which no rows are made."""
        found = np.zeros(rows.rows.num_rows, dtype=np.int64)
        begun = Found({stream: replace(rows, at=np.unique(rows.at))})
        for each in self.risen(store, begun, stream, self._joins.steps):
            found += np.bincount(each.bound[stream].at, minlength=len(found))
        return found

    def _to_root(self, store: Probed, found: Found, stream: str) -> Iterator[Found]:
        """The same with the streams on one way to the root, by the keys of these alone."""
        path = self._joins.path(stream)
        stack = [iter([found])]
        while stack:
            rising = next(stack[-1], None)
            if rising is None:
                stack.pop()
            elif len(rising) and len(stack) > len(path):
                yield rising
            elif len(rising):
                stack.append(self._earlier(store, rising, path[len(stack) - 1]))

    def _earlier(self, store: Probed, found: Found, step: Step) -> Iterator[Found]:
        """The combinations, which hold rows of the step's stream, with what it is compared with,
        of several streams with one."""
        earlier, classes = step.earlier, step.earlier_classes
        distinct, groups = self._grouped(found, dict.fromkeys(classes, step.stream))
        known = np.flatnonzero(groups >= 0)
        probe = store.probe(self._indexes[earlier, classes], distinct)
        present = known[probe.counts[groups[known]] > 0]
        for lefts, partners in self._fetched(probe, groups[present], earlier):
            both = found.take(present[lefts]).joined(earlier, partners)
            is_checked = step.is_by_one and step.is_checked
            yield self._kept(step, both, ()) if is_checked else both

    def _kept(self, step: Step, found: Found, keys: Sequence[StepKey]) -> Found:
        return found.take(np.flatnonzero(keeps(self._graph, step, found, keys)))

    def _after_all(self, store: Probed, begun: Found, without: str | None) -> Iterator[Found]:
        """The combinations of which there is a result."""
        if self._unless is not None and without not in self._unless_streams:
            rows = begun.bound[self._joins.root]
            counts = self._unless.counts(store, self._joins.root, rows)
            begun = begun.take(np.flatnonzero(counts[rows.at] == 0))
        for found in self._after_steps(store, begun, self._joins.steps, without):
            if found.has_nulls or not self._unmatched_only:
                yield found

    def _after_steps(
        self,
        store: Probed,
        begun: Found,
        steps: Sequence[Step],
        without: str | None = None,
        *,
        is_risen: bool = False,
    ) -> Iterator[Found]:
        """The combinations after these steps. That of ``without`` was made, and those of streams
        that they hold; with ``is_risen`` by the keys of one other stream alone."""
        stack = [iter([begun])]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
            elif len(found) == 0:
                continue
            elif len(stack) > len(steps):
                yield found
            elif (step := steps[len(stack) - 1]).stream not in (without, *found.bound):
                stack.append(self._after(store, found, step))
            elif is_risen and not step.is_by_one:
                stack.append(iter([self._kept(step, found, step.keys)]))
            else:
                stack.append(iter([found]))

    def _after(self, store: Probed, found: Found, step: Step) -> Iterator[Found]:
        """The combinations after one more step."""
        distinct, groups = self._grouped(found, step.holders)
        probe = store.probe(self._indexes[step.stream, step.classes], distinct)
        has_partner = np.zeros(len(found), dtype=np.bool_)
        known = groups >= 0
        has_partner[known] = probe.counts[groups[known]] > 0
        if step.is_checked or step.kind in ("inner", "left"):
            candidates = np.flatnonzero(has_partner)
            has_partner = np.zeros(len(found), dtype=np.bool_)
            # Of the results that are left out, only whether there are any need be known.
            is_left_out = self._unmatched_only and not found.has_nulls
            is_wanted = not (step is self._last and is_left_out)
            if step.is_checked or is_wanted:
                at = groups[candidates]
                for lefts, partners in self._fetched(probe, at, step.stream):
                    lefts = candidates[lefts]
                    both = found.take(lefts).joined(step.stream, partners)
                    if step.is_checked:
                        kept = np.flatnonzero(keeps(self._graph, step, both, step.more_keys))
                        both, lefts = both.take(kept), lefts[kept]
                    has_partner[lefts] = True
                    if step.kind in ("inner", "left") and is_wanted:
                        yield both
            else:
                has_partner[candidates] = True
        if step.kind == "semi":
            yield found.take(np.flatnonzero(has_partner))
        elif step.kind == "anti":
            yield found.take(np.flatnonzero(~has_partner))
        elif step.kind == "left":
            yield found.take(np.flatnonzero(~has_partner)).without(
                step.stream, self._graph.streams[step.stream]
            )

    def _fetched(
        self, probe: Probe, at: Numbers, stream: str
    ) -> Iterator[tuple[Numbers, BoundRows]]:
        least = least_row_bytes(self._graph.streams[stream])
        return fetched_pairs(probe, at, least, self._piece_bytes)

    def _grouped(self, found: Found, holders: Mapping[int, str]) -> tuple[KeyBatch, Numbers]:
        """The distinct keys of the combinations, and which of them each has; -1 for one with a
        null. ``holders``: of each key class the stream whose value it is. A key may be large and in
        many combinations: it is copied once for the rows that hold it together."""
        bound = {name: found.bound[name] for name in holders.values()}
        examples, at = distinct_places([rows.at for rows in bound.values()])
        columns = []
        for number in sorted(holders):
            key_class, holder = self._graph.classes[number], holders[number]
            rows = bound[holder]
            column = rows.rows.column(key_class.columns[holder])
            columns.append(cast_key(column.take(pa.array(rows.at[examples])), key_class.type))
        schema = self._graph.key_schema(sorted(holders))
        keys = KeyCodec(schema).encode(pa.RecordBatch.from_arrays(columns, schema=schema))
        distinct, groups = grouped(keys)
        return distinct, groups[at]

    def _gathered(self, found: Found) -> Iterator[pa.RecordBatch]:
        """Combinations as rows, in pieces; nulls for the streams that are not in them."""
        for name in (name for name in self._shown if name not in found.bound):
            found = found.without(name, self._graph.streams[name])
        bound = [found.bound[name] for name in self._shown]
        sizes = sum((rows.sizes[rows.at] for rows in bound), np.int64(0))
        counts = self._shown.values()
        sources = self._gatherer.sources(
            [rows.rows.select(range(count)) for rows, count in zip(bound, counts, strict=True)]
        )
        for piece in pieces_of(np.asarray(sizes), self._piece_bytes):
            yield sources.gather([rows.at[piece] for rows in bound])
