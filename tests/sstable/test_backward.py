"""Backward sources give what forward ones give, from the last key to the first."""

import random
import time

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from lsmstate.cython_ext.iterators.backward_iter import BackwardMemtableSource, BackwardSstSource
from lsmstate.cython_ext.iterators.merging_iter import ChainSource, MergingSource
from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError
from support.examples import examples
from support.faults import encoded, filled, key_batch, memory, opened, row_batch, write_sst

#: Behind every key of a test.
BEHIND = b"\xff\xff\xff"

#: Stored with two bytes of the stream in front: around 8 and 16 bytes the comparison changes.
KEYS = st.sampled_from(
    [
        *(b"", b"\0" * 14, b"\0" * 15, b"a", b"ab", b"b" * 6, b"b" * 6 + b"\0", b"b" * 14),
        *(
            b"b" * 14 + b"\0",
            b"b" * 15,
            b"b" * 20,
            b"b" * 21,
            b"c",
            b"c\0",
            b"c" + b"\0" * 20,
            b"d",
        ),
    ]
)
SOURCE = st.tuples(
    st.dictionaries(KEYS, st.lists(st.binary(max_size=4), min_size=1, max_size=3)),
    st.sets(KEYS, max_size=2),
)


@settings(
    max_examples=examples(80),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sources=st.lists(SOURCE, max_size=5), on_disk=st.integers(0, 5), bound=KEYS)
def test_merging_backward_is_merging_reversed(tmp_path, sources, on_disk, bound):
    budget, cache = memory()
    forward, backward, bounded = [], [], []
    for number, (entries, deleted) in enumerate(sources):
        table = filled(budget, entries, deleted=tuple(sorted(deleted)))
        if number >= on_disk:
            forward.append(table.source())
            backward.append(BackwardMemtableSource(table))
            bounded.append(BackwardMemtableSource(table))
            continue
        path = str(tmp_path / f"{number}-{len(list(tmp_path.iterdir()))}")
        write_sst(path, budget, table.source())
        forward.append(SstSource(opened(path, cache)))
        backward.append(BackwardSstSource(opened(path, cache)))
        bounded.append(BackwardSstSource(opened(path, cache)))
    expected = MergingSource(forward).entries()[::-1]
    assert MergingSource(backward, reverse=True).entries(BEHIND) == expected
    first = b"\0\0" + bound
    found = MergingSource(bounded, reverse=True).entries(first)
    assert found == [entry for entry in expected if entry[0] < first]


