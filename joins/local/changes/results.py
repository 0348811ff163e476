"""The results that a changed batch brings: which products come and go, and their rows."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.joins.conditions.join_tree import Product, products
from lsmstate.joins.local.changes.counted import with_nulls, with_operation
from lsmstate.joins.local.parts.changelog import ADDED, REMOVED, Changes, Mask, Numbers
from lsmstate.joins.local.parts.combiner import Combiner, GroupedRows
from lsmstate.joins.local.parts.products import Product as Counted
from lsmstate.joins.specs.aggregates import OPERATION_STREAM
from lsmstate.joins.specs.changes import ChangeSpec
from lsmstate.schema.arrow_sizes import least_row_bytes, row_sizes
from lsmstate.store import Probe

#: Up to so many streams it is worked out which of them need not be asked for their own rows.
_WORKED_OUT_STREAMS = 8


@dataclass(frozen=True, slots=True)
class Changed:
    """What a batch changed in its stream, by its distinct keys."""

    keys: KeyBatch
    added: GroupedRows
    removed: GroupedRows
    had: Mask
    """Whether the stream had rows of the key before."""
    has: Mask
    """Whether it has some now."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """Combinations at some keys that come, or go."""

    sign: bool
    """Whether they come."""
    product: Product
    """The streams that they have rows of."""
    at_hand: Mapping[str, GroupedRows]
    probes: Mapping[str, Probe]
    keys: Numbers


class Emitter:
    """Works out results: which products come and go, and their rows."""

    def __init__(self, spec: ChangeSpec, piece_bytes: int) -> None:
        self._spec = spec
        self._piece_bytes = piece_bytes
        self._names = tuple(spec.streams)
        self._known: dict[int, tuple[Product, ...]] = {}
        self._combiners: dict[Product, Combiner] = {}

    def depends_on(self, stream: str) -> bool:
        """Whether results without a row of ``stream`` come or go with its first or last row."""
        if len(self._names) > _WORKED_OUT_STREAMS:
            return True
        own = 1 << self._names.index(stream)
        for others in range(1 << len(self._names)):
            if not others & own:
                after = self._products(others | own)
                if {*self._products(others)} != {p for p in after if stream not in p}:
                    return True
        return False

    def alone(self, stream: str, changes: Changes) -> Iterator[Emitted]:
        """Rows that match nothing, as results."""
        for sign in (False, True):
            places = np.flatnonzero(changes.is_added == sign)
            if len(places):
                rows = changes.rows.take(pa.array(places))
                starts = np.arange(len(rows) + 1, dtype=np.int64)
                own = GroupedRows(rows, starts[:-1], starts, row_sizes(rows))
                yield Emitted(sign, frozenset({stream}), {stream: own}, {}, starts[:-1])

    def changed(
        self, stream: str, changed: Changed, probes: Mapping[str, Probe], keys: Numbers
    ) -> Iterator[Emitted]:
        """The results at ``keys``: first all that are taken back, then all that come."""
        own = 1 << self._names.index(stream)
        others = np.zeros(len(keys), dtype=np.int64)
        for name, probe in probes.items():
            others |= (probe.counts[keys] > 0).astype(np.int64) << self._names.index(name)
        rows = {True: changed.added, False: changed.removed}
        counts = {sign: np.diff(grouped.starts)[keys] for sign, grouped in rows.items()}
        kinds = np.stack(
            [others, changed.had[keys], changed.has[keys], counts[True] > 0, counts[False] > 0]
        )
        distinct, inverse = np.unique(kinds, axis=1, return_inverse=True)
        inverse = inverse.reshape(-1)
        concerned: dict[tuple[bool, Product], list[Numbers]] = {}
        for number, (present, had, has, *_) in enumerate(distinct.T.tolist()):
            before = self._products(present | own if had else present)
            after = self._products(present | own if has else present)
            at = keys[inverse == number]
            is_there = {True: bool(distinct[3, number]), False: bool(distinct[4, number])}
            for sign, now, then in ((False, before, after), (True, after, before)):
                for product in now:
                    if is_there[sign] if stream in product else product not in then:
                        concerned.setdefault((sign, product), []).append(at)
        for sign in (False, True):
            for (wanted, product), places in concerned.items():
                if wanted is sign:
                    at_hand = {stream: rows[sign]} if stream in product else {}
                    found = {name: probe for name, probe in probes.items() if name in product}
                    places_in_order = np.sort(np.concatenate(places))
                    yield Emitted(sign, product, at_hand, found, places_in_order)

    def rows(self, emitted: Iterable[Emitted]) -> Iterator[pa.RecordBatch]:
        """The results as rows."""
        for each in emitted:
            product = each.product
            for piece in self._checked(each).combined(each.at_hand, each.probes, each.keys):
                yield self._widened(piece, product, ADDED if each.sign else REMOVED)

    def counted(self, emitted: Iterable[Emitted], needed: Collection[str]) -> Iterator[Counted]:
        """The results as products, of which only the streams that are ``needed`` have sides. The
        operation is a stream of its own."""
        for each in emitted:
            found = self._checked(each).products(each.at_hand, each.probes, each.keys, needed)
            missing = {
                name: self._spec.streams[name]
                for name in self._spec.shown
                if name in needed and name not in each.product
            }
            for product in found:
                product = with_nulls(product, missing)
                if OPERATION_STREAM in needed:
                    product = with_operation(product, ADDED if each.sign else REMOVED)
                yield product

    def _checked(self, each: Emitted) -> Combiner:
        assert each.sign or self._spec.emits_changes, "nothing can be taken back of this join"
        return self._combiner(each.product)

    def _combiner(self, product: Product) -> Combiner:
        if product not in self._combiners:
            streams = {n: s for n, s in self._spec.streams.items() if n in product}
            fields = [field for rows in streams.values() for field in rows]
            beside = sum(
                least_row_bytes(self._spec.streams[name])
                for name in self._spec.shown
                if name not in product
            )
            self._combiners[product] = Combiner(
                streams, pa.schema(fields), self._piece_bytes, beside
            )
        return self._combiners[product]

    def _widened(self, piece: pa.RecordBatch, product: Product, operation: str) -> pa.RecordBatch:
        """With the operation, and nulls for the streams that are not in the product."""
        count = piece.num_rows
        columns = [pa.repeat(operation, count)] if self._spec.emits_changes else []
        found = iter(piece.columns)
        for name in self._spec.shown:
            columns += [
                next(found) if name in product else pa.nulls(count, field.type)
                for field in self._spec.streams[name]
            ]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)

    def _products(self, present: int) -> tuple[Product, ...]:
        """The products where the streams of these bits have rows."""
        if present not in self._known:
            names = {name for at, name in enumerate(self._names) if present >> at & 1}
            self._known[present] = products(self._spec.tree, names)
        return self._known[present]
