"""Rows grouped by key: which rows of a batch have equal keys, as the store compares keys."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.schema.batches import arrow_batch
from lsmstate.store import BatchLike, Positions
from lsmstate.store_base.null_safe import null_safe_keys


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """Distinct keys of a batch, numbered from 0 in key order; ``keys.take(first)`` returns them.

    Keys are equal if the store keeps them under one key: 0.0 equals -0.0, and a NaN equals a NaN.
    A null equals a null.
    """

    first: Positions
    """Position of the first row of each distinct key."""
    numbers: npt.NDArray[np.int64]
    """Number of the key of each row."""

    @classmethod
    def of(cls, keys: BatchLike) -> "KeyGroups":
        """Group the rows of a batch by key.

        Args:
            keys: One key per row.

        Returns:
            The distinct keys and the number of each row's key.

        Raises:
            InvalidArgumentError: A column has a type that keys cannot have.

        Cost:
            One sort of the keys.
        """
        safe = null_safe_keys(arrow_batch(keys, "keys"))
        encoded = KeyCodec(safe.schema).encode(safe)
        _, starts = encoded.distinct()
        order = encoded.order.astype(np.int64)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        if not len(order):
            return cls(order, numbers)
        return cls(np.minimum.reduceat(order, starts[:-1]), numbers)
