"""Ranges of keys: brought into order, asked for a key, against a set of numbers."""

import hypothesis.strategies as st
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
