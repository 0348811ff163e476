"""Python values as JSON values; a value without a JSON type is written as text."""

import math
from typing import Any


def in_json(value: Any) -> Any:
    """Convert a value. NaN and the infinities become text too, since JSON has no
    numbers for them."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): in_json(each) for name, each in value.items()}
    return [in_json(each) for each in value] if isinstance(value, list | tuple) else str(value)
