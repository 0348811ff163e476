"""Results as products: under each key all combinations of one row of each side.

What aggregates results needs no more. A stream of which no column is needed is no side: it only
says how often each combination counts, and its rows are not read. Where ranges decide what matches,
a row stands beside a stretch of the other stream's rows instead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from lsmstate.joins.local.parts.cross_product import Side
from lsmstate.joins.local.parts.row_picks import Numbers, Picked

#: Places of rows, and beside each that of a row that it matches, in blocks.
PairsOfPlaces = Callable[[], Iterator[tuple[Numbers, Numbers]]]
#: Reads a side that is too large from its beginning, in pieces, each with one row at least.
LargeSide = Callable[[], Iterator[Side]]


@dataclass(frozen=True, slots=True)
class Product:
    """Under key k all combinations of one row of each side, each of them ``times[k]`` results."""

    sides: Mapping[str, Side]
    """By stream."""
    times: Numbers
    pieces: Mapping[str, LargeSide] = field(default_factory=dict)
    """Sides that are too large, whose rows are all under the one key there is."""
    operation: str | None = None
    """That of all results, which then also is the column of a side; None: there is none, or each
    has its own."""

    @property
    def is_flat(self) -> bool:
        """Whether each key has one combination."""
        keys = len(self.times)
        return not self.pieces and all(
            len(side.sizes) == keys and bool((np.diff(side.starts) == 1).all())
            for side in self.sides.values()
        )


@dataclass(frozen=True, slots=True)
class RangeProduct:
    """Rows of two streams by ranges: row ``owners[i]`` of ``left`` matches those of ``right`` from
    ``first[i]`` up to ``stop[i]``, of which there is one at least."""

    left: tuple[str, pa.RecordBatch]
    right: tuple[str, pa.RecordBatch]
    owners: Numbers
    first: Numbers
    stop: Numbers
    pairs: PairsOfPlaces

    def enumerated(self) -> Iterator[Product]:
        """Each pair by itself."""
        for lefts, rights in self.pairs():
            starts = np.arange(len(lefts) + 1, dtype=np.int64)
            ones = np.ones(len(lefts), dtype=np.int64)
            sides = {
                name: Side(rows, starts, ones, places)
                for (name, rows), places in ((self.left, lefts), (self.right, rights))
            }
            yield Product(sides, ones)


def product_of(found: pa.RecordBatch | Picked, streams: Mapping[str, pa.Schema]) -> Product:
    """Results, each under a key of its own. ``streams``: whose columns, side by side, are those of
    a result."""
    if isinstance(found, Picked):
        batches: Sequence[pa.RecordBatch] = found.batches
        count = len(found)
        places: Sequence[Numbers | None] = found.places
    else:
        batches, first = [], 0
        for schema in streams.values():
            columns = found.columns[first : first + len(schema)]
            batches.append(pa.RecordBatch.from_arrays(columns, names=schema.names))
            first += len(schema)
        count = found.num_rows
        places = [None] * len(batches)
    starts = np.arange(count + 1, dtype=np.int64)
    ones = np.ones(count, dtype=np.int64)
    sides = {
        name: Side(rows, starts, ones, order)
        for name, rows, order in zip(streams, batches, places, strict=True)
    }
    return Product(sides, ones)


def beside(product: Product, rows: Mapping[str, pa.RecordBatch]) -> Product:
    """The product with a single row of further streams under each key."""
    if not rows:
        return product
    keys = len(product.times)
    starts, ones = np.arange(keys + 1, dtype=np.int64), np.ones(keys, dtype=np.int64)
    places = np.zeros(keys, dtype=np.int64)
    single = {name: Side(row, starts, ones, places) for name, row in rows.items()}
    return replace(product, sides={**product.sides, **single})
