"""How large a row and a batch may be: huge rows are refused, huge batches cut into parts."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cython_ext.key_codec import KeyBatch
from lsmstate.arrow_sizes import row_sizes
from lsmstate.errors import MemoryLimitError
from lsmstate.options import KIB, Options


def check_row_sizes(rows: pa.RecordBatch, options: Options) -> None:
    """Refuse a row over a quarter of the cap before anything of its batch is stored."""
    limit = options.memory_bytes // 4
    if rows.nbytes > limit and rows.num_rows:
        for position in np.flatnonzero(row_sizes(rows) > limit):
            check_largest_row(rows.slice(int(position), 1).nbytes, options)


def check_largest_row(size: int, options: Options) -> None:
    """MemoryLimitError if a row of so many bytes is larger than a quarter of the cap."""
    limit = options.memory_bytes // 4
    if size > limit:
        raise MemoryLimitError(
            f"a row of {size} bytes is larger than a quarter of the memory cap ({limit} "
            f"bytes); raise memory_bytes to {4 * size} or more"
        )


def part_bytes(options: Options) -> int:
    """Bytes of rows that are encoded at a time."""
    return max(256 * KIB, options.memory_bytes // 16)


def parts_of(
    rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch, options: Options
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | KeyBatch]]:
    """The batch in parts of a bounded number of bytes; whole if it is small, as it should."""
    most = part_bytes(options)
    if rows.nbytes <= most:
        if rows.num_rows:
            yield rows, keys
        return
    width = max(1, rows.num_rows * most // rows.nbytes)
    for start in range(0, rows.num_rows, width):
        part = rows.slice(start, width)
        if isinstance(keys, KeyBatch):
            yield part, keys.take(np.arange(start, start + part.num_rows))
        else:
            yield part, keys.slice(start, width)
