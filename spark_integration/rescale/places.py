"""Where the rows of a state lie before and after a rescale: by the hash of their key, or on a grid.

Rows of a grid (a join by several keys) have copies. One copy counts as the row itself: that in the
cell whose coordinates are 0 along the keys that the row lacks. It goes to the new cells.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.hash import bucket_of, overlapping
from lsmstate.joins.routing.shares import Shares
from lsmstate.store import Entries, StreamSchema

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a new bucket takes of some entries of an old one."""

    positions: Numbers
    owned: int
    """How many of the entries are rows themselves, not copies of rows in other buckets."""


class Places(Protocol):
    """The place of a row before and after. Pure: both follow from the row and its key."""

    def sources(self, number: int) -> Sequence[int]:
        """The numbers of the old buckets that may hold rows of a new one."""
        ...

    def copies(self, stream: str) -> int:
        """In how many new buckets each row of a stream of the store lies."""
        ...

    def taken(self, stream: StreamSchema, found: Entries, old: int, number: int) -> Taken:
        """InvalidArgumentError if a row is in another old bucket than it should be."""
        ...


@dataclass(frozen=True)
class HashPlaces:
    """Each row in the bucket of its key's hash."""

    before: int
    after: int

    def sources(self, number: int) -> Sequence[int]:
        return overlapping(number, self.after, self.before)

    def copies(self, stream: str) -> int:
        return 1

    def taken(self, stream: StreamSchema, found: Entries, old: int, number: int) -> Taken:
        keys = KeyCodec(stream.key).encode(found.keys)
        strange = np.flatnonzero(bucket_of(keys, self.before) != old)
        if len(strange):
            key = found.keys.slice(int(strange[0]), 1).to_pylist()[0]
            raise InvalidArgumentError(
                f"stream {stream.name!r} has a row under {str(key)[:200]} in another bucket than "
                "that of the key: the function stores rows under keys of its own, and only the "
                "function knows their buckets; start the query anew with another number of buckets"
            )
        return Taken((bucket_of(keys, self.after) == number).nonzero()[0], len(found.keys))


@dataclass(frozen=True)
class GridPlaces:
    """Rows of a join by several keys, in the indexes of their streams."""

    before: Shares
    after: Shares
    columns: tuple[Mapping[str, str], ...]
    """Per key class, by stream, the column of the stored rows that holds it."""

    def sources(self, number: int) -> Sequence[int]:
        return range(self.before.cells)

    def copies(self, stream: str) -> int:
        return self.after.copies(owner_of(stream, self.before.graph.rows))

    def taken(self, stream: StreamSchema, found: Entries, old: int, number: int) -> Taken:
        owner = owner_of(stream.name, self.before.graph.rows)
        here = self.cells(self.before, owner, found.rows)
        if not (here == old).any(axis=1).all():
            raise InvalidArgumentError(
                f"index {stream.name!r} has a row in bucket {old} of the grid, where its keys do "
                "not belong; the state does not match its settings: check it with lsmstate verify"
            )
        owned = np.flatnonzero(here[:, 0] == old)
        there = self.cells(self.after, owner, found.rows.take(pa.array(owned)))
        return Taken(owned[(there == number).any(axis=1)], len(owned))

    def cells(self, shares: Shares, owner: str, rows: pa.RecordBatch) -> Numbers:
        """The buckets of each row; the first is the row's own."""
        hashes = {}
        for columns, name in zip(self.columns, shares.graph.classes, strict=True):
            if owner in columns and shares.shares[name] > 1:
                key = rows.select([columns[owner]])
                hashes[name] = KeyCodec(key.schema).encode(key).hashes
        _, cells = shares.route(owner, hashes, np.ones(len(rows), np.bool_))
        return cells.reshape(len(rows), shares.copies(owner))


def keeper_of(old: int, places: Places, buckets: int) -> int:
    """The new bucket that takes rows of an old one whatever their keys. It reads that bucket
    anyway."""
    readers = [number for number in range(buckets) if old in places.sources(number)]
    return readers[old % len(readers)]


def owner_of(index: str, streams: Iterable[str]) -> str:
    """Whose rows an index holds: its name is the stream's, and columns in brackets."""
    return max((name for name in streams if index.startswith(f"{name}(")), key=len)
