"""Sums over stretches of rows, by the rows and not by the pairs.

What rows up to a place add up to says what any stretch adds up to: the difference of two such sums.
Differences of floats lose digits, and one that is not finite spoils all after it. So of floats each
stretch is added up by itself.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.decimal_words import MOST
from lsmstate.joins.local.aggregates.exact import greatest
from lsmstate.joins.local.parts.products import RangeProduct
from lsmstate.joins.local.parts.row_picks import Numbers


def sums_of_stretches(product: RangeProduct, values: pa.Array) -> pa.Array | None:
    """Per stretch what values of the right rows add up to; null where all are. None: whole numbers
    that are too large to be added up so."""
    valid = _valid(values)
    known = _from_start(valid.astype(np.int64))
    nulls = known[product.stop] == known[product.first]
    if pa.types.is_floating(values.type):
        return pa.array(_each_by_itself(product, values.fill_null(0.0).to_numpy()), mask=nulls)
    if not _adds_exactly(values, len(values)):
        return None
    total = _from_start(values.fill_null(0).to_numpy())
    return pa.array(total[product.stop] - total[product.first], mask=nulls)


def sums_of_covering(product: RangeProduct, values: pa.Array) -> pa.Array | None:
    """Per right row what values of the left rows add up to in whose stretches it lies; null where
    all are. None: floats, and whole numbers that are too large."""
    if pa.types.is_floating(values.type) or not _adds_exactly(values, len(product.owners)):
        return None
    numbers = values.fill_null(0).to_numpy()[product.owners]
    known = covered(product, _valid(values)[product.owners].astype(np.int64))
    return pa.array(covered(product, numbers), mask=known == 0)


def covered(product: RangeProduct, weights: Numbers) -> Numbers:
    """Per right row the sum of the weights of stretches that it lies in."""
    changes = np.zeros(product.right[1].num_rows + 1, dtype=np.int64)
    np.add.at(changes, product.first, weights)
    np.add.at(changes, product.stop, -weights)
    return np.cumsum(changes)[:-1]


def _each_by_itself(
    product: RangeProduct, numbers: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    sums = np.zeros(len(product.first))
    if len(sums):
        # Each stretch begins before the end of the one before it, so nothing between is added up.
        order = np.argsort(-product.first, kind="stable")
        ends = np.column_stack([product.first[order], product.stop[order]]).ravel()
        sums[order] = np.add.reduceat(np.append(numbers, 0.0), ends)[::2]
    return sums


def _from_start(numbers: Numbers) -> Numbers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers)])


def _adds_exactly(values: pa.Array, count: int) -> bool:
    return greatest(values) * max(1, count) <= MOST


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
