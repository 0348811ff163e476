"""Rows of a stream in one micro-batch that stand for all: those with the smallest content hashes.

Unlike a sketch of counts it does not depend on the order of the rows, so all attempts of a bucket
have the same. Equal rows count as one of more weight: they lie in one bucket in any case, so it
does no harm that they are in the sample together, or together not.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.joins.routing.skew.heavy_hitters import Hashes, HeavyHitters
from lsmstate.schema.arrow_sizes import row_sizes

#: Rows of a stream in a sample.
SAMPLED: Final = 1024
#: Bytes of their keys. A row beyond that is in none, and none that comes after it by its hash.
SAMPLED_BYTES: Final = 1 << 20
#: Rows with a longer key are in none.
LONGEST_KEY_BYTES: Final = 64 << 10


class KeySample:
    """The sample of one stream in one micro-batch. Memory: 1 MiB of keys, and 24 bytes a row."""

    def __init__(self, keys: pa.Schema, sampled: int = SAMPLED) -> None:
        self._sampled = sampled
        self._keys = pa.RecordBatch.from_pylist([], schema=keys)
        self._contents: Hashes = np.empty(0, np.uint64)
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)
        self._rows = 0
        self._beyond: int | None = None
        """The least content hash of those whose keys had no room."""

    def add(self, contents: Hashes, hashes: Hashes, keys: pa.RecordBatch) -> None:
        """Note rows by the hashes of their contents, with their keys and the hashes of these.
        Cost: a sort of the hashes."""
        self._rows += len(contents)
        can_be = row_sizes(keys) <= LONGEST_KEY_BYTES
        if self._beyond is not None:
            can_be &= contents < np.uint64(self._beyond)
        is_short = np.flatnonzero(can_be)
        own, first, counts = np.unique(contents[is_short], return_index=True, return_counts=True)
        # Rows that are beyond what is kept now are so for ever.
        most = self._sampled
        own, first, counts = own[:most], is_short[first[:most]], counts[:most]
        every = np.concatenate([self._contents, own])
        kept, at, places = np.unique(every, return_index=True, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        summed = np.bincount(places, weights, minlength=len(kept)).astype(np.int64)
        at = at[:most]
        both = pa.concat_batches([self._keys, keys.take(pa.array(first))]).take(pa.array(at))
        most = int(np.searchsorted(np.cumsum(row_sizes(both)), SAMPLED_BYTES, side="right"))
        if most < len(at):
            self._beyond = int(kept[most])
            # A copy: a slice would hold the bytes of what was cut.
            both = both.take(pa.array(np.arange(most)))
        self._keys = both
        self._hashes = np.concatenate([self._hashes, hashes[first]])[at[:most]]
        self._contents, self._counts = kept[:most], summed[:most]

    def add_to(self, sketch: HeavyHitters, text: Callable[[int], str]) -> None:
        """Count the rows of the micro-batch in a sketch: exactly if all of them are in the sample.
        ``text(i)``: what the key of the i-th row of ``keys`` is called."""
        known = int(self._counts.sum())
        weights = self._counts.astype(np.float64) * np.float64(self._rows / max(1, known))
        sketch.add(self._hashes, text, weights, rows=self._rows)

    @property
    def keys(self) -> pa.RecordBatch:
        """The keys of the rows in the sample."""
        return self._keys

    def of(self, wanted: Hashes) -> Iterator[tuple[int, int]]:
        """Of some keys by their hashes that are in the sample: the hash, and a row that has it."""
        distinct, first = np.unique(self._hashes, return_index=True)
        is_wanted = np.isin(distinct, wanted)
        yield from zip(distinct[is_wanted].tolist(), first[is_wanted].tolist(), strict=True)
