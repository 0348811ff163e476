"""Stored rows that may hold partners, in pieces, and which arriving rows may match which of them.

- A *group* is a set of arriving rows that look in the same place.
- A *stretch* says that the rows ``first`` to ``stop`` of a piece lie where a group looks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.similarity.measures import STEP_PAIRS, Places
from lsmstate.schema.arrow_sizes import pieces_of

Numbers = npt.NDArray[np.int64]

#: From so many pairs on, a stretch is compared by tiles.
_DENSE_PAIRS: Final = 4096


@dataclass(frozen=True, slots=True)
class Groups:
    """Group g holds the arriving rows ``members[starts[g]:starts[g + 1]]``."""

    members: Numbers
    starts: Numbers

    @classmethod
    def one(cls, count: int) -> "Groups":
        """All rows in one group."""
        return cls(np.arange(count), np.array([0, count]))

    @classmethod
    def single(cls, members: Numbers) -> "Groups":
        """Each row in a group of its own, perhaps in several."""
        return cls(members, np.arange(len(members) + 1))


class Stretches(NamedTuple):
    """A piece of stored rows, and its stretches, of distinct groups or of one several times."""

    rows: pa.RecordBatch
    groups: Numbers
    first: Numbers
    stop: Numbers


def pairs_of(
    stretches: Stretches,
    groups: Groups,
    dense: Callable[[Numbers, slice], Iterator[tuple[Places, Places]] | None],
) -> Iterator[tuple[Places, Places, bool]]:
    """Pairs of an arriving row and a row of the piece, in steps, and whether they were compared.

    Args:
        stretches: The piece.
        groups: The groups of arriving rows.
        dense: Candidates among some arriving rows and a slice of the piece; None: it cannot say.
    """
    sizes = np.diff(groups.starts)[stretches.groups]
    lengths = stretches.stop - stretches.first
    products = sizes * lengths
    is_dense = products >= _DENSE_PAIRS
    for at in np.flatnonzero(is_dense):
        group = stretches.groups[at]
        members = groups.members[groups.starts[group] : groups.starts[group + 1]]
        part = slice(int(stretches.first[at]), int(stretches.stop[at]))
        found = dense(members, part)
        if found is None:
            is_dense[at] = False
            continue
        for queries, places in found:
            yield members[queries].astype(np.int32), places + np.int32(part.start), True
    thin = np.flatnonzero(~is_dense & (products > 0))
    # A stretch and one member of its group at a time: each is a range of rows.
    owners = np.repeat(thin, sizes[thin])
    begins = np.cumsum(sizes[thin]) - sizes[thin]
    within = np.arange(len(owners)) - np.repeat(begins, sizes[thin])
    queries = groups.members[groups.starts[stretches.groups[owners]] + within]
    first, counts = stretches.first[owners], lengths[owners]
    for part in pieces_of(counts, STEP_PAIRS):
        yield from _expanded(queries[part], first[part], counts[part])


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


def stretches_of(positions: Numbers, rows: pa.RecordBatch) -> Stretches:
    """The stretches of a piece of a probe, whose keys are groups."""
    first = np.flatnonzero(np.diff(positions, prepend=-1))
    stop = np.append(first[1:], len(positions))
    return Stretches(rows, positions[first], first, stop)


def cut(stretches: Stretches, columns: Any) -> Stretches:
    """The same of rows without some columns."""
    return stretches._replace(rows=columns)
