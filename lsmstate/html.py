"""Tables in HTML, as notebooks show objects (``_repr_html_``)."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Make a table; every text in it is escaped. Without a header no head is shown."""
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_shown(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def html_fields(title: str, fields: Mapping[str, object]) -> str:
    """Make a table of names and values; values that are mappings stand as ``name.part``."""
    return html_table(title, (), _flat(fields))


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
