"""Which keys are spread next, and how far: decided from what the buckets have seen of late.

A key is hot if what can be spread of it, both streams of two or the largest of more, has
``HOT_SHARE`` of the rows that a bucket has on average; it gets so many buckets that its part in
each is less than that. Of three or more streams, where a further bucket is sent copies of the
smaller ones only, its results count in the same way. It is left alone if it has fewer results than
copies would be sent. Buckets with the fewest rows are chosen, and no key ever loses one.
(``lsmstate.joins.routing.skew.spread`` says what is done with them.)

Source: Metwally et al. for what is hot (``lsmstate.joins.routing.skew.heavy_hitters``).
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from lsmstate.joins.routing.hash import bucket_of_hashes
from lsmstate.joins.routing.skew.heavy_hitters import HeavyHitters, merged
from lsmstate.joins.routing.skew.spread import (
    Addition,
    RouteTable,
    SpreadKey,
    bytes_of,
    text_of,
)

#: A key is hot if it has this part of the rows that a bucket has on average.
HOT_SHARE = 0.5
#: Keys that are spread at most: all that ever were, as none is gathered again.
MOST_KEYS = 256
#: Rows of late below which none is.
LEAST_ROWS = 1000.0


@dataclass(frozen=True)
class Seen:
    """What one bucket has seen of late: by stream a sketch of the rows that it stored."""

    bucket: int
    sketches: Mapping[str, HeavyHitters] = field(default_factory=dict)
    pointer: str | None = None
    """What it has committed; ``TOLD``: see ``commit``."""
    commit: str | None = None
    """What this attempt of it has committed, where each tells its own."""
    keys: Mapping[int, bytes] = field(default_factory=dict)
    """By hash some of the keys it has counted; see Addition."""

    @property
    def rows(self) -> float:
        return sum(sketch.total for sketch in self.sketches.values())

    def to_json(self) -> dict[str, Any]:
        """What was seen as JSON has it."""
        return {
            "sketches": {stream: sketch.to_row() for stream, sketch in self.sketches.items()},
            "pointer": self.pointer,
            "commit": self.commit,
            "keys": [[number, text_of(key)] for number, key in self.keys.items()],
        }

    @classmethod
    def from_json(cls, bucket: int, found: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``. What an earlier release saw has no counts."""
        sketches = found.get("sketches", {}).items()
        return cls(
            bucket,
            {stream: HeavyHitters.from_row(row) for stream, row in sketches},
            found.get("pointer"),
            found.get("commit"),
            {number: bytes_of(key) for number, key in found.get("keys", ())},
        )


@dataclass(frozen=True)
class _Hot:
    """A key, with its rows of late by stream, and the one that is spread: None, both of two."""

    hash: int
    key: str
    rows: Mapping[str, float]
    stream: str | None

    @property
    def spread(self) -> float:
        """Rows of which each bucket of the key has a part."""
        return sum(self.rows.values()) if self.stream is None else self.rows[self.stream]

    @property
    def copied(self) -> float:
        """Rows that each further bucket of the key is sent too."""
        return sum(self.rows.values()) - (0 if self.stream is None else self.rows[self.stream])

    @property
    def results(self) -> float:
        """Of these rows alone."""
        return math.prod(self.rows.values())

    def load(self, width: int) -> float:
        """Rows stored in each of so many buckets."""
        stored_in_all = 0.0 if self.stream is None else self.copied
        return self.spread / width + stored_in_all


def respread(
    table: RouteTable, seen: Sequence[Seen], buckets: int, streams: Sequence[str], batch: int = 0
) -> RouteTable:
    """The next table, from what was seen by the end of a micro-batch. Of three or more streams, a
    key gets buckets only if its owner says by what it saw from where they take its earlier rows.
    Pure."""
    spreads_one = len(streams) > 2
    loads = dict.fromkeys(range(buckets), 0.0)
    for each in seen:
        loads[each.bucket] += each.rows
    total = sum(loads.values())
    by_bucket = {each.bucket: each for each in seen}
    found = {key.hash: _settled(key, by_bucket) for key in table.keys}
    counted = _by_rows(seen, table, streams) if total >= LEAST_ROWS else []
    # Results that are fewer than the rows count for nothing.
    all_results = max(total, sum(hot.results for hot in counted))
    for hot in counted:
        share = hot.spread / total
        if hot.stream is not None:
            share = max(share, hot.results / all_results)
        width = min(buckets, int(share * buckets / HOT_SHARE) + 1)
        has = found[hot.hash].buckets if hot.hash in found else (_owner(hot.hash, buckets),)
        if hot.hash in found and found[hot.hash].addition is not None:
            continue
        if width <= len(has) or hot.results < hot.copied * (width - 1):
            continue
        if hot.hash not in found and len(found) == MOST_KEYS:
            continue
        free = sorted(set(loads) - set(has), key=lambda bucket: (loads[bucket], bucket))
        more = tuple(free[: width - len(has)])
        addition = None
        if spreads_one:
            owner = by_bucket.get(has[0], Seen(has[0]))
            if owner.pointer is None or hot.hash not in owner.keys:
                continue
            addition = Addition(more, owner.pointer, owner.keys[hot.hash], batch)
        for bucket in has:
            loads[bucket] -= hot.load(len(has))
        for bucket in (*has, *more):
            loads[bucket] += hot.load(width)
        found[hot.hash] = SpreadKey(hot.hash, hot.key, (*has, *more), hot.stream, addition)
    return RouteTable(tuple(found.values()))


def _settled(key: SpreadKey, seen: Container[int]) -> SpreadKey:
    """Without its addition if all added buckets have been called, which is when they take over."""
    if key.addition is not None and all(bucket in seen for bucket in key.addition.buckets):
        return replace(key, addition=None)
    return key


def _by_rows(seen: Sequence[Seen], table: RouteTable, streams: Sequence[str]) -> list[_Hot]:
    """What is counted anywhere, over all buckets; the most rows first. A stream that had no row yet
    counts: without it there is no result."""
    texts: dict[int, str] = {}
    counts: dict[str, dict[int, float]] = {}
    for stream in streams:
        sketches = [each.sketches[stream] for each in seen if stream in each.sketches]
        # With room for all their keys, so that none is cut.
        hottest = merged(sketches, sum(s.capacity for s in sketches) or 1).hottest()
        counts[stream] = {hot.hash: hot.rows for hot in hottest}
        texts |= {hot.hash: hot.key for hot in hottest}
    found = []
    for number, text in texts.items():
        rows = {stream: counts[stream].get(number, 0.0) for stream in streams}
        known, spread = table[number], None
        if known is not None and known.stream is not None:
            # Rows of the others were counted in each of its buckets.
            spread = known.stream
            rows = {s: n if s == spread else n / len(known.buckets) for s, n in rows.items()}
        elif len(streams) > 2:
            spread = max(streams, key=lambda stream: rows[stream])
        found.append(_Hot(number, text, rows, spread))
    return sorted(found, key=lambda hot: (-sum(hot.rows.values()), hot.hash))


def _owner(key: int, buckets: int) -> int:
    """The bucket of a key that is not spread."""
    hashes = np.array([key], np.uint64)
    return int(bucket_of_hashes(hashes, np.ones(1, np.bool_), buckets)[0])
