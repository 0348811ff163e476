"""Probes made of other probes: of several streams as one, and of rows that are
filtered when read."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.schema.arrow_sizes import pieces_of
from lsmstate.store import Matches, Positions, Probe
from lsmstate.store_base.checks import check_piece_bytes, checked_positions

#: Bytes of rows read at a time while visible rows are counted.
_COUNTING_BYTES = 1 << 20


class FilteredProbe:
    """A probe without the rows for which ``visible`` is False; a ``store.Probe``.

    Counting reads the rows. ``row_bytes`` are those of all rows of a key, if any is visible.
    """

    def __init__(
        self, probe: Probe, visible: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]
    ) -> None:
        self._probe = probe
        self._visible = visible
        self.counts = np.zeros(len(probe.counts), dtype=np.int64)
        for found in self._pieces(np.flatnonzero(probe.counts), _COUNTING_BYTES):
            self.counts += np.bincount(found.positions, minlength=len(self.counts))
        self.row_bytes = np.where(self.counts > 0, probe.row_bytes, 0)

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the visible rows of some of the keys, in pieces. Cost: as if no row were hidden."""
        check_piece_bytes(max_bytes)
        asked = checked_positions(self.counts, positions)
        return self._pieces(asked[self.counts[asked] > 0], max_bytes)

    def _pieces(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        for found in self._probe.fetch(positions, max_bytes):
            visible = self._visible(found.rows)
            if visible.all():
                yield found
            elif visible.any():
                yield Matches(found.positions[visible], found.rows.filter(pa.array(visible)))


class CombinedProbe:
    """The same keys looked up in several streams: the rows of a key come stream after stream."""

    def __init__(self, n: int, parts: Sequence[Probe]) -> None:
        self._parts = [part for part in parts if part.counts.any()]
        self.counts = np.zeros(n, dtype=np.int64)
        self.row_bytes = np.zeros(n, dtype=np.int64)
        for part in self._parts:
            self.counts += part.counts
            self.row_bytes += part.row_bytes

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the rows of some of the keys, in pieces."""
        check_piece_bytes(max_bytes)
        asked = checked_positions(self.counts, positions)
        return self._pieces(asked, max_bytes)

    def _pieces(self, asked: Positions, max_bytes: int) -> Iterator[Matches]:
        asked = asked[self.counts[asked] > 0]
        if len(self._parts) == 1:
            yield from self._parts[0].fetch(asked, max_bytes)
            return
        for place in pieces_of(self.row_bytes[asked] + 8 * self.counts[asked], max_bytes):
            positions = asked[place]
            found = self._found(positions, max_bytes)
            if len(positions) == 1:
                yield from found  # may be several pieces, already in order
            elif pieces := list(found):
                yield _in_order(pieces)

    def _found(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        for part in self._parts:
            yield from part.fetch(positions[part.counts[positions] > 0], max_bytes)


def _in_order(found: Sequence[Matches]) -> Matches:
    """Join pieces by position; rows of one position keep the order of the pieces."""
    if len(found) == 1:
        return found[0]
    positions = np.concatenate([piece.positions for piece in found])
    rows = pa.concat_batches([piece.rows for piece in found])
    order = np.argsort(positions, kind="stable")
    return Matches(positions[order], rows.take(pa.array(order)))
