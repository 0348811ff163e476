"""Places in a table file that its blocks name with right checksums, and where nothing lies."""

import struct

import pytest
from faults import filled, memory, opened, write_sst
from test_sst import probed

from cython_ext.codec import checksum
from cython_ext.salvage import find_blocks
from cython_ext.sst_source import SstSource
from lsmstate.errors import CorruptionError

INDEX_BLOCK = 3
TRAILER = 16


def resealed(data, offset, size):
    """The block with the checksum that fits its bytes, as FORMAT.md has it."""
    payload, head = data[offset : offset + size - TRAILER], data[offset + size - TRAILER :][:8]
    parts = struct.pack("<Q8sQ", checksum(bytes(payload)), bytes(head), offset)
    data[offset + size - 8 : offset + size] = checksum(parts).to_bytes(8, "little")


@pytest.mark.parametrize("before_wrap", [1, 8, 500])
def test_a_place_that_ends_behind_64_bits_is_refused(tmp_path, before_wrap):
    """Its end would wrap around to one that lies in what was read ahead."""
    budget, cache = memory()
    entries = {number.to_bytes(4, "big"): [bytes(100)] for number in range(200)}
    path = tmp_path / "sst"
    write_sst(str(path), budget, filled(budget, entries).source(), codec="none")
    data = bytearray(path.read_bytes())
    place = (1 << 64) - before_wrap
    found = find_blocks(bytes(data))
    (block,) = [(offset, size) for offset, size, kind in found if kind == INDEX_BLOCK]
    end = sum(block) - TRAILER
    count = int.from_bytes(data[end - 4 : end], "little")
    last = block[0] + int.from_bytes(data[end - 8 : end - 4], "little")
    assert count > 1
    key_size = int.from_bytes(data[last : last + 4], "little")
    data[last + 4 + key_size : last + 12 + key_size] = place.to_bytes(8, "little")
    resealed(data, *block)
    path.write_bytes(data)

    sst = opened(str(path), cache)
    for read in (SstSource(sst).entries, lambda: probed(budget, [[sst]], sorted(entries))):
        with pytest.raises(CorruptionError, match="key block is damaged") as caught:
            read()
        assert caught.value.offset == place
