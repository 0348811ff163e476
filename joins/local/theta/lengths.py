"""Length classes: intervals are kept apart by the power of two that their length is at most.

Without them a point is in reach of half of all intervals: those that begin before it. Inside a
class of length 2**n it is in reach of those only that begin at most 2**n before it.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Intervals that hold one value, or none.
POINT: Final = -2000
#: Those whose length is no number.
UNBOUNDED: Final = 2000

Classes = npt.NDArray[np.int16]


def length_classes(low: pa.Array, high: pa.Array) -> Classes:
    """The class of each interval; of one without ends any. Cost: a few vector operations."""
    first, last = _numbers(low), _numbers(high)
    if first.dtype.kind == "f":
        with np.errstate(all="ignore"):
            length = last - first
            # Rounding may have made it shorter.
            powers = np.frexp(np.where(np.isfinite(length), length, 1.0))[1] + 1
        found = np.where(last > first, powers, POINT)
        return np.where(np.isfinite(length), found, UNBOUNDED).astype(np.int16)
    length = last.astype(np.uint64) - first.astype(np.uint64)
    powers = np.frexp(length.astype(np.float64))[1]
    return np.where(last > first, powers, POINT).astype(np.int16)


def least_low(reached: pa.Array, length_class: int) -> pa.Array:
    """Where intervals of a class begin at the earliest whose upper end is at least ``reached``."""
    kind = reached.type
    if length_class == POINT:
        return reached
    numbers = _numbers(reached)
    mask = np.asarray(reached.is_null().to_numpy(zero_copy_only=False))
    if numbers.dtype.kind == "f":
        if length_class == UNBOUNDED:
            return pa.array(np.full(len(numbers), -np.inf), mask=mask)
        with np.errstate(all="ignore"):
            # Beyond 2**1023 infinite, and so is the class.
            least = np.nextafter(numbers - np.ldexp(1.0, length_class), -np.inf)
        return pa.array(np.where(np.isfinite(numbers), least, -np.inf), mask=mask)
    limit = np.iinfo(np.int32 if pa.types.is_date32(kind) else np.int64).min
    if length_class >= 63:
        return _as_kind(np.full(len(numbers), limit), kind, mask)
    step = np.int64(1 << length_class)
    return _as_kind(np.where(numbers < limit + step, limit, numbers - step), kind, mask)


def _numbers(values: pa.Array) -> npt.NDArray[Any]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    found = np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False))
    return found.astype(np.float64 if found.dtype.kind == "f" else np.int64)


def _as_kind(
    numbers: npt.NDArray[np.int64], kind: pa.DataType, mask: npt.NDArray[np.bool_]
) -> pa.Array:
    if pa.types.is_date32(kind):
        return pa.array(numbers.astype(np.int32), mask=mask).view(kind)
    whole = pa.array(numbers, mask=mask)
    return whole.view(kind) if pa.types.is_timestamp(kind) else whole
