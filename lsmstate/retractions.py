"""Rows that were retracted, and what they take away on reading.

A retracted row is kept as a row of its own, under the same key, in a hidden stream beside the real
one. Under a key, the k-th retraction of a row takes the k-th of the rows equal to it, whichever of
the two came first; so what lives does not depend on the order of rows and retractions, and a
retraction without a row stays pending until the row comes.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cython_ext.budget import Budget
from cython_ext.lookup import Lookup
from cython_ext.probe import Cursor
from cython_ext.row_codec import RowCodec
from lsmstate.errors import MemoryLimitError
from lsmstate.store import Matches, Positions
from lsmstate.store_checks import Access, checked_positions, read_stepwise

_PIECE_BYTES = 1 << 20
#: What a row takes as a Python object that is counted in a dict, beside its own bytes.
_HEAD_BYTES = 160


class Charge:
    """Bytes of the budget, given back when nobody holds this any more."""

    def __init__(self, budget: Budget) -> None:
        self.nbytes = 0
        self._budget = budget

    def grow(self, size: int) -> bool:
        """Whether so many bytes more fit."""
        fits = self._budget.try_hold("probe", size)
        self.nbytes += size if fits else 0
        return fits

    def __del__(self) -> None:
        self._budget.hold("probe", -self.nbytes)


class Retractions:
    """How often each encoded row of some keys is still to be taken. ``charges`` are for them."""

    def __init__(
        self, left: Mapping[Any, Mapping[bytes, int]], charges: Sequence[Charge] = ()
    ) -> None:
        self._left = {key: dict(rows) for key, rows in left.items()}
        self._charges = tuple(charges)

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def keys(self) -> list[Hashable]:
        return list(self._left)

    def copy(self) -> "Retractions":
        return Retractions(self._left, self._charges)

    def carried(self, key: Hashable, more: "Retractions", names: Sequence[Any]) -> "Retractions":
        """What is left of one key, and the retractions of further keys, by their names."""
        further = {names[place]: rows for place, rows in more._left.items()}
        if key not in self._left:
            return Retractions(further, more._charges)
        charges = self._charges + (more._charges if further else ())
        return Retractions({key: self._left[key], **further}, charges)

    def live(
        self, keys: Sequence[Hashable], rows: pa.RecordBatch, codec: RowCodec
    ) -> npt.NDArray[np.bool_]:
        """Which rows are not taken. Those of a key come in arrival order, call after call."""
        live = np.ones(len(keys), dtype=np.bool_)
        concerned = [place for place, key in enumerate(keys) if key in self._left]
        if concerned:
            encoded = codec.encode(rows.take(pa.array(concerned))).to_pylist()
            for place, row in zip(concerned, encoded, strict=True):
                left = self._left[keys[place]]
                if left.get(row, 0) > 0:
                    left[row] -= 1
                    live[place] = False
        return live


def retracted_rows(lookup: Lookup, codec: RowCodec, budget: Budget) -> Retractions:
    """What the hidden stream holds of the keys of a lookup, by position. Memory: all of it, charged
    to the budget; MemoryLimitError if it does not fit."""
    counts, _ = lookup.count()
    found: dict[int, Counter[bytes]] = {}
    charge = Charge(budget)
    for positions, rows in _pieces(lookup, np.flatnonzero(counts), _PIECE_BYTES):
        encoded = codec.encode(rows).to_pylist()
        if not charge.grow(sum(map(len, encoded)) + _HEAD_BYTES * len(encoded)):
            raise MemoryLimitError(
                f"the retractions of {len(counts)} keys that are read take more than "
                f"{charge.nbytes} bytes, and the memory cap leaves no more; read fewer keys at a "
                "time, compact() the store so that rows and their retractions go, or raise "
                "memory_bytes"
            )
        for position, row in zip(positions.tolist(), encoded, strict=True):
            found.setdefault(position, Counter())[row] += 1
    return Retractions(found, [charge])


class RetractedProbe:
    """A probe of keys of which some have retractions: their rows are read to be counted."""

    def __init__(
        self, lookup: Lookup, retractions: Retractions, codec: RowCodec, access: Access
    ) -> None:
        self._lookup = lookup
        self._retractions = retractions
        self._codec = codec
        self._access = access
        self.counts: npt.NDArray[np.int64]
        self.row_bytes: npt.NDArray[np.int64]
        self.counts, self.row_bytes = lookup.count()
        self._count_live()

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """See store.Probe.fetch."""
        asked = checked_positions(self.counts, positions)
        return read_stepwise(self._access, self._live(asked, max_bytes))

    def _count_live(self) -> None:
        keys = np.array(self._retractions.keys, dtype=np.int64)
        keys = np.sort(keys[self.counts[keys] > 0])
        left = self._retractions.copy()
        for positions, rows in _pieces(self._lookup, keys, _PIECE_BYTES):
            taken = ~left.live(positions.tolist(), rows, self._codec)
            sizes = [len(row) for row in self._codec.encode(rows).to_pylist()]
            np.subtract.at(self.counts, positions[taken], 1)
            np.subtract.at(self.row_bytes, positions[taken], np.array(sizes)[taken])

    def _live(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        left = self._retractions.copy()
        for found, rows in _pieces(self._lookup, positions, max_bytes):
            live = left.live(found.tolist(), rows, self._codec)
            if live.any():
                yield Matches(found[live], rows.filter(pa.array(live)))


def _pieces(
    lookup: Lookup, positions: Positions, max_bytes: int
) -> Iterator[tuple[Positions, pa.RecordBatch]]:
    return iter(partial(Cursor(lookup, positions).next_piece, max_bytes), None)
