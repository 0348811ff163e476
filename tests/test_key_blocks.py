"""Which key blocks of a table file are packed."""

import os
import random

import pytest
from faults import filled, memory, opened, stored, write_sst

from cython_ext.sst_source import SstSource


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
