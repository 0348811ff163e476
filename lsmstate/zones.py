"""Zones: of which columns there may be some, and their values as words that are ordered alike."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from lsmstate.errors import InvalidArgumentError

Words = npt.NDArray[np.uint64]

#: Bits of the infinity of a float with this many bytes.
_INFINITY = {2: 0x7C00, 4: 0x7F80_0000, 8: 0x7FF0_0000_0000_0000}


def check_zones(stream: str, rows: pa.Schema, zones: Iterable[object]) -> None:
    """Raise InvalidArgumentError unless these are names of distinct columns that can have zones."""
    if not isinstance(zones, tuple) or not all(isinstance(name, str) for name in zones):
        raise InvalidArgumentError(
            f"zones={zones!r} of stream {stream!r}: give a tuple of names of columns, as in "
            f"zones=({(rows.names or ['column'])[0]!r},)"
        )
    for name in zones:
        if rows.names.count(name) != 1:
            raise InvalidArgumentError(
                f"zones of stream {stream!r}: the rows have no column {name!r}; name some of "
                f"{', '.join(rows.names)}"
            )
        if zones.count(name) > 1:
            raise InvalidArgumentError(
                f"zones of stream {stream!r}: column {name!r} is named twice; name it once"
            )
        kind = rows.field(name).type
        if not _has_zones(kind):
            raise InvalidArgumentError(
                f"zones of stream {stream!r}: column {name!r} is a {kind} and can have no zones; "
                "leave it out, or store the value as a whole number, float, date or time"
            )


def zone_words(values: pa.Array) -> Words:
    """Return the values of a column as numbers that are ordered as keys are: NaN is the greatest,
    -0.0 equals 0.0. That of a null means nothing."""
    bytes_ = values.type.bit_width // 8
    if pt.is_floating(values.type):
        bits = _bits(values, f"uint{8 * bytes_}").astype(np.uint64)
        sign = np.uint64(1 << (8 * bytes_ - 1))
        size = bits & ~sign
        words = np.where(bits & sign, sign - size, bits | sign)
        words[size > _INFINITY[bytes_]] = np.iinfo(np.uint64).max
        return words
    if pt.is_unsigned_integer(values.type):
        return _bits(values, f"uint{8 * bytes_}").astype(np.uint64)
    signed = _bits(values, f"int{8 * bytes_}").astype(np.int64)
    return signed.view(np.uint64) ^ np.uint64(1 << 63)


def _bits(values: pa.Array, name: str) -> npt.NDArray[np.integer]:
    """The values as whole numbers of that type, and nulls as 0."""
    whole = values.view(pa.type_for_alias(name))
    found: npt.NDArray[np.integer] = (whole.fill_null(0) if whole.null_count else whole).to_numpy()
    return found


def _has_zones(kind: pa.DataType) -> bool:
    return bool(
        pt.is_integer(kind)
        or pt.is_floating(kind)
        or pt.is_date(kind)
        or pt.is_time(kind)
        or pt.is_timestamp(kind)
        or pt.is_duration(kind)
    )
