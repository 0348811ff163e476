"""Ranges of keys: brought into order, asked for a key, against a set of numbers."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cython_ext.budget import Budget
from cython_ext.key_ranges import KeyRanges

KEYS = st.binary(max_size=2)
RANGES = st.lists(st.tuples(KEYS, KEYS), max_size=8)


def covered(items, key):
    return any(low <= key < high for low, high in items)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(RANGES, RANGES, st.lists(KEYS, max_size=20))
def test_ranges_cover_what_each_of_them_covers(items, others, keys):
    ranges = KeyRanges(items)
    joined = ranges.joined(KeyRanges(others))
    for key in [*keys, *(bound for item in items for bound in item)]:
        assert ranges.contains(key) == covered(items, key)
        assert joined.contains(key) == covered(items + others, key)
    flat = [bound for item in joined.items for bound in item]
    assert flat == sorted(set(flat))


WORDS = st.integers(0, 3000).map(lambda number: b"key" + number.to_bytes(4, "big"))


@settings(max_examples=300, deadline=None, derandomize=True)
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


def test_the_part_of_long_and_of_short_keys_that_ranges_cover():
    ranges = KeyRanges([(b"", b"a"), (b"m", b"m" + b"\0" * 20), (b"x", b"zz")])
    assert 0 < ranges.part_of(b"", b"b") < 1
    assert ranges.part_of(b"b", b"c") == 0
    assert ranges.part_of(b"m", b"m") == ranges.part_of(b"x", b"z") == 1
    assert 0 <= ranges.part_of(b"m" + b"\0" * 9, b"m" + b"\0" * 30) <= 1
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
