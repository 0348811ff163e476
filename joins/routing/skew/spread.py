"""Hot keys of a join by one common key, spread over several buckets: where their rows go.

**Two streams.** A row of a spread key is *stored* in one of the key's buckets and sent to all the
others as a *copy*, which looks for matches there and is not stored. Two rows that match therefore
meet once: when the later of them comes, it is sent to the bucket where the earlier one is stored.
So no state moves when a key is spread or spread further: rows that were stored before stay where
they are, and that bucket, the key's *owner*, remains one of its buckets for ever.

**Three or more.** Of three rows that match, two that are stored could lie in two buckets. So only
one stream of a key is spread: each of its rows is sent to one of the key's buckets, those of the
other streams to all, and every row is stored where it is sent. A result holds one row of the spread
stream, so it is found in that row's bucket and in no other; and there, once, as the bucket has
each row of the other streams once: those that come after the bucket was *added* are sent to it,
and those from before it takes over from the owner, which has them all, in the first micro-batch of
the table that adds it and before it handles any row. Rows of the spread stream stay where they
are: until then none of them is in the added bucket, so what it takes over matches nothing there.

Which of the buckets stores a row follows from the row's content alone. So a micro-batch that is
repeated stores each row where it did before, however its input is cut into tasks then: a bucket's
state may come from one execution and another bucket's from another. Equal rows share a bucket.

A table of routes is a value. Which table a row is routed by must be the same in all tasks of a
micro-batch and whenever it is repeated; whoever keeps tables sees to that.

Sources: Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015): one side stored,
all sides probed; Afrati, Ullman, *Optimizing joins in a map-reduce environment* (EDBT 2010): one
relation's tuples partitioned, the others' copied.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np

from lsmstate.joins.protocols import Numbers, Role, Routed
from lsmstate.joins.routing.hash import NO_BUCKET
from lsmstate.joins.routing.skew.heavy_hitters import Hashes

#: The pointer of an owner whose attempts each tell their own, beside what they have seen.
TOLD: Final = ""


@dataclass(frozen=True)
class Addition:
    """Buckets that are added to a key of three or more streams, and what they take over."""

    buckets: tuple[int, ...]
    pointer: str
    """What the owner had committed before the first micro-batch of the table that adds them; of
    several attempts that did, one. ``TOLD``: the owner tells it elsewhere."""
    key: bytes
    """The key itself: an Arrow IPC record batch of one row."""
    batch: int = 0
    """The micro-batch by which the owner had committed that."""


@dataclass(frozen=True)
class SpreadKey:
    """A key by its hash, and its buckets, of which the first is its owner."""

    hash: int
    key: str
    """For people."""
    buckets: tuple[int, ...]
    stream: str | None = None
    """The stream that is spread, of three or more; None: both of two."""
    addition: Addition | None = None
    """Of a key of three or more streams, until the buckets that were added last were called."""

    def __str__(self) -> str:
        places = ", ".join(map(str, self.buckets))
        if self.stream is None:
            return f"hot key {self.key}: spread over buckets {places}"
        return (
            f"hot key {self.key}: rows of {self.stream} spread over buckets {places}, "
            "rows of the other streams copied to each"
        )

    def to_json(self) -> list[Any]:
        """The key as JSON has it."""
        packed = [self.hash, self.key, list(self.buckets)]
        if self.stream is None:
            return packed
        added = self.addition
        if added is None:
            return [*packed, self.stream, None]
        addition = [list(added.buckets), added.pointer, text_of(added.key), added.batch]
        return [*packed, self.stream, addition]

    @classmethod
    def from_json(
        cls,
        number: int,
        key: str,
        buckets: Sequence[int],
        stream: str | None = None,
        added: Sequence[Any] | None = None,
    ) -> Self:
        """The inverse of ``to_json``."""
        if added is None:
            return cls(number, key, tuple(buckets), stream)
        more, pointer, row, *batch = added
        addition = Addition(tuple(more), pointer, bytes_of(row), *batch)
        return cls(number, key, tuple(buckets), stream, addition)


@dataclass(frozen=True)
class RouteTable:
    """The keys that are spread. All others go to the bucket of their hash."""

    keys: tuple[SpreadKey, ...] = ()

    def route(
        self, stream: str, hashes: Hashes, owners: Numbers, contents: Callable[[Numbers], Hashes]
    ) -> Routed:
        """``owners``: each row's bucket by its hash, or NO_BUCKET. ``contents`` hashes all that the
        rows at some positions hold, and is asked for those of spread rows only. Cost: a few vector
        operations, some more for each spread key in the batch."""
        rows = np.flatnonzero(owners != NO_BUCKET)
        buckets = owners.copy()
        copies: list[tuple[Numbers, Numbers, Role]] = []
        for number in np.unique(hashes[rows[np.isin(hashes[rows], self._hashes)]]).tolist():
            key = self._by_hash[number]
            mine = rows[hashes[rows] == np.uint64(number)]
            among = np.array(key.buckets, np.int64)
            places = np.zeros(len(mine), np.int64)
            if key.stream in (None, stream):
                places = (contents(mine) % np.uint64(len(among))).astype(np.int64)
                buckets[mine] = among[places]
            if key.stream != stream:
                others = (places[:, None] + np.arange(1, len(among))) % len(among)
                role = Role.PROBE if key.stream is None else Role.COPY
                copies.append((np.repeat(mine, len(among) - 1), among[others].ravel(), role))
        if not copies:
            return Routed(rows, buckets[rows])
        positions = np.concatenate([rows, *(p for p, _, _ in copies)])
        own = np.full(len(rows), Role.STORE, np.int8)
        roles = np.concatenate([own, *(np.full(len(p), r, np.int8) for p, _, r in copies)])
        order = np.argsort(positions, kind="stable")
        all_buckets = np.concatenate([buckets[rows], *(b for _, b, _ in copies)])
        return Routed(positions[order], all_buckets[order], roles[order])

    def __getitem__(self, number: int) -> SpreadKey | None:
        """The key of this hash; None: it is not spread."""
        return self._by_hash.get(number)

    @property
    def called(self) -> tuple[int, ...]:
        """Buckets that have rows to take over, ascending."""
        found = (key.addition.buckets for key in self.keys if key.addition is not None)
        return tuple(sorted({bucket for buckets in found for bucket in buckets}))

    def explain(self) -> str:
        """A line for each key."""
        return "\n".join(map(str, self.keys))

    def to_json(self) -> dict[str, Any]:
        """The table as JSON has it."""
        return {"keys": [key.to_json() for key in self.keys]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        return cls(tuple(SpreadKey.from_json(*key) for key in found["keys"]))

    @cached_property
    def _by_hash(self) -> dict[int, SpreadKey]:
        return {key.hash: key for key in self.keys}

    @cached_property
    def _hashes(self) -> Hashes:
        return np.array(sorted(self._by_hash), np.uint64)


def text_of(data: bytes) -> str:
    """Bytes as JSON can have them."""
    return base64.b64encode(data).decode()


def bytes_of(text: str) -> bytes:
    """The inverse of ``text_of``."""
    return base64.b64decode(text)
