"""Keys of kilobytes: their index stays small, what parts two blocks is no key, too large ones are
refused."""

import bisect
import os
import random
import re
import subprocess
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from lsmstate import Expiry, Mutation, Options, StreamSchema, open_store
from lsmstate.cython_ext.iterators.backward_iter import BackwardSstSource
from lsmstate.cython_ext.sstable.sst_check import layout, verify
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError, MemoryLimitError
from lsmstate.options import KIB, MIB
from lsmstate.store_base.key_limits import largest_key_bytes
from support.examples import examples
from support.faults import filled, memory, opened, stored, write_sst
from support.long_keys import KEY, ROWS, STREAM, batches, keys_like, rows_and_keys
from support.paths import ROOT, TESTS
from support.resealing import blocks_of, reseal
from support.sampling import each_value
from support.sst_reads import probed

SHAPES = ("random", "alike", "pairs", "halves")


GROWTH_CHILD = """
import random, sys
import psutil
from support.long_keys import STREAM, batches, keys_like, rows_and_keys
from lsmstate import Options, open_store
directory, size, cap, total, per, shape = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]

def resident():
    return psutil.Process().memory_info().rss

options = Options(memory_bytes=cap)
with open_store(directory, [STREAM], options=options) as store:
    store.append("s", *rows_and_keys([b"first"]))
    before, worst, count = resident(), 0, 0
    for keys in batches(shape, size, total, per):
        store.append("s", *rows_and_keys(keys))
        worst, count = max(worst, resident()), count + len(keys)
    store.compact()
    worst = max(worst, resident())
with open_store(directory, [STREAM], options=options) as store:
    found = 0
    for keys in batches(shape, size, total, per):
        found += int(store.probe("s", rows_and_keys(keys)[1]).counts.sum())
        worst = max(worst, resident())
    scanned = sum(piece.num_rows for piece in store.scan("s"))
    worst = max(worst, resident())
    print(worst - before, store.stats().peak_memory_bytes, count, found, scanned)
"""


# The files --------------------------------------------------------------------------------


@each_value(shape=SHAPES, size=[3000, 10_000])
def test_index_blocks_of_long_keys_stay_small(tmp_path, shape, size):
    budget, cache = memory()
    keys = keys_like(shape, size, 1200, random.Random(1))
    source = filled(budget, {key: [b"r"] for key in keys}).source()
    _, facts = write_sst(str(tmp_path / "sst"), budget, source, codec="none", block_bytes=8 * KIB)
    assert (facts["min_key"], facts["max_key"]) == (b"\0\0" + min(keys), b"\0\0" + max(keys))
    sst = opened(str(tmp_path / "sst"), cache)
    found = layout(sst)
    largest = max(64 * KIB, 16 * size) + size
    for _, block_bytes in blocks_of((tmp_path / "sst").read_bytes(), "index"):
        assert block_bytes <= largest + 16 * KIB
    assert sst.index_bytes < sum(map(len, keys)) // 25
    if shape == "random":
        assert found["index_bytes"] < 60 * 1200
    assert verify(sst) == {"keys": 1200, "rows": 1200}


@pytest.mark.parametrize("shape", SHAPES)
def test_long_keys_are_found_from_both_sides(tmp_path, shape):
    budget, cache = memory()
    chance = random.Random(2)
    keys = sorted(keys_like(shape, 5000, 300, chance))
    entries = {key: [b"%d" % i] * (1 + i % 3) for i, key in enumerate(keys)}
    write_sst(str(tmp_path / "sst"), budget, filled(budget, entries).source())
    sst = opened(str(tmp_path / "sst"), cache)
    expected = stored(entries)
    assert SstSource(sst).entries() == expected
    assert BackwardSstSource(sst).entries(b"\xff\xff\xff") == expected[::-1]
    asked = [*keys, *(key[:-1] for key in keys), *(key[:4] for key in keys), b"", b"\xff" * 9]
    answers = probed(budget, [[sst]], asked)
    assert answers == [entries.get(key, []) for key in asked]
    for key in chance.sample(asked, 60):
        place = bisect.bisect_left(keys, key)
        assert SstSource(sst).entries(b"\0\0" + key)[:2] == expected[place : place + 2]
        assert BackwardSstSource(sst).entries(b"\0\0" + key)[:2] == expected[:place][::-1][:2]


@settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    keys=st.sets(st.text("ab\0", min_size=1, max_size=5), min_size=1, max_size=40),
    rows=st.sampled_from([1, 30]),
)
def test_seeking_between_any_two_blocks(tmp_path, keys, rows):
    """A key may be greater than all of a block and still not greater than what parts it from the
    next one."""
    budget, cache = memory()
    # Blocks of two or three keys, some of which are the beginnings of others.
    entries = {key.encode() * 60: [b"r" * 40] * rows for key in keys}
    path = str(tmp_path / f"{len(list(tmp_path.iterdir()))}")
    write_sst(path, budget, filled(budget, entries).source())
    sst = opened(path, cache)
    verify(sst)
    expected = stored(entries)
    whole = [b"\0\0" + key for key in sorted(entries)]
    for key in whole:
        for sought in (key, key + b"\0", key[:-1], key[:-1] + b"\xff", key[:20], key[:20] + b"c"):
            place = bisect.bisect_left(whole, sought)
            assert SstSource(sst).entries(sought) == expected[place:]
            assert BackwardSstSource(sst).entries(sought) == expected[:place][::-1]
    asked = [key[2:-1] + end for key in whole for end in (b"", b"\xff", key[-1:])]
    assert probed(budget, [[sst]], asked) == [entries.get(key, []) for key in asked]


def test_a_long_key_with_many_rows_stands_in_the_index_a_few_times(tmp_path):
    budget, cache = memory(256 * MIB)
    entries = {b"a": [b"first"], b"k" * 5000: [b"r" * 600] * 9000, b"z": [b"last"]}
    source = filled(budget, entries, limit=128 * MIB).source()
    write_sst(str(tmp_path / "sst"), budget, source, codec="none")
    sst = opened(str(tmp_path / "sst"), cache)
    assert layout(sst)["index_bytes"] < 4 * 5000
    verify(sst)
    assert SstSource(sst).entries() == stored(entries)


@pytest.mark.parametrize(("parting", "is_right"), [("kc", True), ("kb", False), ("ke", False)])
def test_verify_holds_separators_against_the_keys(tmp_path, parting, is_right):
    """What parts two blocks as well is as good; by anything else keys would be missed."""
    budget, cache = memory()
    entries = {f"{front}{i}".encode() * 20: [b"r"] for front in ("kb", "kd") for i in (1, 2)}
    path = tmp_path / "sst"
    write_sst(str(path), budget, filled(budget, entries).source(), block_bytes=150, codec="none")
    data = bytearray(path.read_bytes())
    ((offset, size),) = blocks_of(data, "index")
    place = data.index(b"\x04\0\0\0\0\0kd", offset, offset + size) + 6
    data[place : place + 2] = parting.encode()
    reseal(data, offset, size)
    path.write_bytes(data)
    sst = opened(str(path), cache)
    if is_right:
        verify(sst)
        assert SstSource(sst).entries(b"\0\0kb9") == stored(entries)[2:]
        return
    with pytest.raises(CorruptionError, match="index block is damaged"):
        verify(sst)


