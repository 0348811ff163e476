"""A column of a stream, and names as conditions write them."""

from typing import Final, NamedTuple

#: What a name may not be unless it is quoted.
KEYWORDS: Final = frozenset(
    {"FROM", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "CROSS", "NATURAL"}
    | {"JOIN", "ON", "USING", "AND", "OR", "COALESCE"}
)


class Column(NamedTuple):
    stream: str
    name: str

    def __str__(self) -> str:
        return f"{quoted(self.stream)}.{quoted(self.name)}"


def quoted(name: str) -> str:
    """The name as a condition has it, whatever it holds."""
    if name.isidentifier() and name.upper() not in KEYWORDS:
        return name
    return "`" + name.replace("`", "``") + "`"
