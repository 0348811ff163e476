"""What ranges ask of columns beside that of the key, as zones: the store may leave out row blocks
that hold no such value. Zones may be wider than what they stand for, so limits belong to them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.local.theta.limits import plain
from lsmstate.joins.specs.theta import Zone

#: By column, the least and the greatest value of each range; None: there is no limit.
Zones = Mapping[str, tuple[pa.Array | None, pa.Array | None]]


def asked_zones(
    zones: Sequence[Zone], columns: Values, count: int
) -> tuple[Zones, npt.NDArray[np.bool_]]:
    """The zones of ``count`` combinations, and which of them may match a row. ``columns``: of the
    combinations."""
    known = np.ones(count, np.bool_)
    found: dict[str, tuple[pa.Array | None, pa.Array | None]] = {}
    for zone in zones:
        low, high, is_known = zone.asked.limits(columns, count)
        known &= is_known
        if zone.asked.takes_nan:
            high = None  # NaN is above all limits
        found[zone.column] = (
            None if low is None else _as_stored(low, zone.type, is_high=False),
            None if high is None else _as_stored(high, zone.type, is_high=True),
        )
    return found, known


def taken(zones: Zones, places: pa.Array) -> Zones:
    """Those of some ranges."""
    return {
        name: (
            None if low is None else low.take(places),
            None if high is None else high.take(places),
        )
        for name, (low, high) in zones.items()
    }


def _as_stored(values: pa.Array, kind: pa.DataType, *, is_high: bool) -> pa.Array:
    """Limits as a stored column has them, not narrower."""
    if values.type == kind:
        return values
    stored = kind.to_pandas_dtype()
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            near = plain(values).astype(stored)
        return pa.array(np.nextafter(near, stored(np.inf if is_high else -np.inf)))
    info = np.iinfo(stored)
    return pa.array(np.clip(plain(values), info.min, info.max), kind)
