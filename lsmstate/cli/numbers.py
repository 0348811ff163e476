"""Checks of the numbers that options take, so that their errors are one line, as all others."""

from collections.abc import Callable

import typer

from lsmstate.errors import InvalidArgumentError


def at_least(least: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """Return the ``callback`` of an option that refuses smaller numbers."""

    def check(option: typer.CallbackParam, value: int | None) -> int | None:
        if value is not None and value < least:
            raise InvalidArgumentError(f"{option.opts[0]}={value}: give {least} or more")
        return value

    return check