def test_a_longer_key_comes_before_the_one_that_it_begins_with():
    """Descending: whichever of the sources has it, and whatever the lengths are."""
    budget, _ = memory()
    keys = [b"k" * size for size in range(40)] + [b"k" * 40 + b"\0" * size for size in range(3)]
    for turn in range(2):
        tables = [
            filled(budget, {key: [b"row"] for key in keys[i % 2 :: 2]}) for i in (turn, turn + 1)
        ]
        sources = [BackwardMemtableSource(table) for table in tables]
        found = MergingSource(sources, reverse=True).entries(BEHIND)
        assert [key[2:] for key, _, _ in found] == keys[::-1]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Several streams and partitions, and a key in the middle that spans key blocks."""
    budget, cache = memory()
    chance = random.Random(5)
    keys = sorted({chance.randbytes(chance.randrange(1, 6)) for _ in range(9_500)})
    table = Memtable(budget, 48 << 20)
    rows = [b"r%d" % number for number in range(len(keys))]
    assert table.append(key_batch(*keys), row_batch(*rows), 1, 0) == len(keys)
    table.append(key_batch(b"k", b"l", stream=3), row_batch(b"1", b"2"), 2, 0)
    wide = [b"%04d" % n + b"w" * 1200 for n in range(2500)]
    table.append(key_batch(*[b"huge"] * 2500), row_batch(*wide), 3, 0)
    path = str(tmp_path_factory.mktemp("backward") / "large")
    write_sst(path, budget, table.source(), block_bytes=1024)
    return budget, table, opened(path, cache)


@pytest.mark.parametrize("kind", ["memtable", "file"])
def test_a_large_table_backward(large, kind):
    _, table, sst = large
    forward = table.source() if kind == "memtable" else SstSource(sst)
    expected = forward.entries()[::-1]

    def made():
        return BackwardMemtableSource(table) if kind == "memtable" else BackwardSstSource(sst)

    assert made().entries(BEHIND) == expected
    keys = [key for key, _, _ in expected]
    source = made()
    for place in [0, 1, 2, 5, 8, 9, len(keys) // 2, len(keys) - 1]:
        # One source is sought in many times, to a key and to the place right behind it.
        assert source.entries(keys[place])[:3] == expected[place + 1 :][:3]
        assert source.entries(keys[place] + b"\0")[:3] == expected[place:][:3]
    huge = b"\0\0huge"
    at = keys.index(huge)
    assert [row[-1204:-1200] for row in expected[at][2]] == [b"%04d" % n for n in range(2500)]
    assert source.entries(huge)[0] == expected[at + 1]
    for bound in (b"\0\1", b"\0\3", b"\0\3k"):  # between streams
        assert source.entries(bound)[0] == expected[2]
    assert source.entries(b"") == []
    assert source.entries(keys[-1]) == []


def test_rows_may_be_left_unread(large):
    """Keys are right whether or not the rows before them were read, also those of a huge key."""
    budget, _, sst = large
    expected = [key for key, _, _ in SstSource(sst).entries()][::-1]
    # A source that resets all keys of a stream makes the merge leave the rows of others unread.
    resets = Memtable(budget, 32 << 20)
    resets.delete(key_batch(*[key[2:] for key in expected if key[:2] == b"\0\0"]), 9, 0)
    merged = MergingSource([BackwardSstSource(sst), BackwardMemtableSource(resets)], reverse=True)
    found = merged.entries(BEHIND)
    assert [key for key, _, _ in found] == expected
    assert sum(len(rows) for _, _, rows in found) == 2


def test_a_chain_backward_takes_its_files_from_the_last(tmp_path):
    budget, cache = memory()
    parts = [{b"a": [b"1"], b"c": [b"2"]}, {b"e": [b"3"]}, {b"g": [b"4"], b"i": [b"5"]}]
    for number, entries in enumerate(parts):
        write_sst(str(tmp_path / str(number)), budget, filled(budget, entries).source())
    opened_files = []

    def opener(number):
        opened_files.append(number)
        return BackwardSstSource(opened(str(tmp_path / str(number)), cache))

    def chain():
        return ChainSource([lambda n=n: opener(n) for n in (2, 1, 0)])

    everything = [
        (b"\0\0" + bytes([k]), 0, [encoded(bytes([v]))])
        for k, v in zip(b"igeca", b"54321", strict=True)
    ]
    for bound in (b"", b"a", b"b", b"e", b"f", b"g", b"h", b"z"):
        expected = [entry for entry in everything if entry[0] < b"\0\0" + bound]
        assert chain().entries(b"\0\0" + bound) == expected
    opened_files.clear()
    merged = MergingSource([chain()], reverse=True)
    merged.entries(BEHIND)
    assert opened_files == [2, 1, 0]


def test_a_damaged_key_block_is_an_error_backward_too(tmp_path):
    budget, cache = memory()
    entries = {b"%05d" % n: [b"row"] for n in range(3000)}
    path = tmp_path / "damaged"
    write_sst(str(path), budget, filled(budget, entries).source())
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="damaged"):
        BackwardSstSource(opened(str(path), cache)).entries(BEHIND)


def test_a_step_back_in_a_large_memtable_is_a_short_search():
    """200,000 steps; walks from the first key would be billions."""
    budget, _ = memory()
    chance = random.Random(8)
    table = Memtable(budget, 48 << 20)
    for sequence in range(20):
        keys = [chance.randbytes(8) for _ in range(10_000)]
        assert table.append(key_batch(*keys), row_batch(*keys), sequence, 0) == 10_000
    start = time.process_time()
    found = BackwardMemtableSource(table).entries(BEHIND)
    assert time.process_time() - start < 10
    assert [key for key, _, _ in found] == [key for key, _, _ in table.source().entries()][::-1]
