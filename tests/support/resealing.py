"""Blocks of a table file with other content behind right checksums.

docs/design/disk-format.md has the bytes."""

import random
import struct

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.cython_ext.sstable.salvage import find_blocks

#: Kinds of blocks; the footer is none, but is damaged like one.
KINDS = {"row": 1, "key": 2, "index": 3, "filter": 4, "top": 5, "properties": 6, "edit": 7}
TRAILER = 16
FOOTER = 80


def blocks_of(data, kind):
    """(offset, size) of the blocks of a kind, by its name."""
    return [
        (offset, size) for offset, size, found in find_blocks(bytes(data)) if found == KINDS[kind]
    ]


def reseal(data, offset, size):
    """Give the block that lies there the checksum that fits its bytes."""
    payload, head = data[offset : offset + size - TRAILER], data[offset + size - TRAILER :][:8]
    parts = struct.pack("<Q8sQ", checksum(bytes(payload)), bytes(head), offset)
    data[offset + size - 8 : offset + size] = checksum(parts).to_bytes(8, "little")


def reseal_footer(data):
    data[-16:-8] = checksum(bytes(data[-FOOTER:-16])).to_bytes(8, "little")


class Damage:
    """Changes one block of a file in a random way, and makes its checksum right again."""

    def __init__(self, data, seed):
        self._data = data
        self._blocks = {kind: blocks_of(data, kind) for kind in KINDS}
        self._chance = random.Random(seed)

    def of(self, kind):
        """(changed file, offset of the block)."""
        data = bytearray(self._data)
        if kind == "footer":
            start = len(data) - FOOTER
            self._change(data, start, start + 64)
            reseal_footer(data)
            return bytes(data), start
        offset, size = self._chance.choice(self._blocks[kind])
        end = offset + size - TRAILER
        for _ in range(self._chance.choice([1, 1, 1, 2, 4])):
            if self._chance.random() < 0.15:
                self._change(data, end + 1, end + 8)  # codec, shuffled, size of what it decodes to
            else:
                self._change(data, offset, end)
        reseal(data, offset, size)
        return bytes(data), offset

    def _change(self, data, start, end):
        """Some bytes from start to end: counts and sizes mostly stand at the end."""
        chance = self._chance
        if start == end:
            return
        place = chance.randrange(start, end)
        if chance.random() < 0.5:
            place = max(start, end - chance.randrange(1, 40))
        width = min(chance.choice([1, 1, 4, 4, 8]), end - place)
        kind = chance.randrange(4)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            source = chance.randrange(start, end)
            piece = data[source : min(end, source + width * chance.randrange(1, 8))]
            data[place : min(end, place + len(piece))] = piece[: end - place]
        elif kind == 2:
            old = int.from_bytes(data[place : place + width], "little")
            new = old + chance.choice([-1, 1, -2, 2, 8, 16, 255])
            data[place : place + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
        else:
            values = [0, 1, (1 << 8 * width) - 1, 1 << (8 * width - 1), (1 << 8 * width) - 17]
            value = chance.choice([*values, chance.getrandbits(8 * width)])
            data[place : place + width] = value.to_bytes(width, "little")
