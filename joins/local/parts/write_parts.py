"""The writes of a large batch, for a store that goes through them twice."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from lsmstate.joins.local.parts.bound_rows import parts_of
from lsmstate.store import Mutation

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


def appends(
    stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, part_bytes: int
) -> Iterator[list[Mutation]]:
    """What stores rows under keys, in parts of at most ``part_bytes`` or one row."""
    first = 0
    for part in parts_of(rows, part_bytes):
        yield [Mutation("append", stream, keys.slice(first, part.num_rows), part)]
        first += part.num_rows
