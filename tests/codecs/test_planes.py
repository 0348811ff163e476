"""Packed byte planes, alone and in the row blocks of a file."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.rows.bit_planes import packed, unpacked
from support.examples import examples
from support.faults import filled, memory, opened, write_sst
from support.row_blocks import LZ4, PLANES, row_codecs
from support.sst_reads import probed

RELAXED = settings(max_examples=examples(200), deadline=None, derandomize=True)
SIZES = st.sampled_from([1, 2, 7, 8, 9, 23, 31, 32, 33, 40, 64, 96, 131])


@st.composite
def planes(draw):
    """(size, planes): each differs in some low bits, and not always in the highest of them."""
    size = draw(SIZES)
    chance = random.Random(draw(st.integers(0, 1000)))
    masks = draw(st.lists(st.sampled_from([0, 1, 2, 3, 6, 15, 16, 31, 63, 127, 255]), max_size=9))
    found = []
    for mask in masks:
        shared = chance.randrange(256) & ~mask
        found.append(bytes(shared | chance.randrange(256) & mask for _ in range(size)))
    return size, found


@RELAXED
@given(planes())
def test_what_is_packed_comes_back(given_planes):
    size, wanted = given_planes
    small = packed(b"".join(wanted), size)
    assert len(small) <= (len(wanted) + 1) // 2 + size * len(wanted)
    assert unpacked(small, len(wanted), size) == b"".join(wanted)
    assert unpacked(small + b"x", len(wanted), size) is None
    if small:
        assert unpacked(small[:-1], len(wanted), size) is None


def test_a_plane_takes_the_bits_in_which_it_differs():
    chance = random.Random(3)
    for bits in range(9):
        plane = bytes([1 << bits >> 1, 0] + [chance.randrange(1 << bits) for _ in range(62)])
        assert len(packed(plane, 64)) == 1 + (64 if bits > 6 else 1 + 8 * bits)


def test_damage_never_leaves_the_buffer():
    """Whatever comes out, it has the asked size or is refused; a debugger would see overruns."""
    chance = random.Random(2)
    for size in (32, 45):
        small = packed(
            b"".join(bytes([i % 5 * j % 64 for i in range(size)]) for j in range(20)), size
        )
        for _ in range(500):
            wrong = bytearray(small)
            for _ in range(chance.randrange(1, 4)):
                wrong[chance.randrange(len(wrong))] = chance.randrange(256)
            found = unpacked(bytes(wrong), 20, size)
            assert found is None or len(found) == 20 * size
            assert unpacked(chance.randbytes(9), 20, size) is None


@pytest.mark.parametrize("width", [2, 21, 88, 140, 250])
@pytest.mark.parametrize("alike", [True, False])
def test_row_blocks_are_packed_as_what_is_smaller(tmp_path, width, alike):
    """Noise that repeats in every byte of a row is LZ4's; numbers are better as planes."""
    budget, cache = memory()
    chance = random.Random(width)
    path = tmp_path / "sst"

    def row():
        if alike:
            return bytes([chance.randrange(256)]) * width
        return chance.randrange(1 << (3 * width)).to_bytes(width, "little")

    entries = {number.to_bytes(4, "big"): [row() for _ in range(5)] for number in range(300)}
    writing = memory()[0]
    write_sst(str(path), writing, filled(writing, entries).source(), block_bytes=8192, codec="lz4")
    if width > 2:
        assert row_codecs(path) == {LZ4 if alike else PLANES}
    keys = sorted(entries)
    sst = opened(str(path), cache)
    for asked in (keys[::7], keys, keys):
        assert probed(budget, [[sst]], asked) == [entries[key] for key in asked]
