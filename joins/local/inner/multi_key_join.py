"""Iterative probing over several join keys: join graphs that are chains, trees or have cycles.

A batch is stored in every index of its stream first. Then combinations grow by one stream at a
time. Before any row is fetched, the keys of all combinations are looked up in *every* stream that
the bound ones can reach, and combinations that one of them lacks are dropped; the stream that
multiplies them least is fetched next, its count being known exactly. Where the join graph has
cycles, a stream may be in reach by several indexes. Each combination takes its rows by the index
that has the fewest for it, as worst-case optimal joins do (Ngo et al., "Skew Strikes Back", SIGMOD
Record 2013). A combination is found once: when the last of its rows arrives. (UMJoin, section 3.1:
iterative probing; the paper has one key.)
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_types import cast_key
from lsmstate.joins.local.parts.bound_rows import (
    BoundRows,
    coalesced,
    distinct_places,
    fetched_pairs,
    grouped,
    parts_of,
)
from lsmstate.joins.local.parts.cross_product import Side, combinations
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.products import Product
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Numbers, Picked
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.specs.multi_key import GraphSpec, Index
from lsmstate.schema.arrow_sizes import least_row_bytes, row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore, Mutation, Probe


class GraphJoin(KeepsAllRows):
    """The operator over one store, among whose streams are ``spec.stream_schemas``.

    Not thread-safe. The store belongs to the caller, who commits and closes it.
    """

    def __init__(
        self,
        spec: GraphSpec,
        store: MultimapStore,
        piece_bytes: int = 1 << 20,
        probe_order: ProbeOrder | None = None,
    ) -> None:
        """``probe_order``: what an operator of the same join has learned before."""
        if piece_bytes < 1:
            raise InvalidArgumentError(f"piece_bytes={piece_bytes!r}: must be at least 1")
        wanted = [schema.name for schema in spec.stream_schemas]
        if not store.streams.keys() >= set(wanted):
            raise InvalidArgumentError(
                f"the store holds the streams {', '.join(store.streams)}, the join needs "
                f"{', '.join(wanted)}; open the store with spec.stream_schemas"
            )
        self._spec = spec
        self._store = store
        self._piece_bytes = piece_bytes
        self._codecs: dict[tuple[int, ...], KeyCodec] = {}
        self._least_bytes = {name: least_row_bytes(schema) for name, schema in spec.streams.items()}
        self._gatherer = Gatherer(list(spec.shown_rows.values()), spec.output_schema)
        self._probe_order = probe_order or ProbeOrder()
        self._unfinished: Results | None = None

    @classmethod
    def of(cls, spec: GraphSpec, store: MultimapStore, context: Context) -> "GraphJoin":
        """The join in a bucket."""
        return cls(spec, store, context.piece_bytes, context.learned)

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return its new results.

        Rows with a null in a key are in no result and are not stored. A batch that the store
        refuses is not stored at all.

        Args:
            batch: The rows; columns are taken by name.

        Returns:
            The results in pieces of at most ``piece_bytes`` or one row, computed as they are read,
            with the columns ``spec.output_schema``. Read them to the end, or close them, before the
            next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, or earlier results are not
                read.

        Cost:
            Per stream a piece of fetched rows and 16,384 combinations in memory, whatever the data.
        """
        call = f"process({batch.stream!r})"
        self._spec.check_stream(batch.stream)
        check_finished(call, self._unfinished)
        rows = as_batch(batch.rows, self._spec.streams[batch.stream], call)
        parts = self._arrived(batch.stream, rows, batch.role)
        self._unfinished = Results(
            self.results(batch.stream, parts),
            (self._picked(c) for part in parts for c in self._combinations(batch.stream, part)),
            self._spec.output_schema,
            lambda needed: self.products(batch.stream, parts, needed),
        )
        return self._unfinished

    def _arrived(self, stream: str, rows: pa.RecordBatch, role: Role) -> list[pa.RecordBatch]:
        """The rows that can be joined, in parts for ``results``; stored in all indexes of the
        stream, unless they only probe."""
        parts = self.parts(stream, self.joinable(stream, rows))
        if role != Role.PROBE:
            self._store.write_all(
                WriteParts(lambda: (self.writes(stream, part, "append") for part in parts))
            )
        return parts

    def results(self, stream: str, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The combinations of the parts' rows with those of the other streams, in pieces."""
        combinations = (c for part in parts for c in self._combinations(stream, part))
        pieces = (
            piece
            for found in combinations
            for piece in self._picked(found).made(self._gatherer, self._piece_bytes)
        )
        return coalesced(pieces, self._piece_bytes)

    def joinable(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows no key of which is null."""
        classes = self._spec.held_by(stream)
        valid = self._encode(classes, self._spec.key_batch(stream, batch, classes)).valid
        return batch if valid.all() else batch.filter(pa.array(valid))

    def parts(
        self, stream: str, rows: pa.RecordBatch, more_copies: int = 0
    ) -> list[pa.RecordBatch]:
        """The rows in parts that are no more than a piece together with their copies: one in each
        index of the stream, as ``writes`` stores them, and ``more_copies``."""
        copies = max(1, len(self._indexes_of(stream)) + more_copies)
        return parts_of(rows, max(1, self._piece_bytes // copies))

    def writes(
        self, stream: str, rows: pa.RecordBatch, kind: Literal["append", "retract"]
    ) -> list[Mutation]:
        """What stores the rows in all indexes, to be made as one: a row that only some indexes held
        would be found by some of its partners. An index is without the rows with a null in it."""
        return [
            Mutation(
                kind,
                index.name,
                self._encode(index.classes, self._spec.key_batch(stream, rows, index.classes)),
                rows,
            )
            for index in self._indexes_of(stream)
        ]

    def _indexes_of(self, stream: str) -> list[Index]:
        return [index for index in self._spec.indexes if index.stream == stream]

    def products(
        self, stream: str, parts: Sequence[pa.RecordBatch], needed: Collection[str]
    ) -> Iterator[Product]:
        """The results as products; rows of streams that are not ``needed`` are counted where that
        can be done, not read."""
        for part in parts:
            for found in self._combinations(stream, part, needed):
                starts = np.arange(len(found) + 1, dtype=np.int64)
                sides = {
                    name: Side(bound.rows, starts, bound.sizes[bound.at], bound.at)
                    for name in self._spec.streams
                    if name in needed and (bound := found.bound.get(name)) is not None
                }
                counts = [found.partner_counts(name) for name in found.partners]
                times = combinations([np.ones(len(found), dtype=np.int64), *counts])
                yield Product(sides, times)

    def _combinations(
        self, stream: str, rows: pa.RecordBatch, needed: Collection[str] | None = None
    ) -> Iterator["Combinations"]:
        """All combinations of all streams that hold one of ``rows``, depth first. Streams that are
        not ``needed`` may be left as partners, whose counts are then exact; None: all are."""
        own = BoundRows(rows, row_sizes(rows), np.arange(rows.num_rows, dtype=np.int64))
        stack = [iter([Combinations({stream: own}, {})])]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
            elif len(found.bound) + found.counted == len(self._spec.streams):
                yield found
            else:
                stack.append(self._extended(found, needed))

    def _extended(
        self, found: "Combinations", needed: Collection[str] | None
    ) -> Iterator["Combinations"]:
        """The combinations with the rows of one more stream; if all others need only be counted,
        with their counts."""
        found = self._looked_up(found)
        if len(found) == 0:
            return
        counted = {
            name
            for name, partners in found.partners.items()
            if needed is not None
            and name not in needed
            and any(partner.index.classes == self._spec.held_by(name) for partner in partners)
        }
        if len(found.bound) + len(counted) == len(self._spec.streams):
            yield replace(found, counted=len(counted))
            return
        # Ties go to the stream that is named first, so that a retry fetches in the same order.
        name = min(
            (s for s in self._spec.streams if s in found.partners and s not in counted),
            key=lambda stream: int(found.partner_counts(stream).sum()),
        )
        yield from self._fetched(found, name)

    def _looked_up(self, found: "Combinations") -> "Combinations":
        """Existence in every stream in reach, in the order learned; reads no row."""
        reach = {index.name: index for index in self._in_reach(found)}
        asking = " ".join(found.bound)
        for name in self._probe_order.order(asking, reach):
            if len(found) == 0:
                break
            index = reach[name]
            keys, at = self._keys(found, index.classes)
            distinct, groups = grouped(self._encode(index.classes, keys))
            groups = groups[at]
            if (groups < 0).any():
                known = np.flatnonzero(groups >= 0)
                found, groups = found.take(known), groups[known]
            probe = self._store.probe(name, distinct)
            present = int(np.count_nonzero(probe.counts))
            self._probe_order.record(asking, name, len(distinct), present)
            found = found.with_partner(index.stream, Partner(index, probe, groups))
            found = found.take(np.flatnonzero(probe.counts[groups]))
        return found

    def _in_reach(self, found: "Combinations") -> Iterator[Index]:
        """The indexes to look into next. A stream that has a row for each combination and no more
        is only looked up again by all its keys, so that its rows need not be read."""
        for name in self._spec.streams:
            if name in found.bound:
                continue
            known = {partner.index for partner in found.partners.get(name, ())}
            is_single = known and int(found.partner_counts(name).sum()) == len(found)
            for index in self._spec.indexes_from(found.bound.keys(), name):
                is_whole = index.classes == self._spec.held_by(name)
                if index not in known and (is_whole or not is_single):
                    yield index

    def _fetched(self, found: "Combinations", name: str) -> Iterator["Combinations"]:
        """The combinations with each of their matching rows of ``name``, block by block."""
        partners = found.partners[name]
        best = np.argmin([partner.counts for partner in partners], axis=0)
        found = found.without_partner(name)
        for number, partner in enumerate(partners):
            own = np.flatnonzero(best == number)
            for lefts, bound in fetched_pairs(
                partner.probe, partner.at[own], self._least_bytes[name], self._piece_bytes
            ):
                grown = self._agreeing(found.take(own[lefts]), name, bound, partner.index)
                if len(grown):
                    yield grown

    def _agreeing(
        self, found: "Combinations", name: str, bound: "BoundRows", index: Index
    ) -> "Combinations":
        """The combinations with ``bound``, where the classes beside the index's are equal too:
        those that close a cycle of the join graph."""
        known = {number for other in found.bound for number in self._spec.held_by(other)}
        rest = [n for n in self._spec.held_by(name) if n in known and n not in index.classes]
        grown = found.with_bound(name, bound)
        if not rest:
            return grown
        here, here_at = self._keys(found, rest)
        there, there_at = self._keys(Combinations({name: bound}, {}), rest)
        _, groups = grouped(self._encode(tuple(rest), pa.concat_batches([here, there])))
        agrees = groups[here_at] == groups[here.num_rows + there_at]
        return grown.take(np.flatnonzero(agrees & (groups[here_at] >= 0)))

    def _keys(
        self, found: "Combinations", classes: Sequence[int]
    ) -> tuple[pa.RecordBatch, Numbers]:
        """The values that the combinations have of the classes, from whichever bound rows hold
        them, and which of them each has. A key may be large and in many combinations: it is copied
        once for the rows that hold it together."""
        holders = [
            next(name for name in found.bound if name in self._spec.classes[number].columns)
            for number in classes
        ]
        examples, at = distinct_places([found.bound[name].at for name in dict.fromkeys(holders)])
        columns = []
        for number, holder in zip(classes, holders, strict=True):
            key_class = self._spec.classes[number]
            bound = found.bound[holder]
            column = bound.rows.column(key_class.columns[holder]).take(pa.array(bound.at[examples]))
            columns.append(cast_key(column, key_class.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.key_schema(classes)), at

    def _encode(self, classes: tuple[int, ...], keys: pa.RecordBatch) -> KeyBatch:
        if classes not in self._codecs:
            self._codecs[classes] = KeyCodec(self._spec.key_schema(classes))
        return self._codecs[classes].encode(keys)

    def _picked(self, found: "Combinations") -> Picked:
        """Whole combinations as results."""
        streams = [(found.bound[name], self._spec.shown[name]) for name in self._spec.streams]
        sizes = sum((bound.sizes[bound.at] for bound, _ in streams), np.int64(0))
        shown = [bound.rows.select(range(count)) for bound, count in streams]
        return Picked(shown, [bound.at for bound, _ in streams], np.asarray(sizes))


@dataclass(frozen=True, slots=True)
class Partner:
    """What a stream has in an index for each combination: ``probe``'s key ``at[i]``."""

    index: Index
    probe: Probe
    at: Numbers

    @property
    def counts(self) -> Numbers:
        """Matching rows per combination."""
        return self.probe.counts[self.at]


@dataclass(frozen=True, slots=True)
class Combinations:
    """One row of each bound stream; a value."""

    bound: Mapping[str, BoundRows]
    partners: Mapping[str, tuple[Partner, ...]]
    """By stream that is not bound yet, one for each index that it was looked up in."""
    counted: int = 0
    """How many of the partners stand for all their rows."""

    def __len__(self) -> int:
        return len(next(iter(self.bound.values())).at)

    def take(self, places: Numbers) -> "Combinations":
        bound = {name: replace(rows, at=rows.at[places]) for name, rows in self.bound.items()}
        partners = {
            name: tuple(replace(p, at=p.at[places]) for p in found)
            for name, found in self.partners.items()
        }
        return Combinations(bound, partners)

    def with_bound(self, name: str, rows: BoundRows) -> "Combinations":
        return Combinations({**self.bound, name: rows}, self.partners)

    def with_partner(self, name: str, partner: Partner) -> "Combinations":
        # Of indexes with as many rows the first is taken, whichever was looked into first.
        found = sorted((*self.partners.get(name, ()), partner), key=lambda each: each.index.classes)
        return Combinations(self.bound, {**self.partners, name: tuple(found)})

    def partner_counts(self, name: str) -> Numbers:
        """How many rows of a stream each combination has at most."""
        counts = [partner.counts for partner in self.partners[name]]
        return np.asarray(np.minimum.reduce(counts))

    def without_partner(self, name: str) -> "Combinations":
        return Combinations(self.bound, {n: p for n, p in self.partners.items() if n != name})
