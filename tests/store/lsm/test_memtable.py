"""Memtable against a dict, with check() after each step."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.iterators.backward_iter import BackwardMemtableSource
from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.memtable.memtable import Memtable
from support.examples import examples
from support.faults import CODEC, encoded, filled, key_batch, memory, row_batch, stored
from support.sampling import each_value

RELAXED = settings(max_examples=examples(60), deadline=None, derandomize=True)

KEYS = st.one_of(
    st.binary(max_size=3),
    st.binary(min_size=7, max_size=10).map(lambda end: b"prefix" + end),  # ten bytes and beyond
    st.sampled_from([b"12345678", b"12345678\0", b"1234567", b"1234567\0", b"12345678\0\0"]),
)
BATCH = st.tuples(
    st.sampled_from(["append", "append", "append", "delete"]),
    st.integers(0, 3),
    st.lists(st.one_of(KEYS, st.none()), max_size=20),
)


def contents(model):
    return [
        (stream.to_bytes(2, "big") + key, flags, [encoded(row) for row in rows])
        for (stream, key), (flags, rows) in sorted(model.items())
    ]


@RELAXED
@given(st.lists(BATCH, max_size=12))
def test_random_batches_equal_a_dict(batches):
    budget, _ = memory()
    table = Memtable(budget, 8 << 20)
    model = {}
    number = 0
    for sequence, (what, stream, keys) in enumerate(batches, 1):
        batch = key_batch(*keys, stream=stream)
        if what == "append":
            rows = [b"%d" % (number + i) for i in range(len(keys))]
            number += len(keys)
            assert table.append(batch, row_batch(*rows), sequence, 0) == batch.n_valid
            for key, row in zip(keys, rows, strict=True):
                if key is not None:
                    flags, found = model.get((stream, key), (0, []))
                    model[stream, key] = (flags, [*found, row])
        else:
            assert table.delete(batch, sequence, 0) == batch.n_valid
            model.update({(stream, key): (1, []) for key in keys if key is not None})
        table.check()
        assert table.source().entries() == contents(model)
        assert table.keys == len(model)
        assert table.rows == sum(len(rows) for _, rows in model.values())
    for stream, key in model:
        start = stream.to_bytes(2, "big") + key
        assert table.source().entries(start) == [e for e in contents(model) if e[0] >= start]


def test_many_batches_of_sorted_and_scattered_keys():
    budget, _ = memory()
    table = Memtable(budget, 32 << 20)
    chance = random.Random(6)
    model = {}
    for sequence in range(1, 60):
        low = chance.randrange(5000)
        keys = [b"%05d" % chance.randrange(low, low + 500) for _ in range(100)]
        rows = [b"%d" % sequence] * 100
        table.append(key_batch(*keys), row_batch(*rows), sequence, 0)
        for key in keys:
            model.setdefault(key, []).append(rows[0])
    table.check()
    assert table.source().entries() == stored(model)
    assert (table.first_sequence, table.last_sequence) == (1, 59)


def test_two_streams_are_looked_up_with_one_batch_of_keys():
    """Each step may come when another thread has begun to look the keys up elsewhere."""
    budget, _ = memory()
    table = Memtable(budget, 32 << 20)
    table.append(key_batch(b"a", b"b"), row_batch(b"1", b"2"), 1, 0)
    keys = key_batch(b"a", b"b")
    first = Lookup(keys, 0, None, CODEC, budget, 0)
    second = Lookup(keys, 1, None, CODEC, budget, 0)
    for lookup in (first, second):
        lookup.search_memtable(table)
    assert first.count()[0].tolist() == [1, 1]
    assert second.count()[0].tolist() == [0, 0]


def test_keys_that_do_not_begin_as_those_of_the_first_batch():
    """What the keys of a page have in common is left out of the prefixes that are compared."""
    budget, _ = memory()
    table = Memtable(budget, 32 << 20)
    chance = random.Random(13)
    common = b"customer-0000"
    model = {}
    beginnings = [common, common, b"", b"a", b"customer", b"customer-00001", b"customer-1", b"z"]
    for sequence in range(1, 40):
        begin = common if sequence == 1 else chance.choice(beginnings)
        keys = [begin + b"%d" % chance.randrange(10**9) for _ in range(50)]
        keys += [] if sequence == 1 else [b"", common, common[:5], chance.choice(list(model))]
        rows = [b"%d-%d" % (sequence, i) for i in range(len(keys))]
        table.append(key_batch(*keys), row_batch(*rows), sequence, 0)
        for key, row in zip(keys, rows, strict=True):
            model.setdefault(key, []).append(row)
        table.check()
    assert table.source().entries() == stored(model)
    assert table.source().entries(b"\0\0" + common[:5])[0][0] == b"\0\0" + common[:5]


BEHIND = b"\xff" * 9
COMMON = b"a beginning that more keys share than fit into a page, by far: "


NAMES = {
    "eight bytes": lambda i: b"%08d" % i,
    "of several beginnings": lambda i: COMMON * (i % 7) + b"%d" % i,
    "zeros at the end": lambda i: b"%d" % (i // 100) + b"\0" * (i % 100),
}


@each_value(kind=NAMES, order=["ascending", "descending", "scattered"])
def test_trees_of_several_levels(kind, order):
    """With pages of 32 keys: three levels, whose pages split at their ends and in the middle."""
    budget, _ = memory()
    table = Memtable(budget, 64 << 20)
    chance, name = random.Random(8), NAMES[kind]
    numbers = list(range(6000))
    if order == "descending":
        numbers.reverse()
    elif order == "scattered":
        chance.shuffle(numbers)
    model = {}
    for sequence, start in enumerate(range(0, len(numbers), 97), 1):
        keys = [name(i) for i in numbers[start : start + 97]]
        keys += chance.sample(sorted(model), min(len(model), 5))
        rows = [b"%d-%d" % (sequence, i) for i in range(len(keys))]
        table.append(key_batch(*keys), row_batch(*rows), sequence, 0)
        for key, row in zip(keys, rows, strict=True):
            model.setdefault(key, []).append(row)
    table.check()
    expected = stored(model)
    assert table.source().entries() == expected
    assert BackwardMemtableSource(table).entries(BEHIND) == expected[::-1]
    for place in [0, 1, *chance.sample(range(len(expected)), 30), len(expected) - 1]:
        key = expected[place][0]
        assert table.source().entries(key) == expected[place:]
        behind = key + b"\0" * 100  # before all keys that do not begin with these zeros
        assert table.source().entries(behind) == [e for e in expected[place:] if e[0] >= behind]
        assert BackwardMemtableSource(table).entries(key) == expected[:place][::-1]
    assert table.source().entries(BEHIND) == []
    assert BackwardMemtableSource(table).entries(b"\0\0") == []


def test_ascending_keys_fill_their_pages():
    """Pages that split in the middle would stay half full."""

    def keys_in_a_table(keys):
        table = Memtable(memory()[0], 1 << 20)
        for sequence, start in enumerate(range(0, len(keys), 100), 1):
            batch = key_batch(*keys[start : start + 100])
            if table.delete(batch, sequence, 0) < 100:  # entries without rows
                break
        table.check()
        return len(table)

    ascending = [b"%09d" % i for i in range(30_000)]
    scattered = random.Random(3).sample(ascending, len(ascending))
    assert keys_in_a_table(ascending) > 1.05 * keys_in_a_table(scattered) > 10_000


def test_a_full_table_is_taken_up_again_where_it_stopped():
    """However often one batch fills a table: every row is in exactly one of them, in order."""
    budget, _ = memory()
    keys = [b"%03d" % (i * 7 % 300) for i in range(3000)]
    rows = [b"%04d" % i * 50 for i in range(3000)]
    batch, encoded_rows = key_batch(*keys), row_batch(*rows)
    place, tables = 0, []
    while place < batch.n_valid:
        table = Memtable(budget, 64 << 10)
        reached = table.append(batch, encoded_rows, 1, place)
        assert reached > place
        table.check()
        assert table.nbytes <= 2 * (64 << 10)
        place = reached
        tables.append(table)
    assert len(tables) > 5
    found = {}
    for table in tables:
        for key, _, some in table.source().entries():
            found.setdefault(key[2:], []).extend(some)
    assert found == {
        key: [encoded(row) for k, row in zip(keys, rows, strict=True) if k == key]
        for key in set(keys)
    }


def test_deletes_fill_a_table_too():
    budget, _ = memory()
    batch = key_batch(*[b"%09d" % i for i in range(20_000)])
    place, total = 0, 0
    while place < batch.n_valid:
        table = Memtable(budget, 256 << 10)
        reached = table.delete(batch, 1, place)
        assert reached > place
        table.check()
        total += len(table)
        place = reached
    assert total == 20_000
    assert all(flags == 1 and rows == [] for _, flags, rows in table.source().entries())


def test_no_memory_in_the_budget_stops_an_append_in_the_same_way():
    budget, _ = memory(1 << 20)
    table = Memtable(budget, 64 << 20)
    rows = row_batch(*[b"x" * 1000] * 3000)
    reached = table.append(key_batch(*[b"%d" % i for i in range(3000)]), rows, 1, 0)
    assert 500 < reached < 1100
    table.check()
    assert budget.total_bytes <= 1 << 20
    table.clear()
    assert budget.total_bytes == 0
    assert table.source().entries() == []
    # A table that was cleared takes rows again.
    assert table.append(key_batch(b"a"), row_batch(b"b"), 2, 0) == 1
    assert table.source().entries() == stored({b"a": [b"b"]})


def test_large_keys_and_rows():
    budget, _ = memory()
    entries = {
        b"k" * 70_000: [b"1"],
        b"k" * 70_000 + b"\0": [b"2", b""],
        b"k" * 69_999: [b"x" * 100_000],
    }
    table = filled(budget, entries)
    table.check()
    assert table.source().entries() == stored(entries)
    # A table without rows takes a row of any size.
    table = Memtable(budget, 64 << 10)
    assert table.append(key_batch(b"a"), row_batch(b"y" * 300_000), 1, 0) == 1
    assert table.append(key_batch(b"b"), row_batch(b"z"), 2, 0) in (0, 1)


def test_the_same_appends_make_the_same_table():
    def made():
        budget, _ = memory()
        chance = random.Random(9)
        table = Memtable(budget, 256 << 10)
        reached = []
        for sequence in range(40):
            keys = [chance.randbytes(chance.randrange(1, 20)) for _ in range(100)]
            rows = [chance.randbytes(chance.randrange(40)) for _ in keys]
            reached.append(table.append(key_batch(*keys), row_batch(*rows), sequence, 0))
        return reached, table.nbytes, table.keys, table.source().entries()

    first = made()
    assert first == made()
    assert min(first[0]) < 100  # it was full at some place


def test_another_number_of_rows_is_refused():
    budget, _ = memory()
    with pytest.raises(ValueError, match="2 keys for 1 rows"):
        Memtable(budget, 1 << 20).append(key_batch(b"a", b"b"), row_batch(b"r"), 1, 0)
