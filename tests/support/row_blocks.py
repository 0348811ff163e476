"""The row blocks of a table file, and the codecs that their trailers name."""

from lsmstate.cython_ext.sstable.salvage import block_bytes, find_blocks

ROW_BLOCK = 1
LZ4, PLANES = 1, 3


def row_codecs(path):
    """Of the row blocks of a file, as their trailers say."""
    data = path.read_bytes()
    return {
        data[offset + size - 15]
        for offset, size, kind in find_blocks(data)
        if kind == ROW_BLOCK and block_bytes(data, offset, size)
    }
