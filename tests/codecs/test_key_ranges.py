"""Ranges of keys: brought into order, asked for a key, against a set of numbers."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.cython_ext.memory.budget import Budget
from support.examples import examples

KEYS = st.binary(max_size=2)
RANGES = st.lists(st.tuples(KEYS, KEYS), max_size=8)


def covered(items, key):
    return any(low <= key < high for low, high in items)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(RANGES, RANGES, st.lists(KEYS, max_size=20))
def test_ranges_cover_what_each_of_them_covers(items, others, keys):
    ranges = KeyRanges(items)
    joined = ranges.joined(KeyRanges(others))
    for key in [*keys, *(bound for item in items for bound in item)]:
        assert ranges.contains(key) == covered(items, key)
        assert joined.contains(key) == covered(items + others, key)
    flat = [bound for item in joined.items for bound in item]
    assert flat == sorted(set(flat))


def stored(stream, key):
    """As KeyCodec has a key of one integer."""
    return stream.to_bytes(2, "big") + (2**63 + key).to_bytes(8, "big")


NUMBERS = st.integers(-3000, 3000)
KEYS_OF_STREAMS = st.one_of(
    st.builds(stored, st.integers(0, 4), NUMBERS),
    st.binary(max_size=12),
    st.integers(0, 5).map(lambda stream: stream.to_bytes(2, "big")),
)
WORDS = st.integers(0, 3000).map(lambda number: b"key" + number.to_bytes(4, "big"))


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=6), WORDS, WORDS)
def test_the_part_of_evenly_spread_keys_that_ranges_cover(items, one, other):
    least, greatest = sorted((one, other))
    first, last = (int.from_bytes(key[3:], "big") for key in (least, greatest))
    keys = [b"key" + number.to_bytes(4, "big") for number in range(first, last + 1)]
    exact = sum(covered(items, key) for key in keys) / len(keys)
    ranges = KeyRanges(items)
    assert ranges.part_of(least, greatest) == pytest.approx(exact, abs=1.5 / len(keys))
    if ranges.contain_all(least, greatest):
        assert ranges.part_of(least, greatest) == 1


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6), NUMBERS, NUMBERS)
def test_the_part_of_integers_around_0_that_ranges_cover(items, one, other):
    """As stored, they begin to differ where those below have ff after ff and those above 00."""
    least, greatest = min(one, other), max(one, other)
    numbers = range(least, greatest + 1)
    exact = sum(any(low <= number < high for low, high in items) for number in numbers)
    ranges = KeyRanges([(stored(1, low), stored(1, high)) for low, high in items])
    found = ranges.part_of(stored(1, least), stored(1, greatest))
    assert found == pytest.approx(exact / len(numbers), abs=1.5 / len(numbers))


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(KEYS_OF_STREAMS, KEYS_OF_STREAMS), max_size=6),
    st.tuples(KEYS_OF_STREAMS, KEYS_OF_STREAMS),
    KEYS_OF_STREAMS,
    KEYS_OF_STREAMS,
)
def test_more_ranges_cover_no_less(items, more, one, other):
    least, greatest = min(one, other), max(one, other)
    some = KeyRanges(items).part_of(least, greatest)
    assert 0 <= some <= 1
    assert some <= KeyRanges([*items, more]).part_of(least, greatest) * (1 + 1e-9)
    assert KeyRanges([*items, (b"", greatest + b"\0")]).part_of(least, greatest) == 1


def test_of_several_streams_those_count_that_are_covered_wholly():
    least, greatest = stored(3, 5), stored(6, 5)
    streams = [stream.to_bytes(2, "big") for stream in range(8)]
    for ranges, part in (
        ([(streams[4], streams[5])], 1 / 4),
        ([(streams[4], streams[7])], 3 / 4),
        ([(streams[0], stored(6, 5))], 3 / 4),
        ([(stored(3, 5), streams[4]), (streams[5], streams[6])], 2 / 4),
        ([(stored(3, 6), stored(4, 0)), (stored(5, 0), stored(5, 9))], 0),
    ):
        assert KeyRanges(ranges).part_of(least, greatest) == part


def test_the_part_of_long_and_of_short_keys_that_ranges_cover():
    def part_of(least, greatest):
        return ranges.part_of(b"\0\1" + least, b"\0\1" + greatest)

    items = [(b"", b"a"), (b"m", b"m" + b"\0" * 20), (b"x", b"zz")]
    ranges = KeyRanges([(b"\0\1" + low, b"\0\1" + high) for low, high in items])
    assert 0 < part_of(b"", b"b") < 1
    assert part_of(b"b", b"c") == 0
    assert part_of(b"m", b"m") == part_of(b"x", b"z") == 1
    assert 0 <= part_of(b"m" + b"\0" * 9, b"m" + b"\0" * 30) <= 1
    assert KeyRanges().part_of(b"a", b"b") == 0


def test_ranges_are_values():
    ranges = KeyRanges([(b"c", b"d"), (b"a", b"b"), (b"b", b"c"), (b"z", b"y")])
    assert ranges.items == ((b"a", b"d"),)
    assert ranges == KeyRanges([(b"a", b"d")])
    assert ranges != KeyRanges()
    assert ranges != ranges.items
    assert len({ranges, KeyRanges([(b"a", b"d")])}) == 1
    assert ranges.contain_all(b"a", b"cz")
    assert not ranges.contain_all(b"a", b"d")
    assert not KeyRanges([(b"a", b"b"), (b"c", b"d")]).contain_all(b"a", b"c")


def test_ranges_are_charged_while_they_live():
    budget = Budget(1 << 20)
    ranges = KeyRanges([(b"a", b"b")], budget)
    assert budget.usage()["memtable"] == ranges.nbytes > 0
    del ranges
    assert budget.usage()["memtable"] == 0
