"""The text of a join condition: a conjunction of ``name.column = name.column``, nothing else.

condition := comparison (AND comparison)*      parentheses around any part
comparison := column '=' column                 '==' too, as in Spark
column := identifier '.' identifier             backquoted or plain
"""

import re
from typing import Final, NamedTuple

from lsmstate.errors import InvalidArgumentError

#: What a name may not be unless it is quoted.
KEYWORDS: Final = frozenset(
    {"FROM", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "CROSS", "NATURAL"}
    | {"JOIN", "ON", "USING", "AND", "OR", "COALESCE"}
)
_SUPPORTED = (
    "supported are equalities of columns joined by AND, such as "
    '"a.id = b.id AND a.day = b.day"; filter the inputs before the join for anything else'
)

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<string>'(?:[^'\\]|\\.|'')*')|(?P<word>[^\W\d]\w*)"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<sign>==|<=>|<=|>=|<>|!=|.))",
    re.DOTALL,
)


class Column(NamedTuple):
    stream: str
    name: str


class Token(NamedTuple):
    """A piece of SQL text."""

    kind: str
    """``name``, ``string``, ``number``, ``sign`` or ``end``; a keyword is a name that was not
    quoted."""
    text: str
    value: str
    start: int
    stop: int

    def is_keyword(self, keyword: str) -> bool:
        return self.kind == "name" and self.text.upper() == keyword


def parse_condition(text: str) -> list[tuple[Column, Column]]:
    """The equalities of the condition, in the order they stand. InvalidArgumentError otherwise."""
    tokens = tokens_of(text)
    equalities: list[tuple[Column, Column]] = []
    at = depth = 0
    while True:
        while tokens[at].text == "(":
            at, depth = at + 1, depth + 1
        left, at = _column(text, tokens, at)
        if tokens[at].text not in ("=", "=="):
            raise _refusal(text, tokens, at, "'=' expected")
        right, at = _column(text, tokens, at + 1)
        equalities.append((left, right))
        while tokens[at].text == ")" and depth > 0:
            at, depth = at + 1, depth - 1
        if tokens[at].kind == "end" and depth == 0:
            return equalities
        if not tokens[at].is_keyword("AND"):
            expected = "')' or AND expected" if depth else "AND expected"
            raise _refusal(text, tokens, at, expected)
        at += 1


def quoted(name: str) -> str:
    """The name as ``tokens_of`` reads it, whatever it holds."""
    if name.isidentifier() and name.upper() not in KEYWORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


def tokens_of(text: str) -> list[Token]:
    """The text in pieces, and an ``end`` behind the last one."""
    tokens = []
    end = len(text.rstrip())
    at = 0
    while at < end:
        found = _TOKEN.match(text, at)
        assert found is not None, "the last alternative takes any character"
        at = found.end()
        written = found[0].strip()
        start = at - len(written)
        if found["quoted"]:
            tokens.append(Token("name", written, written[1:-1].replace("``", "`"), start, at))
        elif found["word"]:
            tokens.append(Token("name", written, written, start, at))
        else:
            kind = next(kind for kind in ("string", "number", "sign") if found[kind])
            tokens.append(Token(kind, written, written, start, at))
    tokens.append(Token("end", "", "", end, end))
    return tokens


def _column(text: str, tokens: list[Token], at: int) -> tuple[Column, int]:
    stream = tokens[at]
    if stream.kind != "name":
        raise _refusal(text, tokens, at, "a column such as a.id expected")
    if tokens[at + 1].text != ".":
        raise _refusal(text, tokens, at, "a column needs its stream's name in front, as in a.id")
    name = tokens[at + 2]
    if name.kind != "name":
        raise _refusal(text, tokens, at + 2, "a column's name expected")
    return Column(stream.value, name.value), at + 3


def _refusal(text: str, tokens: list[Token], at: int, expected: str) -> InvalidArgumentError:
    """Quotes the conjunct around token ``at``."""
    first = last = at
    while first > 0 and not tokens[first - 1].is_keyword("AND"):
        first -= 1
    while tokens[last].kind != "end" and not tokens[last].is_keyword("AND"):
        last += 1
    part = text[tokens[first].start : tokens[last].start].strip()
    found = tokens[at].text or "the end"
    return InvalidArgumentError(
        f"join condition: {expected}, found {found!r} in {part!r}; {_SUPPORTED}"
    )
