"""The cross products of one group of keys, in pieces bounded in bytes.

A result is, per key, every combination of one row of each stream. Combinations are numbered: key
by key, the last stream running fastest. A piece is a range of numbers; nothing larger than a piece
and its index arrays is ever held.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lsmstate.errors import MemoryLimitError
from lsmstate.joins.local.parts.row_picks import Numbers, Picked

#: Combinations whose indices are worked out at once, at most: 8 bytes per stream each.
_BLOCK_ROWS = 1 << 15


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one stream, grouped: key g owns the places ``starts[g]`` to ``starts[g + 1]``.

    Place p holds row ``order[p]`` of the batch, or row p where there is no ``order``;
    ``sizes`` are the bytes of each place's row.
    """

    rows: pa.RecordBatch
    starts: Numbers
    sizes: Numbers
    order: Numbers | None = None


def cross_product(sides: Sequence[Side], piece_bytes: int) -> Iterator[Picked]:
    """All combinations of all keys, in pieces of at most ``piece_bytes`` of Arrow data, once they
    are made, or one row. No piece has more than 32,768 rows.

    Cost: proportional to the result. Memory: 32,768 index entries per stream.
    """
    counts = [np.diff(side.starts) for side in sides]
    ends = np.cumsum(combinations(counts))
    total = int(ends[-1]) if len(ends) else 0
    batches = [side.rows for side in sides]
    first = 0
    block_rows = _BLOCK_ROWS
    while first < total:
        last = min(total, first + block_rows)
        places = _places(sides, counts, ends, np.arange(first, last, dtype=np.int64))
        widths = [side.sizes[place] for side, place in zip(sides, places, strict=True)]
        sizes = np.add.reduce(widths)
        filled = np.cumsum(sizes)
        start = 0
        while start < last - first:
            before = filled[start - 1] if start else 0
            stop = int(np.searchsorted(filled, before + piece_bytes, side="right"))
            stop = max(stop, start + 1)
            if stop >= last - first and last < total and start > 0:
                break  # not full: the next block begins with these
            at = [_rows(side, place[start:stop]) for side, place in zip(sides, places, strict=True)]
            yield Picked(batches, at, sizes[start:stop])
            start = stop
        first += start
        # Wide rows: work out no more indices than a few pieces need.
        block_rows = int(min(_BLOCK_ROWS, max(64, 4 * start * piece_bytes // filled[start - 1])))


def combinations(counts: Sequence[Numbers]) -> Numbers:
    """Combinations per key; MemoryLimitError if they cannot even be numbered."""
    products = np.ones(len(counts[0]), dtype=np.int64)
    floats = np.ones(len(counts[0]))
    for count in counts:
        products = products * count
        floats = floats * count
    estimate = float(floats.sum())
    if estimate >= 2.0**62:
        raise MemoryLimitError(
            f"a single key matches in about {estimate:.1e} combinations, more than can be "
            "numbered; filter or pre-aggregate the inputs"
        )
    return products


def _places(
    sides: Sequence[Side], counts: Sequence[Numbers], ends: Numbers, numbers: Numbers
) -> list[Numbers]:
    """Per side, the place of its row in each of the numbered combinations."""
    key = np.searchsorted(ends, numbers, side="right")
    within = numbers - np.where(key > 0, ends[key - 1], 0)
    places: list[Numbers] = []
    for side, count in zip(reversed(sides), reversed(counts), strict=True):
        within, digit = np.divmod(within, count[key])
        places.append(side.starts[key] + digit)
    places.reverse()
    return places


def _rows(side: Side, places: Numbers) -> Numbers:
    return places if side.order is None else side.order[places]
