"""Reading by key on top of ``probe``, alike for every backend."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cython_ext.key_codec import KeyBatch
from lsmstate.store import KeyValues, Matches, Positions, Probe, StreamSchema
from lsmstate.store_checks import one_key, stream_of

_WHOLE = 1 << 62


class StoreReads(ABC):
    """What a backend gets for its ``probe``; see store.MultimapStore."""

    @property
    @abstractmethod
    def streams(self) -> Mapping[str, StreamSchema]:
        """See store.StateStore.streams."""

    @abstractmethod
    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """See store.StateStore.probe."""

    @abstractmethod
    def close(self) -> None:
        """See store.StateStore.close."""

    def exists(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> npt.NDArray[np.bool_]:
        """See store.MultimapStore.exists."""
        found: npt.NDArray[np.bool_] = self.probe(stream, keys, positions).counts > 0
        return found

    def get(self, stream: str, key: KeyValues) -> pa.RecordBatch:
        """See store.MultimapStore.get."""
        return self.get_many(stream, one_key(stream_of(self.streams, stream), key)).rows

    def get_many(self, stream: str, keys: pa.RecordBatch | KeyBatch) -> Matches:
        """See store.MultimapStore.get_many."""
        probe = self.probe(stream, keys)
        found = list(probe.fetch(np.flatnonzero(probe.counts), _WHOLE))
        if len(found) == 1:
            return found[0]
        schema = stream_of(self.streams, stream).rows
        nothing = Matches(
            np.empty(0, dtype=np.int64), pa.RecordBatch.from_pylist([], schema=schema)
        )
        found = [nothing, *found]
        return Matches(
            np.concatenate([piece.positions for piece in found]),
            pa.concat_batches([piece.rows for piece in found]),
        )

    def contains(self, stream: str, key: KeyValues) -> bool:
        """See store.MultimapStore.contains."""
        return bool(self.exists(stream, one_key(stream_of(self.streams, stream), key))[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
