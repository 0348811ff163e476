"""Cross products of rows at hand with rows that probes found, key by key, in bounded memory.

Keys are positions in the distinct keys of an arrived batch. Keys of few rows are combined in
groups, for which each stored row is fetched once; a hot key by itself, in nested pieces.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.cross_product import Side, combinations, cross_product
from lsmstate.joins.local.parts.products import Product
from lsmstate.joins.local.parts.row_picks import Numbers, Picked
from lsmstate.schema.arrow_sizes import RowSizes, least_row_bytes
from lsmstate.store import Probe

#: What the results of a piece that is not made yet would take, at most.
_PICKED_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of an arrived batch by their distinct keys: key k owns the places ``starts[k]`` to
    ``starts[k + 1]`` of ``order``, which holds positions of rows. ``sizes``: bytes per row."""

    rows: pa.RecordBatch
    order: Numbers | npt.NDArray[np.uint32]
    starts: Numbers
    sizes: Numbers

    def side(self, keys: Numbers) -> Side:
        """The rows under some of the keys."""
        counts = self.starts[keys + 1] - self.starts[keys]
        starts = starts_of(counts)
        places = np.repeat(self.starts[keys] - starts[:-1], counts) + np.arange(starts[-1])
        order = self.order[places].astype(np.int64)
        return Side(self.rows, starts, self.sizes[order], order)


