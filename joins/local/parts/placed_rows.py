"""PlacedRows: rows of a stream in memory, by key and *place*, a whole number.

Rows are kept once they were looked up often, within a share of the memory cap. Rows that are stored
later are added. Without room for all of them none are kept, and the store is asked again.

Each batch that is added is a chunk, and chunks of about one size are merged. So there are few.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.keys.key_places import KeyPlaces
from lsmstate.cython_ext.memory.budget import Holding
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.process.kept_memory import KeptMemory
from lsmstate.process.memory_budget import process_memory
from lsmstate.schema.arrow_sizes import sizes_of
from lsmstate.store import MultimapStore

#: Rows are kept when so many lookups were made for each stored row. A lookup in the store takes
#: some eight times as long as keeping a row.
LOOKUPS: Final = 1 / 8
#: After a refusal, so many times as many lookups are to be made first.
PATIENCE: Final = 8
#: Adjacent chunks are merged unless the older one has so many times the rows.
APART: Final = 2
#: The least number of lookups for that. After as many it is asked again how many rows are stored.
LEAST: Final = 1 << 12


@dataclass(frozen=True)
class Chunk:
    """Rows by key and place."""

    places: KeyPlaces
    rows: pa.RecordBatch
    sizes: Numbers | None
    """Bytes of each row, unless all rows have the same."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        own = 0 if self.sizes is None else self.sizes.nbytes
        return self.places.nbytes + int(self.rows.nbytes) + own


@dataclass(frozen=True)
class Placed:
    """Rows in any order, with their keys and places."""

    rows: pa.RecordBatch
    keys: Sequence[pa.Array]
    places: Numbers


