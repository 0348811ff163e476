"""A join condition in two parts: the equalities a join is made by, and the rest that filters it.

Only as much of SQL is read as it takes to find the conjuncts; what the rest means is the business
of whoever evaluates it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.tokens import parse_condition

_TOKEN = re.compile(
    r"""\s*(?P<text> `(?:[^`]|``)*`                     # a quoted name
                   | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"   # strings
                   | --|/\*                                         # comments
                   | [^\W\d]\w* | .)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class SplitCondition:
    """Both parts hold for a result row."""

    keys: str
    """Equalities of columns of two streams, joined by AND: what ``parse_condition`` reads."""
    rest: tuple[str, ...]
    """The other conjuncts, as they are written."""


class _Token(NamedTuple):
    text: str
    start: int
    stop: int

    @property
    def keyword(self) -> str:
        """In upper case; a quoted name is none."""
        return self.text.upper()


def split_condition(text: str) -> SplitCondition:
    """Sort the conjuncts. InvalidArgumentError if no two streams are equated at all."""
    _check_closed(text)
    keys: list[str] = []
    rest: list[str] = []
    for conjunct in _conjuncts(text):
        (keys if _is_key(conjunct) else rest).append(conjunct)
    if not keys:
        raise InvalidArgumentError(
            f"join condition: no column is equal to one of another stream in {text!r}; supported "
            'are equalities such as "a.id = b.id", joined by AND with each other and with '
            "conditions that filter what they match"
        )
    return SplitCondition(" AND ".join(keys), tuple(rest))


def _check_closed(text: str) -> None:
    """InvalidArgumentError for a text that is no whole expression: its conjuncts would be others
    than those that were meant."""
    depth = 0
    for token in _tokens(text):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text in ("'", '"', "`"):
            raise InvalidArgumentError(
                f"join condition: the quote {token.text} is not closed in {text!r}"
            )
        if token.text == ";" or depth < 0:
            raise InvalidArgumentError(
                f"join condition: {token.text!r} has no beginning in {text!r}; leave it out"
            )
    if depth:
        raise InvalidArgumentError(f"join condition: a '(' is not closed in {text!r}; add ')'")


def _is_key(conjunct: str) -> bool:
    try:
        (pair,) = parse_condition(conjunct)
    except InvalidArgumentError:
        return False
    return pair[0].stream.lower() != pair[1].stream.lower()


def _conjuncts(text: str) -> Iterator[str]:
    """In the order they stand; parentheses around several of them are opened."""
    waiting = [text]
    while waiting:
        part = waiting.pop()
        tokens = _tokens(part)
        inner = _enclosed(part, tokens)
        if inner is not None:
            waiting.append(inner)
            continue
        places = _places_of_and(tokens)
        if not places:
            yield part.strip()
            continue
        starts = [0, *(token.stop for token in places)]
        stops = [*(token.start for token in places), len(part)]
        parts = [part[a:b] for a, b in zip(starts, stops, strict=True)]
        waiting.extend(reversed(parts))


def _tokens(text: str) -> list[_Token]:
    tokens = [
        _Token(found["text"], found.start("text"), found.end())
        for found in _TOKEN.finditer(text.rstrip())
    ]
    if any(token.text in ("--", "/*") for token in tokens):
        raise InvalidArgumentError(f"join condition: comments are not supported in {text!r}")
    return tokens


def _enclosed(text: str, tokens: list[_Token]) -> str | None:
    """What stands between parentheses that enclose the whole text."""
    if len(tokens) < 2 or tokens[0].text != "(" or tokens[-1].text != ")":
        return None
    depth = 0
    for token in tokens[:-1]:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0:
            return None
    return text[tokens[0].stop : tokens[-1].start]


def _places_of_and(tokens: list[_Token]) -> list[_Token]:
    """The ANDs that join conjuncts of the whole text; none if an OR binds it together."""
    places: list[_Token] = []
    depth = betweens = 0
    before = ""
    for token in tokens:
        is_name, before = before == ".", token.text
        if is_name:
            continue
        if token.text in ("(", "[") or token.keyword == "CASE":
            depth += 1
        elif token.text in (")", "]") or token.keyword == "END":
            depth -= 1
        elif depth:
            continue
        elif token.keyword == "OR":
            return []
        elif token.keyword == "BETWEEN":
            betweens += 1
        elif token.keyword == "AND" and betweens:
            betweens -= 1
        elif token.keyword == "AND":
            places.append(token)
    return places
