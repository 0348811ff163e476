"""Histogram of how many rows probed keys find, by powers of two."""

from typing import Final

import numpy as np
import numpy.typing as npt

#: Keys that found no row, 1, 2 to 3, 4 to 7, ... and, last, 2 ** (PLACES - 2) or more.
PLACES: Final = 17


class FanOut:
    """Counts keys by the rows they find. Cost: a few vector operations per batch of keys."""

    def __init__(self) -> None:
        self.matches = 0
        self._keys = np.zeros(PLACES, dtype=np.int64)

    def add(self, counts: npt.NDArray[np.int64]) -> None:
        """Add probed keys, with the number of rows that each found."""
        _, exponents = np.frexp(counts.astype(np.float64))
        places = np.minimum(exponents, PLACES - 1)
        self._keys += np.bincount(places, minlength=PLACES)
        self.matches += int(counts.sum())

    def keys(self) -> list[int]:
        """How many keys are at each place."""
        return [int(count) for count in self._keys]


def least_rows(place: int) -> int:
    """The fewest rows that a key at this place has found."""
    return 1 << (place - 1) if place else 0
