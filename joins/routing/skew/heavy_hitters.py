"""Heavy hitters of a stream, found while it runs: the keys that have more than a share of its rows.

At most ``capacity`` keys are counted at a time. A batch's counts are added to those at hand; what
then is beyond the capacity is made up for by subtracting the largest count that has no place from
all. Each subtraction takes that much from ``capacity + 1`` keys at least, so what any key lost in
all is at most ``total / (capacity + 1)``: a key with a larger share of the rows is among those
counted, always.

This is the mergeable form of the space-saving sketch, whose counts are ours plus ``error``.
Sources: Metwally, Agrawal, El Abbadi, *Efficient computation of frequent and top-k elements in data
streams* (ICDT 2005); Agarwal et al., *Mergeable summaries* (PODS 2012), for the equivalence.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError

#: Finds every key that has more than 1.6 % of the rows.
CAPACITY = 64
#: Of a key's text as much is kept.
_TEXT_CHARACTERS = 60

#: A sketch as a row.
SKETCH = pa.schema(
    [
        ("total", pa.float64()),
        ("error", pa.float64()),
        ("hashes", pa.list_(pa.int64())),
        ("rows", pa.list_(pa.float64())),
        ("keys", pa.list_(pa.string())),
    ]
)

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that was counted: it had at least ``rows`` rows, and at most the sketch's ``error``
    more. Two keys of one hash, which nobody will meet, count as one."""

    hash: int
    key: str
    """For people; cut where it is long."""
    rows: float


class HeavyHitters:
    """The sketch of one stream. Deterministic: batches in one order give one sketch.

    Memory: 16 bytes and a short text for each of ``capacity`` keys, and while a batch is added
    some 50 bytes per distinct key of it.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise InvalidArgumentError(f"capacity={capacity!r}: must be at least 1")
        self.capacity = capacity
        self.total = 0.0
        """Rows that were added, less what has faded."""
        self.error = 0.0
        """The most rows a key had that are not in its count."""
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._rows: npt.NDArray[np.float64] = np.empty(0, np.float64)
        self._keys: dict[int, str] = {}

    def add(
        self,
        hashes: Hashes,
        describe: Callable[[int], str],
        weights: npt.NDArray[np.float64] | None = None,
        rows: float | None = None,
    ) -> None:
        """Count a row for each hash.

        Args:
            hashes: Of each row its key.
            describe: Asked for the text of the i-th row's key, if that was not counted before.
            weights: How many rows each one stands for; None: itself.
            rows: How many there are in all, if some have no hash.

        Cost:
            A sort of the hashes.
        """
        distinct, first, places = np.unique(hashes, return_index=True, return_inverse=True)
        counts = np.bincount(places, weights, minlength=len(distinct))
        self._count(distinct, counts.astype(np.float64))
        self.total += len(hashes) if rows is None else rows
        kept: dict[int, str] = {}
        for key in self._hashes.tolist():
            text = self._keys.get(key)
            if text is None:
                text = describe(int(first[np.searchsorted(distinct, np.uint64(key))]))
            kept[key] = text[:_TEXT_CHARACTERS]
        self._keys = kept

    def merge(self, other: "HeavyHitters") -> None:
        """Add the rows of another sketch, as if they had been added here. Errors add up, and stay
        under the same share of the total."""
        texts = self._keys | other._keys
        self._count(other._hashes, other._rows)
        self.error += other.error
        self.total += other.total
        self._keys = {key: texts[key] for key in self._hashes.tolist()}

    def fade(self, factor: float) -> None:
        """Let all rows so far count less, so that keys that were hot are forgotten."""
        self.total *= factor
        self.error *= factor
        self._rows = self._rows * factor

    def hottest(self, count: int | None = None) -> list[HotKey]:
        """Keys by their rows, the most first; equal ones by hash."""
        order = np.lexsort((self._hashes, -self._rows))[:count]
        found = zip(self._hashes[order].tolist(), self._rows[order].tolist(), strict=True)
        return [HotKey(key, self._keys[key], rows) for key, rows in found]

    @property
    def hashes(self) -> Hashes:
        """Of the keys that are counted."""
        return self._hashes

    @property
    def nbytes(self) -> int:
        """What the sketch holds, without Python's own share of it."""
        texts = sum(len(text.encode(errors="replace")) for text in self._keys.values())
        return self._hashes.nbytes + self._rows.nbytes + texts

    def to_row(self) -> dict[str, Any]:
        """The columns of ``SKETCH``."""
        return {
            "total": self.total,
            "error": self.error,
            "hashes": self._hashes.view(np.int64).tolist(),
            "rows": self._rows.tolist(),
            "keys": [self._keys[key] for key in self._hashes.tolist()],
        }

    @classmethod
    def from_row(cls, row: dict[str, Any], capacity: int = CAPACITY) -> Self:
        """What ``to_row`` gave."""
        sketch = cls(capacity)
        sketch.total, sketch.error = row["total"], row["error"]
        sketch._hashes = np.array(row["hashes"], np.int64).view(np.uint64)
        sketch._rows = np.array(row["rows"], np.float64)
        sketch._keys = dict(zip(sketch._hashes.tolist(), row["keys"], strict=True))
        return sketch

    def _count(self, hashes: Hashes, rows: npt.NDArray[np.float64]) -> None:
        """Add counts by key, and cut what is beyond the capacity."""
        both = np.concatenate([self._hashes, hashes])
        self._hashes, places = np.unique(both, return_inverse=True)
        weights = np.concatenate([self._rows, rows])
        self._rows = np.bincount(places, weights, minlength=len(self._hashes)).astype(np.float64)
        if len(self._hashes) > self.capacity:
            beyond = len(self._hashes) - self.capacity - 1
            cut = float(np.partition(self._rows, beyond)[beyond])
            keep = self._rows > cut
            self._hashes, self._rows = self._hashes[keep], self._rows[keep] - cut
            self.error += cut


def merged(sketches: Iterable[HeavyHitters], capacity: int = CAPACITY) -> HeavyHitters:
    """One sketch of all their rows."""
    found = HeavyHitters(capacity)
    for sketch in sketches:
        found.merge(sketch)
    return found
