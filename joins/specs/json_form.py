"""A spec as JSON, and back: the one description of a join that a checkpoint and a kept state hold.

Values are frozen dataclasses, named tuples, mappings, tuples, sets, Arrow schemas and types, and
plain constants. A class is written by its name, which is looked up among the classes that the
fields of the specs name.
"""

import base64
import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from lsmstate.errors import CorruptionError

_CLASS = "is"


def to_json(value: Any) -> Any:
    """A value as what ``json.dumps`` takes."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _of_class(value, fields)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _of_class(value, value._asdict())
    if isinstance(value, Mapping):
        return {"map": {str(key): to_json(each) for key, each in value.items()}}
    if isinstance(value, frozenset | set):
        return {"set": sorted(map(to_json, value))}
    if isinstance(value, tuple | list):
        return [to_json(each) for each in value]
    if isinstance(value, pa.Schema):
        return {"schema": _text(value)}
    if isinstance(value, pa.DataType):
        return {"type": _text(pa.schema([("", value)]))}
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    kind = "scalar" if scalar is value else "value"
    batch = pa.record_batch([pa.array([scalar.as_py()], scalar.type)], [""])
    return {kind: [_text(batch.schema), _text(batch)]}


def from_json(found: Any, classes: Mapping[str, type]) -> Any:
    """The value of ``to_json``. CorruptionError for a class that is not among ``classes``."""
    if isinstance(found, list):
        return tuple(from_json(each, classes) for each in found)
    if not isinstance(found, dict):
        return found
    if _CLASS in found:
        if found[_CLASS] not in classes:
            raise CorruptionError(
                f"a join is described by {found[_CLASS]!r}, which this release does not know; open "
                "it with the release that made it"
            )
        fields = {name: from_json(each, classes) for name, each in found["fields"].items()}
        return classes[found[_CLASS]](**fields)
    ((kind, content),) = found.items()
    if kind == "map":
        return {key: from_json(each, classes) for key, each in content.items()}
    if kind == "set":
        return frozenset(from_json(each, classes) for each in content)
    if kind == "schema":
        return _schema(content)
    if kind == "type":
        return _schema(content).field(0).type
    batch = pa.ipc.read_record_batch(
        pa.py_buffer(base64.b64decode(content[1])), _schema(content[0])
    )
    scalar = batch.column(0)[0]
    return scalar if kind == "scalar" else scalar.as_py()


def classes_in(roots: Iterable[type]) -> dict[str, type]:
    """By name, the classes among ``roots`` and, all the way down, among the types of their fields.

    Raises:
        TypeError: Two classes have one name.
    """
    found: dict[str, type] = {}
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if found.setdefault(each.__name__, each) is not each:
            raise TypeError(f"two classes in the specs of joins are called {each.__name__}")
        for hint in typing.get_type_hints(each).values():
            waiting += [c for c in _classes_of(hint) if found.get(c.__name__) is not c]
    return found


def _classes_of(hint: Any) -> list[type]:
    """The dataclasses and named tuples in a type hint."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        is_value = dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")
        return [hint] if is_value else []
    return [each for argument in typing.get_args(hint) for each in _classes_of(argument)]


def _of_class(value: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _CLASS: type(value).__name__,
        "fields": {name: to_json(each) for name, each in fields.items()},
    }


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _text(value: pa.Schema | pa.RecordBatch) -> str:
    return base64.b64encode(value.serialize()).decode()
