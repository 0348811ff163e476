"""Combinations of rows that grow by one stream at a time: what joins by several keys share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.joins.distinct import distinct
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.store import Probe

#: Combinations that are looked up together, at most: 8 bytes each for every stream.
BLOCK_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class BoundRows:
    """Rows of one stream, and which of them each combination holds: row ``at[i]``."""

    rows: pa.RecordBatch
    sizes: Numbers
    at: Numbers
    is_each: bool = False
    """Whether combination ``i`` holds row ``i``, and there are no others."""


def parts_of(rows: pa.RecordBatch, part_bytes: int) -> list[pa.RecordBatch]:
    """The rows in parts of at most ``part_bytes`` or one row, and of at most BLOCK_ROWS rows."""
    sizes = np.maximum(row_sizes(rows), -(-part_bytes // BLOCK_ROWS))
    return [rows.slice(s.start, s.stop - s.start) for s in pieces_of(sizes, part_bytes)]


def grouped(keys: KeyBatch) -> tuple[KeyBatch, Numbers]:
    """The distinct keys, and per key which of them it is; -1 for one that holds a null."""
    distinct, starts = keys.distinct()
    groups = np.full(len(keys), -1, dtype=np.int64)
    groups[keys.order] = np.repeat(np.arange(len(distinct), dtype=np.int64), np.diff(starts))
    return distinct, groups


def distinct_places(places: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Of combinations, each of which holds one place out of every array: one example of each
    different one, and per combination which of these it is."""
    seen = np.zeros(int(places[0].max(initial=-1)) + 1, dtype=np.bool_)
    seen[places[0]] = True
    groups = (np.cumsum(seen) - 1)[places[0]]
    for more in places[1:]:
        pairs = groups * (int(more.max(initial=0)) + 1) + more
        groups = np.unique(pairs, return_inverse=True)[1]
    examples = np.empty(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    examples[groups] = np.arange(len(groups))
    return examples, groups


def pairs(
    left: Numbers, left_counts: Numbers, right: Numbers, right_counts: Numbers
) -> Iterator[tuple[Numbers, Numbers]]:
    """Per group all pairs of its left and right places, which begin at ``left`` and ``right``."""
    products = left_counts * right_counts
    ends = np.cumsum(products)
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, BLOCK_ROWS):
        numbers = np.arange(first, min(total, first + BLOCK_ROWS), dtype=np.int64)
        group = np.searchsorted(ends, numbers, side="right")
        within = numbers - (ends[group] - products[group])
        in_left, in_right = np.divmod(within, right_counts[group])
        yield left[group] + in_left, right[group] + in_right


def equal_pairs(left: Numbers, right: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """All pairs of places where the groups in ``left`` and ``right`` are the same, and not -1."""
    by_left, by_right = (np.argsort(groups, kind="stable") for groups in (left, right))
    ordered = left[by_left], right[by_right]
    both = np.setdiff1d(np.intersect1d(left, right), [-1])
    starts = [np.searchsorted(groups, both, side="left") for groups in ordered]
    ends = [np.searchsorted(groups, both, side="right") for groups in ordered]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    for lefts, rights in pairs(starts[0], counts[0], starts[1], counts[1]):
        yield by_left[lefts], by_right[rights]


def fetched_pairs(
    probe: Probe, at: Numbers, least_bytes: int, piece_bytes: int
) -> Iterator[tuple[Numbers, BoundRows]]:
    """Pairs of the places in ``at``, which says of each which of the probe's keys it is, and the
    rows found under it; about ``piece_bytes`` of rows at once, as ``fetch_bytes`` has it."""
    by_key = np.argsort(at, kind="stable")
    sorted_at = at[by_key]
    wanted = distinct(sorted_at)
    if len(wanted) == 0:
        return
    for piece in probe.fetch(wanted, fetch_bytes(probe, wanted, least_bytes, piece_bytes)):
        keys, right, right_counts = np.unique(
            piece.positions, return_index=True, return_counts=True
        )
        left = np.searchsorted(sorted_at, keys, side="left")
        left_counts = np.searchsorted(sorted_at, keys, side="right") - left
        sizes = row_sizes(piece.rows)
        for lefts, rights in pairs(left, left_counts, right, right_counts):
            yield by_key[lefts], BoundRows(piece.rows, sizes, rights)


def fetch_bytes(probe: Probe, wanted: Numbers, least_bytes: int, piece_bytes: int) -> int:
    """Encoded bytes to fetch at once for about ``piece_bytes`` of Arrow data: nulls take far fewer
    encoded. ``least_bytes``: of any row as Arrow data."""
    encoded = probe.row_bytes[wanted]
    arrow = encoded + probe.counts[wanted] * least_bytes
    return max(1, int(piece_bytes * np.min(encoded / np.maximum(1, arrow))))


def coalesced(pieces: Iterator[pa.RecordBatch], piece_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer pieces of at most ``piece_bytes``, or as large as they came; apart
    where a column's dictionary would hold more values than its indices count."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for piece in pieces:
        size = int(row_sizes(piece).sum())
        if waiting and waiting_bytes + size > piece_bytes:
            yield from _together(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(piece)
        waiting_bytes += size
    if waiting:
        yield from _together(waiting)


def _together(pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(pieces) == 1:
        return pieces  # Arrow would copy it
    try:
        return [pa.concat_batches(pieces)]
    except pa.ArrowInvalid:  # too many values for a dictionary; schemas are the same
        return pieces
