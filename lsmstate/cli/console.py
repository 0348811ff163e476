"""What the commands print on a terminal: names and values as they are.

Users name directories, streams and columns: ``[bold]`` or ``:smile:`` in a name is no markup.
"""

from rich.console import Console
from rich.table import Column, Table


def plain_console(*, stderr: bool = False) -> Console:
    """Prints text literally."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def plain_table(*columns: str) -> Table:
    """To be printed on a ``plain_console``. What does not fit a line goes on in the next one."""
    return Table(*(Column(column, overflow="fold") for column in columns))


def narrow_table(*columns: str) -> Table:
    """The same of many numbers: without blanks between them ten columns fit 80 characters."""
    return Table(
        *(Column(column, overflow="fold", justify="right") for column in columns), padding=0
    )