class PlacedRows:
    """Rows with the columns ``schema`` of one stream in ``store``. Their keys are ``key_schema``,
    which may have no columns."""

    def __init__(self, store: MultimapStore, key_schema: pa.Schema, schema: pa.Schema) -> None:
        self._store = store
        self._key_schema = key_schema
        self.codec = KeyCodec(key_schema) if len(key_schema) else None
        self._memory: KeptMemory | None = None
        self._chunks: list[Chunk] = []
        self._lookups = 0.0
        self._asked_at: float = LEAST
        self._row_sizes = sizes_of(schema)
        self._gatherer = Gatherer([schema], schema)

    @property
    def chunks(self) -> Sequence[Chunk]:
        """What is kept, older rows first."""
        return self._chunks

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return 0 if self._memory is None else self._memory.nbytes

    def looked_up(self, count: int, stored: Iterable[Placed]) -> bool:
        """Count lookups; return whether the rows are kept.

        Args:
            count: How many lookups are about to be made.
            stored: Gives all rows, which are read once it pays.
        """
        self._lookups += count
        if self._memory is not None:
            if self._memory.is_short:
                self.forget()
            return self._memory is not None
        if self._lookups < self._asked_at:
            return False
        self._asked_at = self._lookups + LEAST
        return self._lookups >= LOOKUPS * self._stored_rows() and self._load(stored)

    @property
    def is_kept(self) -> bool:
        """Whether the rows are kept."""
        return self._memory is not None

    def written(self, placed: Placed) -> None:
        """Add rows that were stored. All are let go where too few are looked up."""
        if self._memory is None or not placed.rows.num_rows:
            return
        count = placed.rows.num_rows + sum(len(chunk.places) for chunk in self._chunks)
        if self._lookups < LOOKUPS * count:
            self.forget()
            return
        self._add_all([placed])

    def _add_all(self, some: Iterable[Placed]) -> bool:
        """Add rows; return False if there is no room, where none are kept any more. An error leaves
        none either: others would be missed."""
        is_whole = False
        try:
            with suppress(MemoryError):  # the store has the rows in any case
                is_whole = all(map(self._add, some))
        finally:
            if not is_whole:
                self.forget()
        return is_whole

    def _add(self, placed: Placed) -> bool:
        assert self._memory is not None
        chunk = self._chunk(placed)
        if not self._memory.try_grow(chunk.nbytes):
            return False
        self._chunks.append(chunk)
        self._merge(APART)
        return True

    def close(self) -> None:
        """Release the memory of what is kept."""
        self._memory, self._chunks = None, []

    def forget(self) -> None:
        """Let everything go, until many more lookups were made."""
        if self._memory is not None:
            self.close()
            self._lookups = -PATIENCE * LOOKUPS * self._stored_rows()
            self._asked_at = self._lookups + LEAST

    def give_back(self) -> bool:
        """Let everything go; return whether there was anything."""
        was_there = self._memory is not None
        self.forget()
        return was_there

    def sizes(self, chunk: Chunk, picks: Numbers) -> Numbers:
        """Bytes of some rows of a chunk."""
        if chunk.sizes is not None:
            return chunk.sizes[picks]
        assert self._row_sizes.width is not None
        return np.full(len(picks), self._row_sizes.width, np.int64)

    def _stored_rows(self) -> float:
        """Of all streams together."""
        return self._store.stats().counters.get("rows", np.inf)

    def _load(self, stored: Iterable[Placed]) -> bool:
        """Keep all rows; return False if there is no room."""
        self._memory = KeptMemory()
        if not self._add_all(stored):
            return False
        self._merge(None)
        return True

    def _chunk(self, placed: Placed) -> Chunk:
        """The rows in order. Those with a null among their keys are left out."""
        rows, places = placed.rows, placed.places
        if self.codec is None:
            order = np.argsort(places, kind="stable")
            found = KeyPlaces(None, np.array([0, len(order)]), places[order])
        else:
            keys = pa.RecordBatch.from_arrays(list(placed.keys), schema=self._key_schema)
            encoded = self.codec.encode(keys)
            distinct, starts = encoded.distinct()
            order = encoded.order.astype(np.int64)
            ordered = places[order]
            descends = ordered[1:] < ordered[:-1]
            descends[starts[1:-1] - 1] = False
            if descends.any():
                groups = np.repeat(np.arange(len(distinct)), np.diff(starts))
                order = order[np.lexsort((ordered, groups))]
            found = KeyPlaces(distinct, starts, places[order])
        return self._sized(found, self._gatherer.sources([rows]).gather([order]))

    def _sized(self, places: KeyPlaces, rows: pa.RecordBatch) -> Chunk:
        has_width = self._row_sizes.width is not None
        return Chunk(places, rows, None if has_width else self._row_sizes(rows))

    def _merge(self, apart: int | None) -> None:
        """Merge the last chunks while the older one has less than ``apart`` times the rows of the
        newer; None: all of them. Without room for that they stay as they are."""
        while len(self._chunks) > 1:
            older, newer = self._chunks[-2:]
            if apart is not None and len(older.places) >= apart * len(newer.places):
                return
            merged = self._merged(older, newer)
            if merged is None:
                return
            self._chunks[-2:] = [merged]

    def _merged(self, older: Chunk, newer: Chunk) -> Chunk | None:
        assert self._memory is not None
        before = older.nbytes + newer.nbytes
        # For a moment there are the rows of both, what they become, and where each goes.
        follows = older.places.precedes(newer.places)
        with Holding(process_memory().budget, "probe") as room:
            if not room.try_grow(before if follows else 2 * before):
                return None
            try:
                rows = pa.concat_batches([older.rows, newer.rows])
            except pa.ArrowInvalid:  # too many values for a dictionary
                return None
            places, order = older.places.merged(newer.places)
            if order is not None:
                rows = self._gatherer.sources([rows]).gather([order])
            merged = self._sized(places, rows)
        if merged.nbytes > before and not self._memory.try_grow(merged.nbytes - before):
            return None
        if merged.nbytes < before:
            self._memory.shrink(before - merged.nbytes)
        return merged
