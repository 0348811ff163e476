"""A picture of how a join works: streams, routing, buckets and results, as Mermaid text or SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.panel import Panel

_BOX_WIDTH: Final = 190
_BOX_HEIGHT: Final = 34
_GAP: Final = 14
_COLUMN: Final = 250
_LETTERS: Final = 24
#: What the line of an explanation begins with that lists the streams of the store.
_INDEXES: Final = "indexes: "


@dataclass(frozen=True)
class PlanPicture:
    """What is drawn."""

    operator: str
    """The function that the user called."""
    streams: tuple[str, ...]
    explanation: str = ""
    """Some lines of text that stand below."""
    buckets: int | None = None

    @property
    def stored(self) -> tuple[str, ...]:
        """The streams of the store: one for each key that a stream is looked up by."""
        for line in self.explanation.splitlines():
            if line.startswith(_INDEXES):
                return tuple(line.removeprefix(_INDEXES).split(", "))
        return self.streams

    @property
    def mermaid(self) -> str:
        """The picture as a Mermaid flowchart."""
        lines = ["flowchart LR"]
        for n, name in enumerate(self.streams):
            lines += [f"  s{n}[{_quoted(name)}] --> route"]
        lines += [f"  route{{{{{_quoted('routes rows to buckets')}}}}} --> join"]
        lines += [f"  join[{_quoted(self._join_text())}] --> result([{_quoted('result')}])"]
        for n, name in enumerate(self.stored):
            lines += [f"  join --- t{n}[({_quoted(name)})]"]
        return "\n".join(lines) + "\n"

    @property
    def svg(self) -> str:
        """The picture as an image without outside resources; its colour is that of the text."""
        rows = max(len(self.streams), len(self.stored), 1)
        top = 8
        height = top * 2 + rows * (_BOX_HEIGHT + _GAP) - _GAP
        middle = (height - _BOX_HEIGHT) / 2
        parts: list[str] = []
        places = [top + n * (_BOX_HEIGHT + _GAP) for n in range(rows)]
        lower = (rows - len(self.streams)) * (_BOX_HEIGHT + _GAP) / 2
        for y, name in zip(places, self.streams, strict=False):
            parts += [_box(8, y + lower, name), _line(8, y + lower, middle, 1)]
        parts += [_box(8 + _COLUMN, middle, self._join_text(), "join")]
        lower = (rows - len(self.stored)) * (_BOX_HEIGHT + _GAP) / 2
        for y, name in zip(places, self.stored, strict=False):
            parts += [
                _line(8 + _COLUMN, middle, y + lower, 1),
                _box(8 + 2 * _COLUMN, y + lower, name, "store"),
            ]
        parts += [_line(8 + _COLUMN, middle, height + 8, 1)]
        parts += [_box(8 + 2 * _COLUMN, height + 8, "result", "result")]
        width, full = 16 + 2 * _COLUMN + _BOX_WIDTH, height + _BOX_HEIGHT + 16
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {full:.0f}" '
            f'width="{width}" height="{full:.0f}" role="img" class="lsmstate-plan" '
            'font-family="ui-monospace, monospace" font-size="12" fill="currentColor" '
            f'stroke="none"><title>{escape(self.operator)}</title>{"".join(parts)}</svg>'
        )

    def _join_text(self) -> str:
        return f"{self.operator} x {self.buckets}" if self.buckets else self.operator


class Explanation(str):
    """The description of a join: text, which notebooks show with its picture.

    Attributes:
        picture: The picture; ``picture.mermaid`` and ``picture.svg`` are text.
    """

    picture: PlanPicture

    @classmethod
    def of(cls, text: str, picture: PlanPicture) -> "Explanation":
        """The text with its picture."""
        found = cls(text)
        found.picture = picture
        return found

    @property
    def mermaid(self) -> str:
        """The picture as a Mermaid flowchart."""
        return self.picture.mermaid

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return self.picture.svg

    def _repr_html_(self) -> str:
        return f"{self.picture.svg}<pre>{escape(self)}</pre>"

    def __rich__(self) -> "Panel":
        from rich.panel import Panel
        from rich.text import Text

        return Panel(Text(self), title=Text(self.picture.operator), expand=False)


def _quoted(text: str) -> str:
    """A label of Mermaid, whose quotes are entities."""
    escaped = text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;")
    return f'"{escaped.replace(">", "#gt;")}"'


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _box(x: float, y: float, text: str, kind: str = "stream") -> str:
    radius = {"stream": 3, "join": 10, "store": 3, "result": 17}[kind]
    dashes = ' stroke-dasharray="5 3"' if kind == "store" else ""
    return (
        f'<g class="{kind}"><title>{escape(text)}</title>'
        f'<rect x="{x}" y="{y:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="{radius}" '
        f'fill="none" stroke="currentColor"{dashes}/>'
        f'<text x="{x + _BOX_WIDTH / 2:.0f}" y="{y + _BOX_HEIGHT / 2 + 4:.0f}" '
        f'text-anchor="middle">{escape(_cut(text))}</text></g>'
    )


def _line(x: float, start: float, end: float, columns: int) -> str:
    """From the right end of a box to the left end of one so many columns further."""
    first, last = x + _BOX_WIDTH, x + _COLUMN * columns
    y, to = start + _BOX_HEIGHT / 2, end + _BOX_HEIGHT / 2
    bend = (first + last) / 2
    return (
        f'<path d="M{first} {y:.0f} C{bend} {y:.0f} {bend} {to:.0f} {last} {to:.0f}" '
        'fill="none" stroke="currentColor" opacity="0.6"/>'
    )


def picture_of(
    operator: str, streams: Sequence[str], explanation: str, buckets: int | None = None
) -> PlanPicture:
    """The picture of an operator from what its plan or its checkpoint says."""
    return PlanPicture(operator, tuple(streams), explanation, buckets)
