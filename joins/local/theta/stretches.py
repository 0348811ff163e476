"""Pairs of places by stretches: each left beside a run of rows."""

from collections.abc import Iterator

import numpy as np

from lsmstate.joins.local.parts.bound_rows import BLOCK_ROWS
from lsmstate.joins.local.parts.row_picks import Numbers


def stretches(lefts: Numbers, first: Numbers, stop: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Each left place beside all places of its stretch, in blocks of at most BLOCK_ROWS."""
    counts = stop - first
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    starts = first - (ends - counts)
    for begin in range(0, total, BLOCK_ROWS):
        end = min(total, begin + BLOCK_ROWS)
        head, tail = np.searchsorted(ends, (begin, end - 1), side="right")
        here = np.arange(head, tail + 1)
        least = np.maximum(ends[here] - counts[here], begin)
        at = np.repeat(here, np.minimum(ends[here], end) - least)
        yield lefts[at], starts[at] + np.arange(begin, end, dtype=np.int64)
