"""Objects that show themselves as tables: in notebooks (``_repr_html_``), and in terminals where
rich prints them (``__rich__``)."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Group


class ShownTable(NamedTuple):
    """A table with a title. Without a header no head is shown."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    def texts(self) -> list[list[str]]:
        """The rows as people read them."""
        return [[_shown(value) for value in row] for row in self.rows]


class Shown:
    """Shows itself as the tables that its class makes."""

    __slots__ = ()

    def _as_tables(self) -> Iterable[ShownTable]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Show it in a notebook; every text in it is escaped."""
        return "".join(map(_html, self._as_tables()))

    def __rich__(self) -> "Group":
        """Show it in a terminal, by ``rich.print``."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        tables = []
        for each in self._as_tables():
            table = Table(
                *each.header, title=Text(each.title), show_header=bool(each.header), expand=False
            )
            for row in each.texts():
                table.add_row(*map(Text, row))  # brackets in values are no markup
            tables.append(table)
        return Group(*tables)


def fields_shown(title: str, fields: Mapping[str, object]) -> ShownTable:
    """Make a table of names and values; values that are mappings stand as ``name.part``."""
    return ShownTable(title, (), _flat(fields))


def _html(table: ShownTable) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in table.header)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>"
        for row in table.texts()
    )
    return f"<table><caption>{escape(table.title)}</caption>{head}<tbody>{body}</tbody></table>"


def _flat(fields: Mapping[str, object], before: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{name}.")
        else:
            found.append((before + name, value))
    return found


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
