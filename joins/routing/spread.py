"""Hot keys of a join of two streams, spread over several buckets; and which keys those are.

A row of a spread key is *stored* in one of the key's buckets and sent to all the others as a
*copy*, which looks for matches there and is not stored. Two rows that match therefore meet once:
when the later of them comes, it is sent to the bucket where the earlier one is stored. So no
state moves when a key is spread or spread further: rows that were stored before stay where they
are, and that bucket, the key's *owner*, remains one of its buckets for ever.

This is true of two streams only: of three, two stored rows that match may lie in two buckets.

Which of the buckets stores a row follows from the row's content alone. So a micro-batch that is
repeated stores each row where it did before, however its input is cut into tasks then: a bucket's
state may come from one execution and another bucket's from another. Equal rows share a bucket.

A table of routes is a value. Which table a row is routed by must be the same in all tasks of a
micro-batch and whenever it is repeated; whoever keeps tables sees to that.

Sources: Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015): one side stored,
all sides probed; Metwally et al. for what is hot (``joins.routing.heavy_hitters``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cython_ext.codec import checksum
from cython_ext.row_codec import RowCodec
from joins.routing.hash import NO_BUCKET, bucket_of_hashes
from joins.routing.heavy_hitters import Hashes, HeavyHitters, merged

#: A key is hot if it has this part of the rows that a bucket has on average.
HOT_SHARE = 0.5
#: Keys that are spread at most, and rows, of late, below which none is.
MOST_KEYS = 256
LEAST_ROWS = 1000.0

Numbers = npt.NDArray[np.int64]


class Routed(NamedTuple):
    """Where rows go: ``positions[i]``, ascending, to bucket ``buckets[i]``. There it is stored, or
    only looks for matches where ``is_stored[i]`` says so; None: all are stored."""

    positions: Numbers
    buckets: Numbers
    is_stored: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class SpreadKey:
    """A key by its hash, and its buckets, of which the first is its owner."""

    hash: int
    key: str
    """For people."""
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class RouteTable:
    """The keys that are spread. All others go to the bucket of their hash."""

    keys: tuple[SpreadKey, ...] = ()

    def route(
        self, hashes: Hashes, owners: Numbers, contents: Callable[[Numbers], Hashes]
    ) -> Routed:
        """``owners``: each row's bucket by its hash, or NO_BUCKET. ``contents`` hashes all that the
        rows at some positions hold, and is asked for those of spread keys only. Cost: a few vector
        operations, some more for each spread key in the batch."""
        rows = np.flatnonzero(owners != NO_BUCKET)
        buckets = owners.copy()
        copied: list[tuple[Numbers, Numbers]] = []
        for key in np.unique(hashes[rows[np.isin(hashes[rows], self._hashes)]]).tolist():
            mine = rows[hashes[rows] == np.uint64(key)]
            among = np.array(self._buckets[key], np.int64)
            places = (contents(mine) % np.uint64(len(among))).astype(np.int64)
            buckets[mine] = among[places]
            others = (places[:, None] + np.arange(1, len(among))) % len(among)
            copied.append((np.repeat(mine, len(among) - 1), among[others].ravel()))
        if not copied:
            return Routed(rows, buckets[rows])
        positions = np.concatenate([rows, *(p for p, _ in copied)])
        is_stored = np.arange(len(positions)) < len(rows)
        order = np.argsort(positions, kind="stable")
        all_buckets = np.concatenate([buckets[rows], *(b for _, b in copied)])
        return Routed(positions[order], all_buckets[order], is_stored[order])

    def explain(self) -> str:
        """A line for each key."""
        return "\n".join(
            f"hot key {key.key}: spread over buckets {', '.join(map(str, key.buckets))}"
            for key in self.keys
        )

    @cached_property
    def _buckets(self) -> dict[int, tuple[int, ...]]:
        return {key.hash: key.buckets for key in self.keys}

    @cached_property
    def _hashes(self) -> Hashes:
        return np.array(sorted(self._buckets), np.uint64)


def content_hashes(rows: pa.RecordBatch, codec: RowCodec) -> Hashes:
    """Of each row a hash of all it holds, the same in every process: XXH3 of its encoding.

    Cost: a Python object per row. Memory: the encoded rows.
    """
    encoded = codec.encode(rows).to_pylist()
    return np.fromiter(map(checksum, encoded), np.uint64, len(encoded))


@dataclass(frozen=True)
class Seen:
    """What one bucket has seen of late: by stream a sketch of the rows that it stored."""

    bucket: int
    sketches: Mapping[str, HeavyHitters] = field(default_factory=dict)

    @property
    def rows(self) -> float:
        return sum(sketch.total for sketch in self.sketches.values())


def respread(table: RouteTable, seen: Sequence[Seen], buckets: int) -> RouteTable:
    """The next table: hot keys get buckets, or more of them; none loses one.

    A key is hot if it has ``HOT_SHARE`` of the rows a bucket has on average; it gets so many
    buckets that its part in each is less than that. It is left alone if it has fewer matches than
    copies would be sent. Buckets with the fewest rows are chosen. Pure.
    """
    loads = dict.fromkeys(range(buckets), 0.0)
    for each in seen:
        loads[each.bucket] += each.rows
    total = sum(loads.values())
    if total < LEAST_ROWS:
        return table
    found = {key.hash: key for key in table.keys}
    for hot in _by_rows(seen):
        rows = sum(hot.rows)
        width = min(buckets, int(rows * buckets / (HOT_SHARE * total)) + 1)
        has = found[hot.hash].buckets if hot.hash in found else (_owner(hot.hash, buckets),)
        if width <= len(has) or math.prod(hot.rows) < rows * (width - 1):
            continue
        if hot.hash not in found and len(found) == MOST_KEYS:
            continue
        free = sorted(set(loads) - set(has), key=lambda bucket: (loads[bucket], bucket))
        chosen = (*has, *free[: width - len(has)])
        for bucket in has:
            loads[bucket] -= rows / len(has)
        for bucket in chosen:
            loads[bucket] += rows / width
        found[hot.hash] = SpreadKey(hot.hash, hot.key, chosen)
    return RouteTable(tuple(found.values()))


class _Hot(NamedTuple):
    hash: int
    key: str
    rows: tuple[float, ...]
    """Of the key, by stream."""


def _by_rows(seen: Sequence[Seen]) -> list[_Hot]:
    """What is counted anywhere, over all buckets; the most rows first."""
    streams = sorted({stream for each in seen for stream in each.sketches})
    texts: dict[int, str] = {}
    counts: list[dict[int, float]] = []
    for stream in streams:
        sketches = [each.sketches[stream] for each in seen if stream in each.sketches]
        # With room for all their keys, so that none is cut.
        hottest = merged(sketches, sum(sketch.capacity for sketch in sketches)).hottest()
        counts.append({hot.hash: hot.rows for hot in hottest})
        texts |= {hot.hash: hot.key for hot in hottest}
    found = [_Hot(key, texts[key], tuple(rows.get(key, 0.0) for rows in counts)) for key in texts]
    return sorted(found, key=lambda hot: (-sum(hot.rows), hot.hash))


def _owner(key: int, buckets: int) -> int:
    """The bucket of a key that is not spread."""
    hashes = np.array([key], np.uint64)
    return int(bucket_of_hashes(hashes, np.ones(1, np.bool_), buckets)[0])
