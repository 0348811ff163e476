"""Compression and checksums."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.base.compression import checksum, codec_number, packed, unpacked
from support.examples import examples

RELAXED = settings(max_examples=examples(100), deadline=None, derandomize=True)
DATA = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=5), st.integers(1, 5000)).map(lambda t: t[0] * t[1]),
)


@RELAXED
@given(DATA, st.sampled_from(["lz4", "zstd"]))
def test_what_shrinks_comes_back(data, codec):
    small = packed(data, codec)
    if small is None:
        return
    assert len(small) < len(data)
    assert unpacked(small, codec, len(data)) == data
    assert unpacked(small, codec, len(data) + 1) is None
    assert unpacked(small, codec, len(data) - 1) is None
    assert unpacked(small[:-1], codec, len(data)) != data


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_repetition_shrinks_and_noise_does_not(codec):
    assert len(packed(b"abcd" * 10_000, codec)) < 1000
    assert packed(random.Random(1).randbytes(40_000), codec) is None
    assert packed(b"", codec) is None


def test_none_copies():
    assert packed(b"x" * 1000, "none") is None
    assert unpacked(b"abc", "none", 3) == b"abc"
    assert unpacked(b"abc", "none", 4) is None


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_damage_never_leaves_the_buffer(codec):
    """Whatever comes out, it has the asked size or is refused; a debugger would see overruns."""
    chance = random.Random(2)
    data = b"".join(b"%05d " % (i % 97) for i in range(2000))
    small = packed(data, codec)
    for _ in range(500):
        wrong = bytearray(small)
        for _ in range(chance.randrange(1, 4)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        found = unpacked(bytes(wrong), codec, len(data))
        assert found is None or len(found) == len(data)
        noise = unpacked(chance.randbytes(50), codec, 1000)
        assert noise is None or len(noise) == 1000


def test_checksums_are_xxh3():
    """Published values: XXH3_64bits of nothing, and seed 0."""
    assert checksum(b"") == 0x2D06800538D394C2
    assert checksum(b"a") != checksum(b"b")
    assert checksum(memoryview(b"xaby")[1:3]) == checksum(b"ab")


def test_numbers_on_disk_stay():
    assert [codec_number(name) for name in ("none", "lz4", "zstd")] == [0, 1, 2]
    with pytest.raises(KeyError):
        codec_number("snappy")
