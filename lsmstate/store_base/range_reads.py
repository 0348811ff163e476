"""Reads of many ranges of keys, on what each backend gives: the keys in the ranges, in portions.

A portion's keys are distinct and ascend, and a probe of them says how many rows each has. Rows are
fetched in key order, so the rows of a range are consecutive: where they begin and end follows from
the counts of the keys before.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges, RangeSweep
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.errors import InvalidArgumentError
from lsmstate.store import Positions, Probe, RangeMatches

#: Most keys of a portion.
PORTION_KEYS = 1 << 14
NONE = np.empty(0, dtype=np.int64)


class KeyPortion(NamedTuple):
    """Some of the keys that lie in ranges: those behind the portion before.

    Attributes:
        keys: The keys, distinct and ascending.
        probe: What is stored under them.
        is_last: Whether there are no more.
    """

    keys: KeyBatch
    probe: Probe
    is_last: bool


Portions = Iterator[KeyPortion]


class Stretches(NamedTuple):
    """Stretches of rows: range ``ranges[i]`` holds ``rows[first[i]:stop[i]]``."""

    ranges: Positions
    first: Positions
    stop: Positions

    def within(self, start: int, end: int) -> "Stretches":
        """Return the stretches of ``rows[start:end]``."""
        held = (self.first < end) & (self.stop > start)
        first = np.maximum(self.first[held] - start, 0)
        return Stretches(self.ranges[held], first, np.minimum(self.stop[held], end) - start)


def check_one_end(first: bool, last: bool) -> None:
    """Raise InvalidArgumentError if both are asked for."""
    if first and last:
        raise InvalidArgumentError(
            "first=True and last=True are both given; probe twice to read both rows of a range"
        )


def range_matches(
    portions: Portions,
    ranges: EncodedRanges,
    max_bytes: int,
    decoder: KeyDecoder | None,
) -> Iterator[RangeMatches]:
    """Yield the rows in the ranges. With a decoder, they have their keys."""
    sweep = RangeSweep(ranges)
    for portion in portions:
        rows, first, stop = sweep.next(portion.keys, portion.is_last)
        before = rows_before(portion.probe)
        first, stop = before[first], before[stop]
        live = first < stop  # a key may have retracted rows only
        found = Stretches(rows[live], first[live], stop[live])
        held = np.flatnonzero(portion.probe.counts)
        start = 0
        for positions, piece in portion.probe.fetch(held, max_bytes):
            end = start + piece.num_rows
            part = found.within(start, end)
            keys = None if decoder is None else decoded(decoder, portion.keys, positions)
            yield RangeMatches(piece, *part, keys)
            start = end


def rows_before(probe: Probe) -> Positions:
    """Return how many rows come before those of each key, and in all."""
    before = np.zeros(len(probe.counts) + 1, dtype=np.int64)
    np.cumsum(probe.counts, out=before[1:])
    return before


def decoded(decoder: KeyDecoder, keys: KeyBatch, positions: Positions) -> pa.RecordBatch:
    """Return the keys at positions, which ascend and may repeat."""
    distinct, places = np.unique(positions, return_inverse=True)
    found = decoder.decode([key for key in keys.take(distinct).to_pylist() if key is not None])
    return found if len(distinct) == len(positions) else found.take(pa.array(places))


def range_counts(portions: Portions, ranges: EncodedRanges) -> Positions:
    """Return the number of rows in each range."""
    counts = np.zeros(len(ranges), dtype=np.int64)
    sweep = RangeSweep(ranges)
    for portion in portions:
        rows, first, stop = sweep.next(portion.keys, portion.is_last)
        before = rows_before(portion.probe)
        counts[rows] += before[stop] - before[first]
    return counts


class EndKeys(NamedTuple):
    """The first or the last key with rows of each range; ranges without one are left out.

    Attributes:
        ranges: The ranges, ascending by their key.
        keys: Beside each range its key.
    """

    ranges: Positions
    keys: list[bytes]


class EndPortion(NamedTuple):
    """The first or the last keys of some ranges: those whose keys are not before the portion's.

    Attributes:
        ranges: The ranges that have such a key.
        places: Beside each, the place of its key, ascending.
        keys: The keys, distinct and ascending.
        probe: What is stored under them. A key may have no live rows.
        left: Ranges of which the key was not looked for.
    """

    ranges: Positions
    places: Positions
    keys: KeyBatch
    probe: Probe
    left: Positions


#: Looks up keys.
Probing = Callable[[KeyBatch], Probe]
#: Finds the keys in ranges.
Walking = Callable[[EncodedRanges], Portions]


def end_keys(portions: Portions, ranges: EncodedRanges, *, is_last: bool) -> EndKeys:
    """Find the first or the last key with rows of each range.

    Cost: all keys in the ranges are counted. Memory: one key per range.
    """
    found: dict[int, bytes] = {}
    sweep = RangeSweep(ranges)
    for portion in portions:
        rows, first, stop = sweep.next(portion.keys, portion.is_last)
        live = np.flatnonzero(portion.probe.counts)
        low, high = np.searchsorted(live, first), np.searchsorted(live, stop)
        held = low < high
        places = live[(high - 1 if is_last else low)[held]]
        distinct, numbers = np.unique(places, return_inverse=True)
        names = portion.keys.take(distinct).to_pylist()
        for row, number in zip(rows[held].tolist(), numbers.tolist(), strict=True):
            if is_last or row not in found:
                name = names[number]
                assert name is not None, "stored keys hold no null"
                found[row] = name
    return _ordered(found.items())


def _ordered(found: Iterable[tuple[int, bytes]]) -> EndKeys:
    ordered = sorted(found, key=lambda item: item[1])
    return EndKeys(
        np.array([row for row, _ in ordered], dtype=np.int64), [name for _, name in ordered]
    )


def walked_ends(
    walk: Walking, ranges: EncodedRanges, probe: Probing, *, is_last: bool
) -> Iterator[EndPortion]:
    """Yield the first or the last keys of ranges, found by a walk over all keys in them."""
    yield from _probed(end_keys(walk(ranges), ranges, is_last=is_last), probe)


def _probed(found: EndKeys, probe: Probing) -> Iterator[EndPortion]:
    """Yield ends whose keys are known, in portions."""
    for start in range(0, len(found.keys), PORTION_KEYS):
        part = found.keys[start : start + PORTION_KEYS]
        keys, starts = KeyBatch.from_bytes([*part]).distinct()
        places = np.repeat(np.arange(len(keys)), np.diff(starts))
        yield EndPortion(
            found.ranges[start : start + PORTION_KEYS], places, keys, probe(keys), NONE
        )


def settled_ends(
    portions: Iterator[EndPortion],
    ranges: EncodedRanges,
    walk: Walking,
    probe: Probing,
    *,
    is_last: bool,
) -> Iterator[EndPortion]:
    """Yield the portions with live keys only. Ranges whose key has no live rows, or was not looked
    for, are walked; that is rare."""
    for portion in portions:
        is_live = portion.probe.counts[portion.places] > 0
        left = np.concatenate([portion.left, portion.ranges[~is_live]])
        if not len(left):
            yield portion
            continue
        names = portion.keys.to_pylist()
        known = zip(portion.ranges[is_live], portion.places[is_live], strict=True)
        found = [(int(row), names[place] or b"") for row, place in known]
        some = ranges.some(left)
        walked = end_keys(walk(some), some, is_last=is_last)
        found += zip(walked.ranges.tolist(), walked.keys, strict=True)
        yield from _probed(_ordered(found), probe)


def end_matches(
    portions: Iterator[EndPortion],
    max_bytes: int,
    decoder: KeyDecoder | None,
    *,
    is_last: bool,
) -> Iterator[RangeMatches]:
    """Yield the first or the last row of each range, which is that of its first or last key."""
    for portion in portions:
        keys = portion.keys
        starts = np.searchsorted(portion.places, np.arange(len(keys) + 1))
        before = rows_before(portion.probe)
        wanted = before[1:] - 1 if is_last else before[:-1]  # of all rows of the keys
        read = 0
        for positions, piece in portion.probe.fetch(np.arange(len(keys)), max_bytes):
            low, high = np.searchsorted(wanted, [read, read + piece.num_rows])
            if low < high:
                places = wanted[low:high] - read
                rows = piece
                if len(places) < piece.num_rows:
                    rows = piece.take(pa.array(places))
                shared = np.diff(starts[low : high + 1])
                first = np.repeat(np.arange(high - low), shared)
                named = None
                if decoder is not None:
                    named = decoded(decoder, keys, positions[places])
                found = portion.ranges[starts[low] : starts[high]]
                yield RangeMatches(rows, found, first, first + 1, named)
            read += piece.num_rows
