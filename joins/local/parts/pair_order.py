"""Which of two rows of one stream finds the other, however often a task ran.

Two rows of one micro-batch may be stored in two buckets. Each is then sent to the other's bucket to
look for partners there, and their pair must be found in one of them. Arrival is no order: the state
of a bucket may come from another run of the tasks than its neighbour's. So the row with the greater
content hash finds the other. Rows of one hash are equal, and lie in one bucket.
"""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.rows.row_codec import RowCodec

#: Per row the two halves of its hash.
ContentHashes = npt.NDArray[np.uint64]

HASH_BYTES = 16


def content_hashes(rows: pa.RecordBatch, codec: RowCodec) -> ContentHashes:
    """Of each row 128 bits of all it holds, the same in every process: BLAKE2b of its encoding.

    Returns:
        An array of two columns, the upper half first.

    Cost:
        A Python object and about a microsecond a row.
    """
    digests = (
        blake2b(row, digest_size=HASH_BYTES).digest() for row in codec.encode(rows).to_pylist()
    )
    return hashes_of(b"".join(digests))


def hashes_of(digests: bytes) -> ContentHashes:
    """Digests, one after the other, as numbers that compare as they do."""
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def digests_of(hashes: ContentHashes) -> pa.Array:
    """The hashes as a column of 16 bytes."""
    data = pa.py_buffer(hashes.astype(">u8").tobytes())
    return pa.Array.from_buffers(pa.binary(HASH_BYTES), len(hashes), [None, data])


def is_greater(hashes: ContentHashes, others: ContentHashes) -> npt.NDArray[np.bool_]:
    """Element by element, with NumPy's broadcasting of all but the last axis."""
    upper, lower = hashes[..., 0], hashes[..., 1]
    other_upper, other_lower = others[..., 0], others[..., 1]
    return np.asarray((upper > other_upper) | ((upper == other_upper) & (lower > other_lower)))
