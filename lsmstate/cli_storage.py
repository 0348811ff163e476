"""What commands are told of a file system that is not the machine's own."""

from typing import Annotated

import typer

from lsmstate.errors import InvalidArgumentError

StorageOption = Annotated[
    list[str] | None,
    typer.Option(help="name=value for the checkpoint's file system; may be repeated."),
]


def storage_options(texts: list[str] | None) -> dict[str, str]:
    """``["region=eu-central-1"]`` by name. InvalidArgumentError."""
    return dict(map(_option, texts or []))


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgumentError(f"--storage-option {text}: write it as name=value")
    return name, value
