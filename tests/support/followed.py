"""Follow some objects through the functions of the project that they are handed to."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from support.paths import ROOT

#: The layers from the bottom up.
LAYERS = ("cython_ext", "lsmstate", "joins", "spark_integration")


class Trip(NamedTuple):
    """Where the objects were handed to."""

    files: set[str]
    """Below the checkout."""
    upward: set[tuple[str, str]]
    """A file of a lower layer, and one of a higher layer that it handed one of them to."""


def followed(call: Callable[[], object], objects: Iterable[object]) -> Trip:
    """Make a call, and note which files' functions get one of the objects as an argument: itself,
    in a collection, or as an attribute of a dataclass."""
    wanted = {id(each) for each in objects}
    trip = Trip(set(), set())

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        here = _file(frame)
        if here is None:
            return
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames[: count + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)]
        if not any(_holds(frame.f_locals.get(name), wanted) for name in names):
            return
        trip.files.add(here)
        caller = None if frame.f_back is None else _file(frame.f_back)
        if caller is not None and _layer(caller) < _layer(here):
            trip.upward.add((caller, here))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return trip


def _file(frame: FrameType) -> str | None:
    """The file of a function of the project."""
    return _below(frame.f_code.co_filename)


@cache
def _below(name: str) -> str | None:
    path = Path(name).resolve()
    if not path.is_relative_to(ROOT):
        return None
    found = path.relative_to(ROOT).as_posix()
    return found if found.split("/", 1)[0] in LAYERS else None


def _layer(file: str) -> int:
    return LAYERS.index(file.split("/", 1)[0])


def _holds(value: object, wanted: set[int]) -> bool:
    if id(value) in wanted:
        return True
    if isinstance(value, Mapping):
        return any(id(each) in wanted for each in value.values())
    if isinstance(value, list | tuple):
        return any(id(each) in wanted for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return any(_holds_itself(getattr(value, each.name, None), wanted) for each in fields(value))
    return False


def _holds_itself(value: object, wanted: set[int]) -> bool:
    return id(value) in wanted or (
        isinstance(value, Mapping) and any(id(each) in wanted for each in value.values())
    )
