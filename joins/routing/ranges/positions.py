"""Values of any ordered type as positions on a line of float64 numbers, and bounds among them.

A greater value never has a smaller position, so a bound between values also holds between their
positions. Different values may share one. Texts and bytes have the position of their first six
bytes, which a float64 holds exactly. NaN is the greatest value, as in Spark.
"""

from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.errors import InvalidArgumentError

Positions = npt.NDArray[np.float64]

#: Bounds are widened by this part of them, which is more than any rounding here.
_ROUNDING: Final = 2.0**-49
_TEXT_BYTES: Final = 6


def positions(values: pa.Array, where_null: float) -> Positions:
    """The position of each value. InvalidArgumentError for a type that has no order."""
    kind = values.type
    if _is_text(kind):
        found = _text_positions(values)
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = _as_float(values.cast(pa.float64()))
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        found = _as_float(values.cast(pa.uint64() if kind == pa.uint64() else pa.int64()))
    elif pa.types.is_temporal(kind):
        found = _as_float(values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()))
    else:
        raise InvalidArgumentError(
            f"values of type {kind} have no ranges; compare numbers, times or texts, or leave "
            "routing='ranges' out"
        )
    found = np.where(np.isnan(found), np.inf, found)
    if values.null_count:
        found = np.where(values.is_null().to_numpy(zero_copy_only=False), where_null, found)
    return found


class Bounded(NamedTuple):
    """Rows by their positions: each its own, and those of the rows that it can match."""

    value: Positions
    low: Positions
    high: Positions

    @classmethod
    def of(cls, keys: pa.RecordBatch) -> Self:
        """Read the three columns value, low and high. A null value matches nothing: NaN. A null
        bound is none. Cost: a few vector operations."""
        value, low, high = keys.columns
        return cls(
            positions(value, np.nan),
            widened(positions(low, -np.inf), -1),
            widened(positions(high, np.inf), 1),
        )

    def matching(self) -> npt.NDArray[np.bool_]:
        """Which rows can match anything."""
        found: npt.NDArray[np.bool_] = ~np.isnan(self.value) & (self.low <= self.high)
        return found

    def at(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "Bounded":
        """Some of the rows."""
        return Bounded(self.value[places], self.low[places], self.high[places])

    def below(self) -> Positions:
        """How far below its own position each row reaches, at most."""
        return _distance(self.value, self.low)

    def above(self) -> Positions:
        """How far above."""
        return _distance(self.high, self.value)

    def toward(self, below: float, above: float) -> tuple[Positions, Positions]:
        """Between which positions the rows that match lie, of rows that reach that far at most."""
        low, high = self.low, self.high
        with np.errstate(invalid="ignore", over="ignore"):
            if np.isfinite(above):
                slack = (np.abs(self.value) + above) * _ROUNDING
                low = np.maximum(low, _known_or(self.value - above - slack, self.value))
            if np.isfinite(below):
                slack = (np.abs(self.value) + below) * _ROUNDING
                high = np.minimum(high, _known_or(self.value + below + slack, self.value))
        return low, high


def widened(found: Positions, sign: int) -> Positions:
    """Bounds moved outward by more than rounding can have moved them inward."""
    with np.errstate(invalid="ignore", over="ignore"):
        return _known_or(found + sign * np.abs(found) * _ROUNDING, found)


def _distance(high: Positions, low: Positions) -> Positions:
    """Also of infinite positions: 0 between equal ones, and else infinite."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(high == low, 0.0, np.nan_to_num(high - low, nan=np.inf, posinf=np.inf))


def _known_or(found: Positions, others: Positions) -> Positions:
    return np.where(np.isnan(found), others, found)


def _as_float(values: pa.Array) -> Positions:
    found = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(test(kind) for test in (*tests, pa.types.is_large_binary))


def _text_positions(values: pa.Array) -> Positions:
    cut = pc.binary_slice(pc.fill_null(values.cast(pa.binary()), b""), 0, _TEXT_BYTES)
    padded = [text.ljust(_TEXT_BYTES, b"\0") for text in cut.to_pylist()]
    raw = np.frombuffer(b"".join(padded), np.uint8).reshape(-1, _TEXT_BYTES)
    weights = 256.0 ** np.arange(_TEXT_BYTES - 1, -1, -1)
    found: Positions = raw @ weights
    return found
