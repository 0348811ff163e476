"""Whether Arrow keeps what a Python value says, when it makes one of its own of it.

It takes 1.5 for the integer 1 inside lists and structs, a text for a list of its letters, cuts
times, and passes over fields that a struct does not have.
"""

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa


def is_list_like(kind: pa.DataType) -> bool:
    """Whether values of the type are Python lists."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
        or pa.types.is_map(kind)
    )


def is_kept(value: Any, found: Any, kind: pa.DataType) -> bool:
    """Whether ``found``, Arrow's value of type ``kind`` as a Python one, is what was given. Floats
    are what they are rounded to; integers may stand for times, and times without a zone for UTC."""
    value = _plain(value)
    if value is None or found is None:
        return value is None and found is None
    if isinstance(kind, pa.BaseExtensionType):
        return is_kept(value, found, kind.storage_type)
    if pa.types.is_dictionary(kind):
        return is_kept(value, found, kind.value_type)
    if pa.types.is_struct(kind):
        return _is_struct_kept(value, found, kind)
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return _are_kept(pairs, found, pa.struct([kind.key_field, kind.item_field]))
    if is_list_like(kind):
        return _are_kept(value, found, kind.value_type)
    if pa.types.is_floating(kind):
        return True
    if isinstance(value, int) and not isinstance(found, int):
        return True
    if isinstance(value, datetime.datetime) and isinstance(found, datetime.datetime):
        if value.tzinfo is None and found.tzinfo is not None:
            value = value.replace(tzinfo=datetime.UTC)
        elif found.tzinfo is None and value.tzinfo is not None:
            found = found.replace(tzinfo=datetime.UTC)
    return bool(value == found)


def _plain(value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value.item() if isinstance(value, np.generic) else value


def _is_struct_kept(value: Any, found: dict[str, Any], kind: pa.StructType) -> bool:
    if isinstance(value, tuple):  # of a map, or fields in their order
        return len(value) == kind.num_fields and all(
            is_kept(one, other, field.type)
            for one, other, field in zip(value, _fields(found), kind, strict=True)
        )
    if not isinstance(value, Mapping) or not {field.name for field in kind}.issuperset(value):
        return False
    return all(is_kept(value.get(field.name), found[field.name], field.type) for field in kind)


def _fields(found: Any) -> Any:
    return found.values() if isinstance(found, dict) else found


def _are_kept(values: Any, found: Any, kind: pa.DataType) -> bool:
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping | set | frozenset):
        return False
    values = list(values)
    return len(values) == len(found) and all(
        is_kept(one, other, kind) for one, other in zip(values, found, strict=True)
    )
