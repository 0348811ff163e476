"""Options of commands for remote file systems."""

import re
from typing import Annotated, Final

import typer

from lsmstate.errors import InvalidArgumentError

StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Option name=value of the checkpoint's file system; may be repeated. true, false and "
        "whole numbers are read as such; double quotes make them text: name='\"123\"'."
    ),
]

_BOOLEANS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]*")


def storage_options(texts: list[str] | None) -> dict[str, bool | int | str]:
    """Parse ``["region=eu-central-1", "anonymous=true"]`` into values by name.

    InvalidArgumentError shows no value, which may be a secret.
    """
    found: dict[str, bool | int | str] = {}
    for number, text in enumerate(texts or [], 1):
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            lacks = "has no name" if equals else "has no '='"
            raise InvalidArgumentError(
                f"--storage-option number {number} {lacks}; write it as name=value"
            )
        if name in found:
            raise InvalidArgumentError(f"--storage-option {name} is given twice; give it once")
        found[name] = _value(value)
    return found


def _value(text: str) -> bool | int | str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    if _NUMBER.fullmatch(text):
        return int(text)
    return _BOOLEANS.get(text.lower(), text)
