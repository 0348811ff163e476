"""The router of a join with one common key: a row goes to the bucket of its key's hash.

The function is pinned by the checkpoint format: the state of a key lies in the bucket that this
function named when the key was first seen. Changing it orphans state.
"""

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError

#: Bucket of a row that takes part in no equi-join, because its key holds a null.
NO_BUCKET = -1

_HALF = np.uint64(32)


def bucket_of(keys: KeyBatch, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket, 0 to ``buckets`` - 1, of each key; ``NO_BUCKET`` for keys that hold a null.

    Cost: a few vector operations per batch.
    """
    return bucket_of_hashes(keys.hashes, keys.valid, buckets)


def bucket_of_hashes(
    hashes: npt.NDArray[np.uint64], valid: npt.NDArray[np.bool_], buckets: int
) -> npt.NDArray[np.int64]:
    """As ``bucket_of``, on the hashes themselves.

    The hash is mixed once more (SplitMix64's finalizer), because a bucket's filters use the same
    hash: without it every key of a bucket would share its upper bits. The upper half of the
    product with ``buckets`` then spreads evenly, whatever ``buckets`` is.
    """
    if not 1 <= buckets <= 1 << 20:
        raise InvalidArgumentError(f"buckets={buckets!r}: must lie between 1 and {1 << 20}")
    mixed = hashes.astype(np.uint64, copy=True)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    found = (((mixed >> _HALF) * np.uint64(buckets)) >> _HALF).astype(np.int64)
    return np.where(valid, found, NO_BUCKET)


def overlapping(bucket: int, buckets: int, others: int) -> range:
    """Of ``others`` buckets those that may hold a key which is in ``bucket`` of ``buckets``: each
    is a range of the mixed hash's upper half."""
    first = -(-(bucket << 32) // buckets)
    last = -(-((bucket + 1) << 32) // buckets) - 1
    return range(first * others >> 32, (last * others >> 32) + 1)
