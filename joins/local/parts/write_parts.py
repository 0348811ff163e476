"""The writes of a large batch, for a store that goes through them twice."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from lsmstate.errors import MemoryLimitError
from lsmstate.joins.local.parts.bound_rows import parts_of
from lsmstate.store import MultimapStore, Mutation

#: Gives further writes, anew at each call.
Beside = Callable[[], Iterable[Sequence[Mutation]]]


def no_more() -> Iterable[Sequence[Mutation]]:
    """No further writes."""
    return ()


class WriteParts:
    """Writes that are made anew each time they are gone through, so that no more than one of them
    is in memory; see ``MultimapStore.write_all``."""

    def __init__(self, make: Callable[[], Iterable[Sequence[Mutation]]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Sequence[Mutation]]:
        return iter(self._make())


class Keeps(Protocol):
    """Who keeps rows in memory that can be read again."""

    def give_back(self) -> bool:
        """Let go of rows in memory; return whether there were any."""
        ...


def write_all(store: MultimapStore, writes: WriteParts, *keeping: Keeps) -> None:
    """Write, and if there is no memory let go of what is kept there, and write again."""
    try:
        store.write_all(writes)
    except MemoryLimitError:
        had_room = [each.give_back() for each in keeping]
        if not any(had_room):
            raise
        store.write_all(writes)


def appends(
    stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, part_bytes: int
) -> Iterator[list[Mutation]]:
    """What stores rows under keys, in parts of at most ``part_bytes`` or one row."""
    first = 0
    for part in parts_of(rows, part_bytes):
        yield [Mutation("append", stream, keys.slice(first, part.num_rows), part)]
        first += part.num_rows
