"""Writing, as far as it is alike for every backend."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.store import KeyBounds, KeyValues, MultimapStore, Mutation
from lsmstate.store_base.reads import StoreReads


class Backend(MultimapStore, Protocol):
    """A store of one of the backends: what a store over it needs beside the contract."""

    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Around a ``write`` of each of the parts, one after the other: raises what one of them
        would be refused for before the first is made. Cost: keys and rows are encoded."""
        ...


class StoreWrites(StoreReads):
    """The calls of store.MultimapStore that are a ``write`` of one mutation."""

    @abstractmethod
    def write(self, mutations: Sequence[Mutation]) -> int:
        """See store.MultimapStore.write."""

    def put(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """See store.MultimapStore.put."""
        return self.write([Mutation("put", stream, keys, rows)])

    def delete_range(
        self,
        stream: str,
        *,
        low: KeyValues | None = None,
        high: KeyValues | None = None,
        prefix: KeyValues | None = None,
    ) -> None:
        """See store.MultimapStore.delete_range."""
        self.write([Mutation("delete_range", stream, KeyBounds(low, high, prefix))])
