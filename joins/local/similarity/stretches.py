"""Stored rows that may hold partners, in pieces, and which arriving rows may match which of them.

- A *group* is a set of arriving rows that look in the same place.
- A *stretch* says that the rows ``first`` to ``stop`` of a piece lie where a group looks.
- Where stored rows are ordered by a distance, each arriving row has its own distance too, and the
  two of a pair differ by the group's *reach* at most. Pairs whose distances add up to the group's
  *sure* at most are close, so nobody need compare them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.similarity.measures import STEP_PAIRS, Places
from lsmstate.schema.arrow_sizes import pieces_of

Numbers = npt.NDArray[np.int64]
Orders = npt.NDArray[np.float64]

#: Stored rows whose orders are looked at together: so many that they span a part of the reach.
_LEAST_ROWS: Final = 32
_MOST_ROWS: Final = 256
_BLOCK_PARTS: Final = 8


@dataclass(frozen=True, slots=True)
class Groups:
    """Group g holds the arriving rows ``members[starts[g]:starts[g + 1]]``."""

    members: Numbers
    starts: Numbers
    orders: Orders | None = None
    """Beside each member its distance, which ascends in a group."""
    reach: float = 0.0
    sure: float = -np.inf
    is_certain: npt.NDArray[np.bool_] | None = None
    """By group, whether all its pairs are close; None: of none it is known."""
    is_compared: bool = False
    """Whether pairs were compared by the index, so that they are candidates."""

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


class Known(IntEnum):
    """What is known of pairs."""

    NOTHING = 0
    CANDIDATES = 1
    """They were compared by tiles, and may be close."""
    CLOSE = 2
    """They are close."""


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
) -> Iterator[tuple[Places, Places, Known]]:
    """Pairs of an arriving row and a row of the piece, in steps, and what is known of them."""
    blocks = _blocks(stretches, groups)
    sizes = blocks.last - blocks.begin
    lengths = blocks.stop - blocks.first
    is_dense = dense.is_dense(sizes * lengths) & ~blocks.is_certain
    unknown = Known.NOTHING
    if groups.is_compared:
        is_dense[:], unknown = False, Known.CANDIDATES
    has_certain = bool(blocks.is_certain.any())
    for at in np.flatnonzero(is_dense):
        group = int(blocks.groups[at])
        start = int(groups.starts[group])
        part = slice(int(blocks.first[at]), int(blocks.stop[at]))
        begin, last = int(blocks.begin[at]) - start, int(blocks.last[at]) - start
        for queries, places in dense(group, begin, last, part):
            if has_certain:
                # Tiles look at some members beside, which may be close for certain.
                asked = (queries >= begin) & (queries < last)
                queries, places = queries[asked], places[asked]
            members = groups.members[start + queries]
            yield members.astype(np.int32), places, Known.CANDIDATES
    is_thin = ~is_dense & (sizes > 0) & (lengths > 0)
    for known in (unknown, Known.CLOSE):
        thin = np.flatnonzero(is_thin & (blocks.is_certain == (known == Known.CLOSE)))
        # A block and one member of its group at a time: each is a range of rows.
        owners = np.repeat(thin, sizes[thin])
        begins = np.cumsum(sizes[thin]) - sizes[thin]
        within = np.arange(len(owners)) - np.repeat(begins, sizes[thin])
        members = groups.members[blocks.begin[owners] + within]
        first, counts = blocks.first[owners], lengths[owners]
        for part in pieces_of(counts, STEP_PAIRS):
            for queries, places in _expanded(members[part], first[part], counts[part]):
                yield queries, places, known


class _Blocks(NamedTuple):
    groups: Numbers
    first: Numbers
    stop: Numbers
    begin: Numbers
    """Where the members that may match begin, in ``Groups.members``."""
    last: Numbers
    is_certain: npt.NDArray[np.bool_]


def _blocks(stretches: Stretches, groups: Groups) -> _Blocks:
    """The stretches, cut into blocks whose rows have orders that are close to each other."""
    starts, stops = groups.starts[stretches.groups], groups.starts[stretches.groups + 1]
    if stretches.orders is None or groups.orders is None:
        is_certain = np.zeros(len(starts), np.bool_)
        if groups.is_certain is not None:
            is_certain = groups.is_certain[stretches.groups]
        return _Blocks(stretches.groups, stretches.first, stretches.stop, starts, stops, is_certain)
    lengths = stretches.stop - stretches.first
    spans = stretches.orders[np.maximum(stretches.stop - 1, 0)] - stretches.orders[stretches.first]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wanted = np.nan_to_num(lengths * (groups.reach / _BLOCK_PARTS / spans), nan=_MOST_ROWS)
    rows = np.clip(wanted, _LEAST_ROWS, _MOST_ROWS).astype(np.int64)
    counts = -(-lengths // rows)
    owners = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = stretches.first[owners] + within * rows[owners]
    stop = np.minimum(first + rows[owners], stretches.stop[owners])
    low, high = stretches.orders[first], stretches.orders[stop - 1]
    ends = (groups.orders, starts[owners], stops[owners])
    begin = _placed(*ends, low - groups.reach, is_right=False)
    sure = _placed(*ends, groups.sure - high, is_right=True)
    last = _placed(*ends, high + groups.reach, is_right=True)
    last = np.maximum(begin, last)
    sure = np.clip(sure, begin, last)
    every = stretches.groups[owners]
    open_blocks = _Blocks(every, first, stop, sure, last, np.zeros(len(every), np.bool_))
    some = np.flatnonzero(sure > begin)
    if not len(some):
        return open_blocks
    certain: list[Any] = [every[some], first[some], stop[some], begin[some], sure[some]]
    certain.append(np.ones(len(some), np.bool_))
    return _Blocks(*map(np.concatenate, zip(open_blocks, certain, strict=True)))


def _placed(
    orders: Orders, starts: Numbers, stops: Numbers, values: Orders, *, is_right: bool
) -> Numbers:
    """Where each value belongs in its own part of ``orders``, which ascends; after equal ones, or
    before them. A binary search in all parts at once."""
    low, high = starts.copy(), stops.copy()
    while True:
        is_open = low < high
        if not is_open.any():
            return low
        middle = np.where(is_open, (low + high) >> 1, 0)
        found = orders[middle]
        is_after = is_open & ((found <= values) if is_right else (found < values))
        low = np.where(is_after, middle + 1, low)
        high = np.where(is_open & ~is_after, middle, high)


def _expanded(queries: Numbers, first: Numbers, counts: Numbers) -> Iterator[tuple[Places, Places]]:
    """All pairs of queries and their ranges of rows; a longer range than a step is cut."""
    if len(counts) == 1 and counts[0] > STEP_PAIRS:
        for begin in range(0, int(counts[0]), STEP_PAIRS):
            length = min(STEP_PAIRS, int(counts[0]) - begin)
            places = np.arange(first[0] + begin, first[0] + begin + length, dtype=np.int32)
            yield np.full(length, queries[0], np.int32), places
        return
    ends = np.cumsum(counts)
    within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    places = np.repeat(first, counts) + within
    yield np.repeat(queries, counts).astype(np.int32), places.astype(np.int32)
