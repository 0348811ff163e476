"""Table files of which one bit is flipped: their checksums no longer fit."""

from support.resealing import blocks_of


def damage(path, kind="row"):
    """Flip a bit in the middle of the first block of a kind."""
    data = bytearray(path.read_bytes())
    offset, size = blocks_of(data, kind)[0]
    data[offset + size // 2] ^= 1
    path.write_bytes(data)


def spoil_footer(path):
    data = bytearray(path.read_bytes())
    data[-70] ^= 1
    path.write_bytes(data)
