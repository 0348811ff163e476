"""Limits of many ranges, and where they are in ascending values."""

from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.parts.row_picks import Numbers


class Limits:
    """A limit of each of some ranges, all on one side."""

    def __init__(self, values: pa.Array, side: Literal["left", "right"]) -> None:
        self._values = plain(values)
        self._side: Literal["left", "right"] = side
        # Searches one behind the other find what they read in the cache.
        self._order = np.argsort(self._values)
        self._sorted = self._values[self._order]

    @classmethod
    def below(cls, values: pa.Array | None, *, includes: bool) -> Self | None:
        """Lower limits; None: there are none."""
        return None if values is None else cls(values, "left" if includes else "right")

    @classmethod
    def above(cls, values: pa.Array | None, *, includes: bool) -> Self | None:
        """Upper limits; None: there are none."""
        return None if values is None else cls(values, "right" if includes else "left")

    @property
    def greatest(self) -> Any:
        """The greatest one."""
        return self._sorted[-1]

    def places(self, ascending: npt.NDArray[Any], some: Numbers | None = None) -> Numbers:
        """Where the limits are, or some of them: values before that place are below the limit."""
        if some is not None and len(some) < len(self._order) // 4:
            return self._searched(ascending, self._values[some])
        found = np.empty(len(self._order), np.int64)
        found[self._order] = self._searched(ascending, self._sorted)
        return found if some is None else found[some]

    def _searched(self, ascending: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Numbers:
        return np.searchsorted(ascending, wanted, side=self._side).astype(np.int64)


def plain(values: pa.Array) -> npt.NDArray[Any]:
    """As NumPy orders them; whatever for null. NaN is the greatest there, too."""
    if pa.types.is_floating(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    values = values.cast(pa.int64())
    if values.null_count:
        values = values.fill_null(0)  # which copies, nulls or not
    return np.asarray(values.to_numpy(zero_copy_only=False))
