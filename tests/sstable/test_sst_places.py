"""Places in a table file that its blocks name with right checksums, and where nothing lies."""

import pytest

from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError
from support.faults import filled, memory, opened, write_sst
from support.resealing import TRAILER, blocks_of, reseal
from support.sst_reads import probed


@pytest.mark.parametrize("before_wrap", [1, 8, 500])
def test_a_place_that_ends_behind_64_bits_is_refused(tmp_path, before_wrap):
    """Its end would wrap around to one that lies in what was read ahead."""
    budget, cache = memory()
    entries = {number.to_bytes(4, "big"): [bytes(100)] for number in range(200)}
    path = tmp_path / "sst"
    write_sst(str(path), budget, filled(budget, entries).source(), codec="none")
    data = bytearray(path.read_bytes())
    place = (1 << 64) - before_wrap
    (block,) = blocks_of(data, "index")
    end = sum(block) - TRAILER
    count = int.from_bytes(data[end - 4 : end], "little")
    last = block[0] + int.from_bytes(data[end - 8 : end - 4], "little")
    assert count > 1
    key_size = int.from_bytes(data[last : last + 4], "little")
    data[last + 4 + key_size : last + 12 + key_size] = place.to_bytes(8, "little")
    reseal(data, *block)
    path.write_bytes(data)

    sst = opened(str(path), cache)
    for read in (SstSource(sst).entries, lambda: probed(budget, [[sst]], sorted(entries))):
        with pytest.raises(CorruptionError, match="key block is damaged") as caught:
            read()
        assert caught.value.offset == place
