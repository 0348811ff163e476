"""The content of rows as a hash: what says where a row goes that no key says."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.cython_ext.rows.row_codec import RowCodec

Hashes = npt.NDArray[np.uint64]


def content_hashes(rows: pa.RecordBatch, codec: RowCodec) -> Hashes:
    """Of each row a hash of all it holds, the same in every process: XXH3 of its encoding.

    Cost: a Python object per row; 0.6 us for 20 columns. Memory: the encoded rows.
    """
    encoded = codec.encode(rows).to_pylist()
    return np.fromiter(map(checksum, encoded), np.uint64, len(encoded))
