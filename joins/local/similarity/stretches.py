"""Stored rows that may hold partners, in pieces, and which arriving rows may match which of them.

- A *group* is a set of arriving rows that look in the same place.
- A *stretch* says that the rows ``first`` to ``stop`` of a piece lie where a group looks.
- Where stored rows are ordered by a distance, each arriving row has its own distance too, and the
  two of a pair differ by the group's *reach* at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.similarity.measures import STEP_PAIRS, Places
from lsmstate.schema.arrow_sizes import pieces_of

Numbers = npt.NDArray[np.int64]
Orders = npt.NDArray[np.float64]

#: Stored rows whose orders are looked at together.
_BLOCK_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Groups:
    """Group g holds the arriving rows ``members[starts[g]:starts[g + 1]]``."""

    members: Numbers
    starts: Numbers
    orders: Orders | None = None
    """Beside each member its distance, which ascends in a group."""
    reach: float = 0.0

    @classmethod
    def one(cls, count: int) -> "Groups":
        """All rows in one group."""
        return cls(np.arange(count), np.array([0, count]))

    @classmethod
    def single(cls, members: Numbers) -> "Groups":
        """Each row in a group of its own, perhaps in several."""
        return cls(members, np.arange(len(members) + 1))


class Stretches(NamedTuple):
    """A piece of stored rows, and its stretches."""

    rows: pa.RecordBatch
    groups: Numbers
    first: Numbers
    stop: Numbers
    orders: Orders | None = None
    """Of each row, where groups have them: they ascend in a stretch."""


class Dense(Protocol):
    """Compares a block of stored rows with members of a group by tiles."""

    def is_dense(self, pairs: Numbers) -> npt.NDArray[np.bool_]:
        """Whether tiles are the best way for so many pairs."""
        ...

    def __call__(
        self, group: int, first: int, last: int, part: slice
    ) -> Iterator[tuple[Places, Places]]:
        """Candidates: places in the group from ``first`` to ``last``, and places of rows."""
        ...


def pairs_of(
    stretches: Stretches, groups: Groups, dense: Dense
) -> Iterator[tuple[Places, Places, bool]]:
    """Pairs of an arriving row and a row of the piece, in steps, and whether they were compared."""
    blocks = _blocks(stretches, groups)
    sizes = blocks.last - blocks.begin
    lengths = blocks.stop - blocks.first
    is_dense = dense.is_dense(sizes * lengths)
    for at in np.flatnonzero(is_dense):
        group = int(blocks.groups[at])
        start = int(groups.starts[group])
        part = slice(int(blocks.first[at]), int(blocks.stop[at]))
        begin, last = int(blocks.begin[at]) - start, int(blocks.last[at]) - start
        for queries, places in dense(group, begin, last, part):
            members = groups.members[start + queries]
            yield members.astype(np.int32), places, True
    thin = np.flatnonzero(~is_dense & (sizes > 0) & (lengths > 0))
    # A block and one member of its group at a time: each is a range of rows.
    owners = np.repeat(thin, sizes[thin])
    begins = np.cumsum(sizes[thin]) - sizes[thin]
    within = np.arange(len(owners)) - np.repeat(begins, sizes[thin])
    members = groups.members[blocks.begin[owners] + within]
    first, counts = blocks.first[owners], lengths[owners]
    for part in pieces_of(counts, STEP_PAIRS):
        yield from _expanded(members[part], first[part], counts[part])


class _Blocks(NamedTuple):
    groups: Numbers
    first: Numbers
    stop: Numbers
    begin: Numbers
    """Where the members that may match begin, in ``Groups.members``."""
    last: Numbers


def _blocks(stretches: Stretches, groups: Groups) -> _Blocks:
    """The stretches, cut into blocks whose rows have orders that are close to each other."""
    starts, stops = groups.starts[stretches.groups], groups.starts[stretches.groups + 1]
    if stretches.orders is None or groups.orders is None:
        return _Blocks(stretches.groups, stretches.first, stretches.stop, starts, stops)
    counts = -(-(stretches.stop - stretches.first) // _BLOCK_ROWS)
    owners = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = stretches.first[owners] + within * _BLOCK_ROWS
    stop = np.minimum(first + _BLOCK_ROWS, stretches.stop[owners])
    low, high = stretches.orders[first], stretches.orders[stop - 1]
    begin, last = starts[owners], stops[owners]
    for at in range(len(owners)):
        own = groups.orders[begin[at] : last[at]]
        start = begin[at]
        begin[at] = start + np.searchsorted(own, low[at] - groups.reach)
        last[at] = start + np.searchsorted(own, high[at] + groups.reach, side="right")
    return _Blocks(stretches.groups[owners], first, stop, begin, np.maximum(begin, last))


def _expanded(
    queries: Numbers, first: Numbers, counts: Numbers
) -> Iterator[tuple[Places, Places, bool]]:
    """All pairs of queries and their ranges of rows; a longer range than a step is cut."""
    if len(counts) == 1 and counts[0] > STEP_PAIRS:
        for begin in range(0, int(counts[0]), STEP_PAIRS):
            length = min(STEP_PAIRS, int(counts[0]) - begin)
            places = np.arange(first[0] + begin, first[0] + begin + length, dtype=np.int32)
            yield np.full(length, queries[0], np.int32), places, False
        return
    ends = np.cumsum(counts)
    within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    places = np.repeat(first, counts) + within
    yield np.repeat(queries, counts).astype(np.int32), places.astype(np.int32), False
