"""Consoles and tables that print names and values literally.

Users name directories, streams and columns. A name such as ``[bold]`` or ``:smile:`` is not markup.
"""

from rich.console import Console
from rich.table import Column, Table


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text literally."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def plain_table(*columns: str) -> Table:
    """Return a table for a ``plain_console``; long cells are folded into further lines."""
    return Table(*(Column(column, overflow="fold") for column in columns))


def narrow_table(*columns: str) -> Table:
    """Return a table of numbers without padding, so that ten columns fit 80 characters."""
    return Table(
        *(Column(column, overflow="fold", justify="right") for column in columns), padding=0
    )