# The store --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "total_mib", "per", "shape"),
    [
        (3000, 16, 5, "random"),
        (8000, 16, 20, "pairs"),
        *(
            pytest.param(8000, 16, 20, shape, marks=pytest.mark.stress)
            for shape in ("random", "alike", "halves")
        ),
    ],
)
def test_a_store_of_long_keys_keeps_the_cap(tmp_path, size, total_mib, per, shape):
    cap = 8 * MIB
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"}
    asked = [str(tmp_path), *map(str, (size, cap, total_mib * MIB, per)), shape]
    done = subprocess.run(
        [sys.executable, "-c", GROWTH_CHILD, *asked],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown, peak, count, found, scanned = map(int, done.stdout.split())
    assert (found, scanned) == (count, count + 1)
    assert peak <= cap
    assert grown <= cap + 64 * MIB


def test_a_file_ends_where_its_top_index_is_large(tmp_path):
    cap = 8 * MIB
    with open_store(str(tmp_path), [STREAM], options=Options(memory_bytes=cap)) as store:
        for keys in batches("halves", 8000, 12 * MIB, 20):
            store.append("s", *rows_and_keys(keys))
        store.compact()
        _, cache = memory()
        tables = [opened(str(path), cache) for path in tmp_path.glob("*.sst")]
        assert len(tables) > 3
        assert max(table.index_bytes for table in tables) <= cap // 64 + 32 * KIB


def largest_fitting(cap):
    """Bytes of a binary key that is just small enough: encoded there are 2 for the stream and 2
    that end it."""
    return largest_key_bytes(cap) - 4


def write_largest(store, kind, key):
    """One write of the kind, with a key of so many bytes after a short one."""
    rows, keys = rows_and_keys([b"short", key])
    if kind == "append in parts":
        rows, keys = rows_and_keys([*[b"short"] * 200_000, key])
        store.append("s", rows, keys)
    elif kind in ("append", "put", "retract"):
        getattr(store, kind)("s", rows, keys)
    elif kind == "delete":
        store.delete("s", keys)
    elif kind == "low":
        store.delete_range("s", low=(key,))
    elif kind == "high":
        store.delete_range("s", high=(key,))
    else:
        first = Mutation("delete", "s", keys.slice(0, 1))
        store.write([first, Mutation("append", "s", keys, rows)])


KINDS = ("append", "append in parts", "put", "delete", "low", "high", "several")


@each_value(kind=[*KINDS, "retract"], expiry=[None, Expiry("v", 1000)])
def test_a_key_larger_than_its_share_is_refused_and_nothing_changes(tmp_path, kind, expiry):
    cap = 6 * MIB
    stream = StreamSchema("s", KEY, ROWS, expiry)
    with open_store(str(tmp_path), [stream], options=Options(memory_bytes=cap)) as store:
        store.append("s", *rows_and_keys([b"short", b"z"]))
        before, logged = store.stats().counters, sorted(tmp_path.rglob("changelog-*"))
        sizes = [path.stat().st_size for path in logged]
        with pytest.raises(MemoryLimitError) as caught:
            write_largest(store, kind, b"k" * (largest_fitting(cap) + 1))
        size = largest_key_bytes(cap) + 1
        assert f"a key of {size} encoded bytes" in str(caught.value)
        assert f"larger than this memory cap allows ({size - 1} bytes)" in str(caught.value)
        (needed,) = re.findall(r"raise memory_bytes to (\d+) or more", str(caught.value))
        assert largest_key_bytes(int(needed)) >= size
        assert [path.stat().st_size for path in logged] == sizes
        assert store.stats().counters == before
        _, keys = rows_and_keys([b"short", b"z", b"k" * 2 * MIB])
        assert store.probe("s", keys).counts.tolist() == [1, 1, 0]
        write_largest(store, kind, b"k" * largest_fitting(cap))
        store.commit()
        assert store.stats().peak_memory_bytes <= cap


def test_keys_written_under_a_larger_cap_are_read_under_a_smaller_one(tmp_path):
    """What is stored, or in the changelog, counts no more as a write."""
    rows, keys = rows_and_keys([b"a" * 30_000, b"b" * 30_000])
    with open_store(str(tmp_path), [STREAM], options=Options(memory_bytes=64 * MIB)) as store:
        store.append("s", rows, keys)
        store.commit()
        store.append("s", rows, keys)
    with open_store(str(tmp_path), [STREAM], options=Options(memory_bytes=8 * MIB)) as store:
        assert store.probe("s", keys).counts.tolist() == [2, 2]
        store.compact()
        assert store.probe("s", keys).counts.tolist() == [2, 2]
