"""KeptRows: the rows of indexes that two ranges are asked of, in memory and in slabs.

Two ranges, each of which holds for half of all rows, have to look at all of them. So rows that were
read from the store as often are kept, within a share of the memory cap. Rows that are stored later
are added. Without room for all rows of an index, none are kept, and they are read again each time.

Chunks of added rows are merged: four of a level become one of the next level. So few slabs lie at
an end of a range.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.expressions.slab_pairs import Slabs
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.conditions.key_parts import KeyPart, own_column
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta import slabs
from lsmstate.joins.local.theta.kept_ranges import KeptRanges
from lsmstate.joins.local.theta.limits import plain
from lsmstate.joins.local.theta.slabs import in_slabs, valid_places
from lsmstate.joins.specs.theta import Step, ThetaIndex, has_lengths
from lsmstate.process.kept_memory import KeptMemory
from lsmstate.schema.arrow_sizes import lies_in
from lsmstate.store import MultimapStore

#: Rows of a chunk.
CHUNK: Final = 1 << 16
#: Chunks of added rows that are merged.
TOGETHER: Final = 4
#: An index is kept when so much of the store's rows was read.
READ_PART: Final = 0.5
#: After a refusal, so many times as much is to be read first.
PATIENCE: Final = 8


@dataclass(frozen=True)
class Chunk:
    """Rows in slab order."""

    rows: pa.RecordBatch
    slabs: Slabs
    nbytes: int


@dataclass
class _Kept:
    """The rows of an index, all of them."""

    memory: KeptMemory
    ordered: list[Chunk]
    """As they were read from the store."""
    added: list[tuple[int, list[Chunk]]] = field(default_factory=list)
    """Later ones, with their levels, which do not ascend."""

    def chunks(self) -> list[Chunk]:
        return [*self.ordered, *(chunk for _, some in self.added for chunk in some)]


@dataclass(frozen=True)
class _By:
    """An index, and the two values of its rows."""

    index: ThetaIndex
    first: KeyPart
    second: KeyPart


class KeptRows:
    """The rows of some indexes in ``store``, of which none is ever taken back."""

    def __init__(self, store: MultimapStore, piece_bytes: int) -> None:
        self._store = store
        self._piece_bytes = piece_bytes
        self._kept: dict[_By, _Kept] = {}
        self._read: dict[_By, float] = {}
        #: The rows that one range is asked of.
        self.ranges = KeptRanges(store, piece_bytes)

    def chunks(self, step: Step) -> Sequence[Chunk] | None:
        """All rows of a step's index; None if they are not kept.

        Cost: all of them are read once it pays.
        """
        by = _by(step)
        if by is None or self._store.streams[by.index.name].expiry is not None:
            return None
        kept = self._kept.get(by)
        if kept is None:
            if self._read.get(by, 0.0) < READ_PART * self._stored_rows():
                return None
            kept = self._load(by)
        if kept is None or kept.memory.is_short:
            self._drop(by)
            return None
        return kept.chunks()

    def note_read(self, step: Step, rows: int) -> None:
        """Count rows that were read from the store for a step."""
        by = _by(step)
        if by is not None:
            self._read[by] = self._read.get(by, 0.0) + rows

    def written(self, stream: str, parts: Iterable[pa.RecordBatch]) -> None:
        """Add rows that were stored."""
        self.ranges.written(stream, parts)
        for by in [each for each in self._kept if each.index.stream == stream]:
            kept, is_whole = self._kept[by], False
            try:
                # The store has the rows in any case.
                with suppress(MemoryError):
                    is_whole = all(self._add(kept, by, part) for part in parts)
            finally:
                if not is_whole:
                    self._drop(by)

    def give_back(self) -> bool:
        """Let everything go; return whether there was anything."""
        was_there = self.ranges.give_back() or bool(self._kept)
        for by in list(self._kept):
            self._drop(by)
        return was_there

    def close(self) -> None:
        """Release the memory of what is kept."""
        self.ranges.close()
        self._kept.clear()

    def _stored_rows(self) -> float:
        """Of all streams together."""
        return self._store.stats().counters.get("rows", np.inf)

    def _drop(self, by: _By) -> None:
        self._kept.pop(by, None)
        self._read[by] = -PATIENCE * READ_PART * self._stored_rows()

    def _load(self, by: _By) -> _Kept | None:
        kept = _Kept(KeptMemory(), [])
        for rows in self._store.scan(by.index.name, self._piece_bytes):
            chunk = _chunk(by, rows)
            if not kept.memory.try_grow(chunk.nbytes):
                return None
            kept.ordered.append(chunk)
        self._kept[by] = kept
        return kept

    def _add(self, kept: _Kept, by: _By, part: pa.RecordBatch) -> bool:
        """Add rows; return False if there is no room."""
        chunks = list(_sorted_chunks(by, part))
        if not kept.memory.try_grow(_bytes_of(chunks)):
            return False
        kept.added.append((0, chunks))
        while len(kept.added) >= TOGETHER:
            last = kept.added[-TOGETHER:]
            level = last[0][0]
            if last[-1][0] != level:
                break
            old = [chunk for _, some in last for chunk in some]
            size = _bytes_of(old)
            if not kept.memory.try_grow(2 * size):
                break
            try:
                rows = pa.concat_batches([chunk.rows for chunk in old])
            except pa.ArrowInvalid:  # too many values for a dictionary
                kept.memory.shrink(2 * size)
                break
            merged = list(_sorted_chunks(by, rows))
            kept.memory.shrink(3 * size - _bytes_of(merged))
            kept.added[-TOGETHER:] = [(level + 1, merged)]
        return True


def _by(step: Step) -> _By | None:
    low, second = step.low, step.second
    if low is None or second is None or step.equal or low.takes_nan:
        return None
    return _By(step.index, low.part, second.part) if has_lengths(low.part.type) else None


def _bytes_of(chunks: Iterable[Chunk]) -> int:
    return sum(chunk.nbytes for chunk in chunks)


def _sorted_chunks(by: _By, rows: pa.RecordBatch) -> Iterator[Chunk]:
    """Rows in any order, in chunks by their first value."""
    values = by.first.values(own_column(rows), rows.num_rows)
    order = np.argsort(plain(values))
    for begin in range(0, len(order), CHUNK):
        yield _chunk(by, rows, order[begin : begin + CHUNK])


def _chunk(by: _By, rows: pa.RecordBatch, places: Numbers | None = None) -> Chunk:
    """Rows, or those at some places, in slabs; without those that a null keeps from matching."""
    first, second = (part.values(own_column(rows), rows.num_rows) for part in (by.first, by.second))
    valid = valid_places(first, second)
    if places is None:
        places = valid
    elif len(valid) < rows.num_rows:
        places = places[np.isin(places, valid)]
    order = in_slabs(plain(second), places)
    gatherer = Gatherer([rows.schema], rows.schema)
    ordered = gatherer.sources([rows]).gather([order])
    values = [part.values(own_column(ordered), ordered.num_rows) for part in (by.first, by.second)]
    bounded, beside = (plain(each) for each in values)
    found = Slabs(bounded, beside, None, slabs.ROWS)
    own = sum(not lies_in(ordered, each) for each in (bounded, beside))
    return Chunk(ordered, found, ordered.nbytes + own * 8 * len(order))
