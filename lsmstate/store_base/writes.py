"""Writes that all backends share."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.store import KeyBounds, KeyValues, MultimapStore, Mutation
from lsmstate.store_base.reads import StoreReads


class Backend(MultimapStore, Protocol):
    """A store of one of the backends: the contract, and what a wrapping store needs."""

    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Return a context for one ``write`` per part, in order.

        Entering it raises whatever one of the writes would raise, before the first is made. Cost:
        keys and rows are encoded.
        """
        ...


class StoreWrites(StoreReads):
    """Calls of ``MultimapStore`` that are a ``write`` of one mutation."""

    @abstractmethod
    def write(self, mutations: Sequence[Mutation]) -> int:
        """Make several writes atomically."""

    def put(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """Replace all rows of the keys."""
        return self.write([Mutation("put", stream, keys, rows)])

    def delete_range(
        self,
        stream: str,
        *,
        low: KeyValues | None = None,
        high: KeyValues | None = None,
        prefix: KeyValues | None = None,
    ) -> None:
        """Remove all rows under the keys of a range."""
        self.write([Mutation("delete_range", stream, KeyBounds(low, high, prefix))])
