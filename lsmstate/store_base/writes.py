"""Writes that all backends share."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NoReturn, Protocol

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.options import Options
from lsmstate.schema.arrow_sizes import sizes_of
from lsmstate.schema.python_values import shown
from lsmstate.store import (
    BatchLike,
    KeyBounds,
    KeyNames,
    KeyValues,
    MultimapStore,
    Mutation,
    StreamSchema,
)
from lsmstate.store_base.batch_limits import check_mutation, checked_mutations, part_bytes
from lsmstate.store_base.checks import checked_entries, checked_keys, checked_rows, stream_of
from lsmstate.store_base.reads import StoreReads


class Backend(MultimapStore, Protocol):
    """A store of one of the backends: the contract, and what a wrapping store needs."""

    def calling(self) -> AbstractContextManager[None]:
        """Return the context of a whole call: those of other threads wait until it ends."""
        ...

    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Return a context for one ``write`` per part, in order.

        Entering it raises whatever one of the writes would raise, before the first is made. Cost:
        keys and rows are encoded.
        """
        ...

    def checkpoint(self, name: str) -> Any:
        """Make a named checkpoint. All backends but ``lsm`` refuse this and what follows."""
        ...

    @property
    def checkpoints(self) -> Any:
        """The named checkpoints."""
        ...

    def flush(self) -> None:
        """Write the memtable to a file."""
        ...

    def compact(self) -> None:
        """Merge the runs, and free the space of deleted rows."""
        ...


class StoreWrites(StoreReads):
    """Calls of ``MultimapStore`` that are a ``write`` of one mutation."""

    @abstractmethod
    def write(self, mutations: Sequence[Mutation]) -> int:
        """Make several writes atomically."""

    def put(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Replace all rows of the keys."""
        rows, keys = checked_entries(stream_of(self.streams, stream), rows, keys, key)
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


class AdmittedWrites(StoreWrites):
    """Several atomic writes, of a store that can check them first."""

    #: As ``open_store`` calls the backend.
    _backend: ClassVar[str]
    #: How the store was opened.
    _options: Options

    @abstractmethod
    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Return a context that raises what one of the writes would raise, before the first."""

    def write_all(self, parts: Iterable[Sequence[Mutation]]) -> int:
        """Make several writes, or none; small ones are combined."""
        if not isinstance(parts, Iterable):
            raise InvalidArgumentError(
                f"parts={shown(parts)} is a {type(parts).__name__}; give lists of Mutation"
            )
        if isinstance(parts, Sequence):
            # They are gone through twice, and some batches can be read only once.
            parts = [self._with_batches(part) for part in parts]
        with self.calling():
            begun = self._merged(parts)
            first, second = next(begun, None), next(begun, None)
            if first is None or second is None:
                return self.write(first or [])  # atomic by itself
            with self.admitting(self._checked(parts)):
                return sum(map(self.write, self._merged(parts)))

    def checkpoint(self, name: str) -> Any:
        """Refuse it: only the backend ``lsm`` has named checkpoints."""
        self._refuse(f"checkpoint({name!r})")

    @property
    def checkpoints(self) -> Any:
        """Refused, as ``checkpoint`` is."""
        self._refuse("checkpoints")

    def flush(self) -> None:
        """Refuse it: only the backend ``lsm`` has memtables that can be flushed."""
        self._refuse("flush()")

    def compact(self) -> None:
        """Refuse it: only the backend ``lsm`` has merges that can be asked for."""
        self._refuse("compact()")

    def _refuse(self, call: str) -> NoReturn:
        raise InvalidArgumentError(
            f"{call}: backend={self._backend!r} has no checkpoints, flushes or merges that can be "
            "asked for; choose backend='lsm', or call commit(), which makes all writes durable"
        )

    def _with_batches(self, part: Sequence[Mutation]) -> list[Mutation]:
        if not isinstance(part, Iterable) or isinstance(part, Mutation):
            raise InvalidArgumentError(
                f"a part of parts is {shown(part)}, a {type(part).__name__}; give lists of Mutation"
            )
        return [_with_batch(self.streams, mutation) for mutation in part]

    def _checked(self, parts: Iterable[Sequence[Mutation]]) -> Iterator[list[Mutation]]:
        for part in self._merged(parts):
            yield checked_mutations(self.streams, part, self._options)

    def _merged(self, parts: Iterable[Sequence[Mutation]]) -> Iterator[list[Mutation]]:
        """The same writes, put together as long as their rows take no more than is encoded at a
        time."""
        most = part_bytes(self._options)
        merged: list[Mutation] = []
        total = 0
        for given in parts:
            part = self._with_batches(given)
            rows: list[pa.RecordBatch] = [each.rows for each in part if each.rows is not None]
            size = sum(sizes_of(each.schema).total(each) for each in rows)
            if merged and total + size > most:
                yield merged
                merged, total = [], 0
            merged += part
            total += size
        if merged:
            yield merged


def _with_batch(streams: Mapping[str, StreamSchema], mutation: Mutation) -> Mutation:
    """The mutation with keys and rows as record batches."""
    check_mutation(mutation)
    _, name, keys, rows = mutation
    if not isinstance(keys, pa.RecordBatch | KeyBatch | KeyBounds):
        mutation = mutation._replace(keys=checked_keys(stream_of(streams, name), keys))
    if rows is not None and not isinstance(rows, pa.RecordBatch):
        mutation = mutation._replace(rows=checked_rows(stream_of(streams, name), rows))
    return mutation
