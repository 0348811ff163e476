"""Candidates by products of 8-bit numbers, with bounds that lose no pair.

A query is q = s u + e: a scale times whole numbers u, and an error e. A row is x = r v + f. Then

    |q x - s r (u v)| <= |e| (|x| + |f|) + |q| |f|

The lengths of the errors are known, not estimated. A pair is close only if q x is at least some
bound, so only if u v is at least what is left of it. That is a sum of four products of a number of
the query and one of the row, which are computed in float32: ``_LOSS`` is more than that loses.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.distances import byte_tiles

Places = npt.NDArray[np.int32]
Distances = npt.NDArray[np.float64]
Terms = npt.NDArray[np.float32]

#: Components from which on bytes are the better way, and queries for which rows are made bytes.
LEAST_WIDTH: Final = 64
LEAST_QUERIES: Final = 64
#: What the four products lose at most, in parts of what they are made of.
_LOSS: Final = 4e-6
#: Lengths that the terms hold.
_SHORTEST: Final = 1e-15
_MOST_ROWS: Final = 512
_STEP_PAIRS: Final = 1 << 18


class ByteRows(NamedTuple):
    """Stored rows as whole numbers."""

    numbers: npt.NDArray[np.int8]
    terms: Terms


def byte_rows(rows: npt.NDArray[Any], least: float | None) -> ByteRows | None:
    """Rows as whole numbers; None: they are too short for the terms. ``least``: the least cosine of
    a pair; None: pairs are close by their difference."""
    numbers, scales, lengths, lost = byte_tiles.quantized(rows, byte_tiles.ROW_MOST)
    if _is_too_short(lengths):
        return None
    scales[scales == 0] = 1.0
    lost = lost * (1 + _LOSS) + _LOSS * lengths
    if least is not None:
        columns = [(least * lengths - lost) / scales, (lengths + lost) / scales]
        columns += [np.zeros(len(rows))] * 2
    else:
        columns = [1 / scales, lengths * lengths * (0.5 - _LOSS) / scales]
        columns += [(lengths + lost) / scales, lost / scales]
    return ByteRows(numbers, np.ascontiguousarray(np.stack(columns, 1), np.float32))


def _is_too_short(lengths: Distances) -> bool:
    return bool(((lengths > 0) & (lengths < _SHORTEST)).any())


class ByteVectorPanels:
    """Queries in tiles of bytes."""

    def __init__(self, panels: byte_tiles.BytePanels, rows: int) -> None:
        self._panels = panels
        self._rows = rows

    @classmethod
    def of(cls, queries: npt.NDArray[Any], threshold: float | None) -> "ByteVectorPanels | None":
        """Pack queries; None: they are too short. ``threshold``: the largest difference; None:
        queries are of length 1, and pairs are close by their cosine."""
        numbers, scales, lengths, lost = byte_tiles.quantized(queries, byte_tiles.QUERY_MOST)
        if _is_too_short(lengths):
            return None
        scales[scales == 0] = 1.0
        lost = lost * (1 + _LOSS) + _LOSS * lengths
        if threshold is None:
            columns = [1 / scales, -lost / scales] + [np.zeros(len(queries))] * 2
        else:
            with np.errstate(over="ignore"):
                squares, most = lengths * lengths, np.float64(threshold) ** 2
                bounds = (squares - most) / 2 - _LOSS * (squares + most)
            columns = [bounds / scales, 1 / scales, -lost / scales, -lengths * (1 + _LOSS) / scales]
        rows = min(_MOST_ROWS, max(1, _STEP_PAIRS // max(1, len(queries))))
        with np.errstate(over="ignore"):
            terms = np.ascontiguousarray(np.stack(columns, 1), np.float32)
        return cls(byte_tiles.BytePanels(numbers, terms, rows), rows)

    def candidates(
        self, stored: ByteRows, part: slice, first: int, last: int, level: int = -1
    ) -> Iterator[tuple[Places, Places]]:
        """Pairs that may be close."""
        for begin in range(part.start, part.stop, self._rows):
            some = slice(begin, min(part.stop, begin + self._rows))
            queries, places = self._panels.candidates(
                stored.numbers[some], stored.terms[some], first, last, level
            )
            if len(queries):
                yield queries.copy(), places + np.int32(begin)