class Combiner:
    """Combines one row of each of ``streams``, whose columns stand in their order in a result.

    Pieces hold at most ``piece_bytes`` of Arrow data or one row; ``beside_bytes`` is what the
    caller adds to each row. Memory: a piece and, per stream, about ``piece_bytes`` of fetched rows.
    """

    def __init__(
        self,
        streams: Mapping[str, pa.Schema],
        schema: pa.Schema,
        piece_bytes: int,
        beside_bytes: int = 0,
    ) -> None:
        self._streams = tuple(streams)
        self._gatherer = Gatherer(list(streams.values()), schema)
        self._piece_bytes = piece_bytes
        self._beside_bytes = beside_bytes
        self._row_sizes = {name: RowSizes(rows) for name, rows in streams.items()}
        self._least_bytes = {name: least_row_bytes(rows) for name, rows in streams.items()}

    def combined(
        self, at_hand: Mapping[str, GroupedRows], probes: Mapping[str, Probe], keys: Numbers
    ) -> Iterator[pa.RecordBatch]:
        """Per key all combinations. Each stream is either ``at_hand`` or in ``probes``, and has
        rows under every one of the ``keys``, which ascend."""
        for sides in self._products(at_hand, probes, keys):
            sources = self._gatherer.sources([side.rows for side in sides])
            for piece in cross_product(sides, self._piece_bytes):
                yield sources.gather(piece.places)

    def picked(
        self, at_hand: Mapping[str, GroupedRows], probes: Mapping[str, Probe], keys: Numbers
    ) -> Iterator[Picked]:
        """The same, not made yet: of each group of keys or piece of a hot one, in pieces of at most
        32,768 rows that would take at most ``_PICKED_BYTES``."""
        for sides in self._products(at_hand, probes, keys):
            yield from cross_product(sides, _PICKED_BYTES)

    def products(
        self,
        at_hand: Mapping[str, GroupedRows],
        probes: Mapping[str, Probe],
        keys: Numbers,
        needed: Collection[str],
    ) -> Iterator[Product]:
        """The same as products. Rows of streams that are not ``needed`` are counted, not read."""
        shown = {name: rows for name, rows in at_hand.items() if name in needed}
        read = {name: probe for name, probe in probes.items() if name in needed}
        counts = [np.diff(rows.starts) for name, rows in at_hand.items() if name not in shown]
        counts += [probe.counts for name, probe in probes.items() if name not in read]
        for own, is_hot in self._stretches(read, keys):
            ones = np.ones(len(own), dtype=np.int64)
            times = combinations([ones, *(count[own] for count in counts)])
            at_once = {name: rows.side(own) for name, rows in shown.items()}
            if is_hot:
                large = {n: partial(self._large, n, p, own) for n, p in read.items()}
                yield Product(at_once, times, large)
            else:
                fetched = self._fetched(read, own) if read else {}
                yield Product({**at_once, **fetched}, times)

    def _products(
        self, at_hand: Mapping[str, GroupedRows], probes: Mapping[str, Probe], keys: Numbers
    ) -> Iterator[list[Side]]:
        """What is to be multiplied, one after the other."""
        for own, is_hot in self._stretches(probes, keys):
            if is_hot:
                yield from self._hot(at_hand, probes, int(own[0]))
            else:
                yield self._sides(at_hand, own, self._fetched(probes, own) if probes else {})

    def _stretches(
        self, probes: Mapping[str, Probe], keys: Numbers
    ) -> Iterator[tuple[Numbers, bool]]:
        """Keys whose rows, all together, fit into a piece per stream; or a single one whose rows do
        not fit, which is said beside it."""
        if not probes:
            yield keys, False
            return
        weights = {name: self._weights(name, probes[name])[keys] for name in probes}
        ends = [np.cumsum(weight) for weight in weights.values()]
        first = 0
        while first < len(keys):
            limits = [(end[first - 1] if first else 0) + self._piece_bytes for end in ends]
            stops = [
                int(np.searchsorted(end, limit, side="right"))
                for end, limit in zip(ends, limits, strict=True)
            ]
            is_hot = any(weight[first] > self._piece_bytes for weight in weights.values())
            last = first + 1 if is_hot else max(first + 1, min(stops))
            yield keys[first:last], is_hot
            first = last

    def _fetched(self, probes: Mapping[str, Probe], keys: Numbers) -> dict[str, Side]:
        """Keys whose rows, all together, fit into a piece per stream: each row is fetched once."""
        fetched = {}
        for name, probe in probes.items():
            pieces = list(probe.fetch(keys, self._piece_bytes))
            rows = pieces[0].rows if len(pieces) == 1 else pa.concat_batches(p.rows for p in pieces)
            counts = probe.counts[keys]
            assert rows.num_rows == counts.sum(), f"{name}: fetched other rows than were counted"
            fetched[name] = Side(rows, starts_of(counts), self._row_sizes[name](rows))
        return fetched

    def _large(self, name: str, probe: Probe, keys: Numbers) -> Iterator[Side]:
        """The rows of one key in pieces, each read once."""
        key = int(keys[0])
        for rows in self._pieces(probe, key, int(self._weights(name, probe)[key])):
            yield Side(rows, np.array([0, rows.num_rows]), self._row_sizes[name](rows))

    def _hot(
        self, at_hand: Mapping[str, GroupedRows], probes: Mapping[str, Probe], key: int
    ) -> Iterator[list[Side]]:
        """One key with more rows than a piece: nested pieces, the smallest stream outermost.

        The inner streams are read again for each piece of an outer one, so memory stays at one
        piece per stream however large the result.
        """
        keys = np.array([key], dtype=np.int64)
        weight = {name: int(self._weights(name, p)[key]) for name, p in probes.items()}
        names = sorted(probes, key=lambda name: weight[name])
        sides: dict[str, Side] = {}
        stack = [self._pieces(probes[names[0]], key, weight[names[0]])]
        while stack:
            rows = next(stack[-1], None)
            if rows is None:
                stack.pop()
                continue
            name = names[len(stack) - 1]
            starts = np.array([0, rows.num_rows], dtype=np.int64)
            sides[name] = Side(rows, starts, self._row_sizes[name](rows))
            if len(stack) < len(names):
                name = names[len(stack)]
                stack.append(self._pieces(probes[name], key, weight[name]))
            else:
                yield self._sides(at_hand, keys, sides)

    def _pieces(self, probe: Probe, key: int, weight: int) -> Iterator[pa.RecordBatch]:
        # The store counts encoded bytes, which can be far fewer than Arrow's.
        max_bytes = max(1, self._piece_bytes * int(probe.row_bytes[key]) // max(1, weight))
        keys = np.array([key], dtype=np.int64)
        return (piece.rows for piece in probe.fetch(keys, max_bytes))

    def _sides(
        self, at_hand: Mapping[str, GroupedRows], keys: Numbers, fetched: Mapping[str, Side]
    ) -> list[Side]:
        sides = [
            fetched[name] if name in fetched else at_hand[name].side(keys) for name in self._streams
        ]
        if self._beside_bytes:
            sides[0] = replace(sides[0], sizes=sides[0].sizes + self._beside_bytes)
        return sides

    def _weights(self, stream: str, probe: Probe) -> Numbers:
        """Bytes that the rows of each key take when fetched: an estimate, never far too low."""
        return probe.row_bytes + probe.counts * self._least_bytes[stream]


def starts_of(counts: Numbers) -> Numbers:
    """Where each group begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
