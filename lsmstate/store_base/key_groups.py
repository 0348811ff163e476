"""Rows by key: which rows of a batch have the same key, as the store compares keys."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.store import Positions
from lsmstate.store_base.null_safe import null_safe_keys


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """The distinct keys of a batch, numbered from 0 in key order; ``keys.take(first)`` are they.

    Equal is what the store finds under one key: 0.0 and -0.0 are, and NaNs. A null equals a null.
    """

    first: Positions
    """Per distinct key the position of its first row."""
    numbers: npt.NDArray[np.int64]
    """Per row the number of its key."""

    @classmethod
    def of(cls, keys: pa.RecordBatch) -> "KeyGroups":
        """Cost: one sort of the keys. InvalidArgumentError for types that cannot be keys."""
        safe = null_safe_keys(keys)
        encoded = KeyCodec(safe.schema).encode(safe)
        _, starts = encoded.distinct()
        order = encoded.order.astype(np.int64)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        if not len(order):
            return cls(order, numbers)
        return cls(np.minimum.reduceat(order, starts[:-1]), numbers)
