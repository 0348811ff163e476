"""Check that Arrow keeps a Python value when it converts it.

- Arrow converts 1.5 to the integer 1 inside lists and structs, text to a list of letters, truncates
  times, and drops fields that a struct does not have.
- Times are compared as Arrow's integers. Python's times have a smaller range and no nanoseconds,
  and those in the hour when clocks are set back equal no time of another zone (PEP 495).
"""

import datetime
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def is_list_like(kind: pa.DataType) -> bool:
    """Test whether values of the type are Python lists."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
        or pa.types.is_map(kind)
    )


def is_kept(value: Any, found: pa.Scalar) -> bool:
    """Test whether ``found``, which Arrow made of a Python value, is the value given. Floats may be
    rounded. Integers may stand for times, and times without a zone for UTC, but not a time with a
    zone for one without."""
    kind = found.type
    if isinstance(value, pa.Scalar) and value.type == kind:
        return True
    value = _plain(value)
    if value is None or not found.is_valid:
        return value is None and not found.is_valid
    if pa.types.is_dictionary(kind):
        return is_kept(value, found.value)
    if isinstance(kind, pa.BaseExtensionType):  # either as it is stored or as it is shown
        return is_kept(value, found.value) or _is_shown(value, found.as_py())
    if pa.types.is_struct(kind):
        return _is_struct_kept(value, found)
    if pa.types.is_map(kind):
        return _are_kept(value.items() if isinstance(value, Mapping) else value, found.values)
    if is_list_like(kind):
        return _are_kept(value, found.values)
    if pa.types.is_floating(kind):
        return _is_float_kept(value, found.as_py())
    if pa.types.is_temporal(kind):
        return _is_time_kept(value, found)
    return bool(value == found.as_py())


def _is_float_kept(value: Any, found: float) -> bool:
    """Whether a number is in the range of the floats: rounded, but neither infinite nor zero."""
    if isinstance(value, bool):
        return False
    if math.isinf(found) or found == 0.0:
        return bool(value == found)
    return True


def as_text(found: pa.Scalar) -> str:
    """Show what Arrow made of a value, for messages."""
    try:
        return shown(found.as_py())
    except (ValueError, OverflowError):
        return "what Python has no value for"


def shown(value: object) -> str:
    """Show a value that a caller gave, for messages: not more than about 200 characters of it."""
    text = repr(value)
    if len(text) <= 200:
        return text
    return f"{text[:120]}... ({len(text)} characters) ...{text[-20:]}"


def _plain(value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value.item() if isinstance(value, np.generic) else value


def _is_shown(value: Any, shown: Any) -> bool:
    return isinstance(value, type(shown)) and bool(value == shown)


def _is_struct_kept(value: Any, found: pa.StructScalar) -> bool:
    if isinstance(value, tuple):  # of a map, or fields in their order
        return len(value) == len(found) and all(
            is_kept(one, found[place]) for place, one in enumerate(value)
        )
    if not isinstance(value, Mapping):
        return False
    names = [field.name for field in found.type]
    return set(names).issuperset(value) and all(
        is_kept(value.get(name), found[place]) for place, name in enumerate(names)
    )


def _are_kept(given: Any, found: pa.Array) -> bool:
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping | set | frozenset):
        return False
    values = list(given)
    return len(values) == len(found) and all(map(is_kept, values, found))


def _is_time_kept(value: Any, found: pa.Scalar) -> bool:
    if isinstance(value, int):
        return bool(value == found.value)
    if isinstance(value, datetime.datetime) and pa.types.is_timestamp(found.type):
        if value.utcoffset() is not None and found.type.tz is None:
            return False  # which zone its local times are of is not known
        return bool(_nanoseconds(value) == found.value * _NANOSECONDS[found.type.unit])
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | tuple):
        return bool(value == found.as_py())
    return False


def _nanoseconds(value: datetime.datetime) -> int:
    """Return the nanoseconds since 1970 in UTC."""
    if value.utcoffset() is None:
        value = value.replace(tzinfo=datetime.UTC)
    # The difference of two zoned times is one of UTC. It reaches beyond the year 1, unlike UTC
    # itself.
    whole = (value - _EPOCH) // _MICROSECOND
    return whole * 1000 + getattr(value, "nanosecond", 0)  # which pandas has
