"""Decimals of at most 18 digits as the whole numbers that they are multiples of, and back."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Decimals of so many digits fit into 64 bits.
NARROW_DIGITS: Final = 18
MOST: Final = (1 << 63) - 1

Words = npt.NDArray[np.int64]


def is_narrow(kind: pa.DataType) -> bool:
    """Whether values of the type are whole numbers of 64 bits, times a power of ten."""
    if pa.types.is_decimal128(kind):
        return bool(kind.precision <= NARROW_DIGITS)
    return bool(pa.types.is_signed_integer(kind))


def words_of(values: pa.Array) -> Words:
    """The unscaled values, of nulls any; the values must be narrow."""
    if pa.types.is_integer(values.type):
        return np.asarray(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
    words = np.frombuffer(values.buffers()[1], np.int64)
    return words[2 * values.offset :: 2][: len(values)]


def fitting_words(values: pa.Array) -> Words | None:
    """The unscaled values, of nulls any; None unless all fit into 64 bits, whatever the type."""
    if is_narrow(values.type):
        return words_of(values)
    if not pa.types.is_decimal128(values.type):
        return None
    both = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset :][: 2 * len(values)]
    words = both[::2]
    fits = both[1::2] == words >> 63
    if values.null_count:
        fits |= np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    return words if fits.all() else None


def decimals_of(words: Words, nulls: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """The inverse, as any type of decimals of 128 bits."""
    both = np.empty((len(words), 2), dtype=np.int64)
    both[:, 0] = words
    both[:, 1] = words >> 63
    known = pa.array(~nulls).buffers()[1] if nulls.any() else None
    return pa.Array.from_buffers(kind, len(words), [known, pa.py_buffer(both)])


def computed(sign: str, sides: list[pa.Array], kind: pa.DataType) -> pa.Array | None:
    """A sum, difference or product in the type of the result; None where it or a value does not fit
    into 64 bits, or would be rounded."""
    scales = [side.type.scale if pa.types.is_decimal(side.type) else 0 for side in sides]
    is_product = sign == "*"
    exact = sum(scales) if is_product else max(scales)
    if sign not in ("+", "-", "*") or kind.scale != exact:
        return None
    one, other = map(fitting_words, sides)
    if one is None or other is None:
        return None
    nulls = [np.asarray(side.is_null().to_numpy(zero_copy_only=False)) for side in sides]
    steps = [1, 1] if is_product else [10 ** (exact - scale) for scale in scales]
    words = [np.where(null, 0, own) for null, own in zip(nulls, (one, other), strict=True)]
    left, right = (_greatest(w) * step for w, step in zip(words, steps, strict=True))
    if max(left, right, left * right if is_product else left + right) > MOST:
        return None
    first, second = (w * np.int64(step) for w, step in zip(words, steps, strict=True))
    made = first * second if is_product else first + second if sign == "+" else first - second
    return decimals_of(made, nulls[0] | nulls[1], kind)


def _greatest(words: npt.NDArray[Any]) -> int:
    return max(abs(int(words.min())), abs(int(words.max()))) if len(words) else 0
