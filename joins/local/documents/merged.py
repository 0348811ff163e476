"""united: two documents as one that has the attributes of both."""

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]


def united(first: Document, second: Document) -> Document:
    """Return one document with the attributes of both. Of attributes that both have, the first
    document's stand.

    Attributes keep their nesting. Where that is not possible, since one document has a value under
    a name and the other an object, all attributes get dotted names: ``{"a": 1, "a.b": 2}``.
    """
    flat = {**dict(_leaves(second)), **dict(_leaves(first))}
    nested = _together(first, second)
    paths = [path for path, _ in _leaves(nested)]
    return nested if len(paths) == len(flat) and flat.keys() == set(paths) else flat


def _together(first: Any, second: Any) -> Any:
    """Two objects as one; of what is no object in both, the first."""
    if not (_is_inner(first) and _is_inner(second)):
        return first
    found = dict(first)
    for name, value in second.items():
        found[name] = _together(found[name], value) if name in found else value
    return found


def _is_inner(value: Any) -> bool:
    """Whether attributes lie below it; an empty object is a value."""
    return isinstance(value, dict) and bool(value)


def _leaves(document: Document, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values."""
    for name, value in document.items():
        if _is_inner(value):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield path + name, value
