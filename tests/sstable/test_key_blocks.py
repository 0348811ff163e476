"""Which key blocks of a table file are packed, and how sorted batches are looked up in them."""

import os
import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.sstable.sst_source import SstSource
from support.examples import examples
from support.faults import CODEC, filled, key_batch, memory, opened, stored, write_sst


@pytest.mark.parametrize("kind", ["text", "random", "random, then text"])
def test_key_blocks_are_packed_where_that_makes_them_smaller(tmp_path, kind):
    """LZ4 is tried on one block in 16, so a file may begin with keys of which it makes nothing."""
    chance = random.Random(11)
    made = {
        "text": lambda i: b"%05d" % (i * 7919 % 90_000) + b"item in stock; " * 6,
        "random": lambda i: b"%05d" % i + chance.randbytes(90),
    }
    kinds = kind.split(", then ")
    keys = {bytes([n]) + made[name](i): [b""] for n, name in enumerate(kinds) for i in range(600)}
    sizes = {}
    for codec in ("lz4", "none"):
        budget, cache = memory()
        path = str(tmp_path / codec)
        write_sst(path, budget, filled(budget, keys).source(), codec=codec, filter_bits=0)
        sizes[codec] = os.path.getsize(path)
        assert SstSource(opened(path, cache)).entries() == stored(keys)
    assert 1 - sizes["lz4"] / sizes["none"] == pytest.approx(
        {"text": 0.75, "random": 0.1, "random, then text": 0.4}[kind], abs=0.1
    )


#: What keys begin with: where a block has some of one and some of another, they share nothing.
#: Some differ in front and nowhere else.
NAME = b"ustomer-0000000000"
PREFIXES = (b"", b"a", b"c" + NAME, b"c" + NAME + b"\x00", b"d" + NAME, b"\xff" * 9)


def some_keys(chance: random.Random, counts: dict[bytes, int]) -> set[bytes]:
    return {
        prefix + chance.randrange(1, 2000).to_bytes(2, "big").lstrip(b"\x00")
        for prefix, count in counts.items()
        for _ in range(count)
    }


def near(key: bytes, chance: random.Random) -> bytes:
    """The key, or one that is not far from it in the order of keys."""
    last = key[-1]
    others = (key + b"\x00", key[:-1], key[:-1] + bytes([last ^ 1]), key[:-3] + b"\xff", key)
    return chance.choice(others) or key


@settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.randoms(use_true_random=False),
    st.dictionaries(
        st.sampled_from(PREFIXES), st.one_of(st.integers(1, 6), st.integers(1, 600)), min_size=1
    ),
    st.integers(1, 900),
)
def test_sorted_batches_find_what_is_there(tmp_path, chance, counts, asked):
    """A search begins where the one before ended, in blocks and in the pages of a memtable: keys
    may be dense or sparse, the same again, or lie before, between and behind those stored."""
    keys = some_keys(chance, counts)
    wanted = sorted(
        [near(key, chance) for key in chance.choices(sorted(keys), k=asked)]
        + list(some_keys(chance, dict.fromkeys(PREFIXES, asked // 16)))
    )
    assert_found(str(tmp_path / f"{chance.getrandbits(64):x}"), keys, wanted)


@pytest.mark.parametrize("others", range(1, 8))
@pytest.mark.parametrize("front", [b"d", b"\xff"])
def test_keys_that_differ_in_front_and_nowhere_else(tmp_path, front, others):
    """What all keys of a block begin with is not looked at again and again; but a block's last
    entries may begin otherwise, and so may keys that are not there."""
    keys = {b"c" + NAME + bytes([i]) for i in range(200)}
    keys |= {front + NAME + bytes([i]) for i in range(others)}
    wanted = [letter + NAME + bytes([i]) for letter in (b"b", b"c", b"d") for i in range(256)]
    for step in (1, 7, 256):
        assert_found(str(tmp_path / f"every {step}"), keys, wanted[step - 1 :: step])
    assert_found(str(tmp_path / "behind"), keys, wanted[512:])


def assert_found(path: str, keys: set[bytes], wanted: list[bytes]) -> None:
    """Of the sorted keys wanted those are found, in a file and in a memtable, that are there."""
    expected = [int(key in keys) for key in wanted]
    budget, cache = memory()
    memtable = filled(budget, {key: [b"row"] for key in keys})
    write_sst(path, budget, memtable.source(), filter_bits=0)
    for tables, memtables in ([[opened(path, cache)]], []), ([], [memtable]):
        lookup = Lookup(key_batch(*wanted), 0, None, CODEC, budget, len(tables))
        for run in tables:
            lookup.search_run(run)
        for searched in memtables:
            lookup.search_memtable(searched)
        rows, _ = lookup.count()
        assert np.array_equal(rows, expected)
    os.remove(path)
