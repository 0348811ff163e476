"""SQL text of joins by type: ``a FULL JOIN b ON a.k = b.k LEFT JOIN c ON c.k = a.k``.

joins := [FROM] source (type JOIN source (ON conditions | USING (names)))*
source := stream | '(' joins ')'
type := [INNER] | LEFT [OUTER] | RIGHT [OUTER] | FULL [OUTER] | [LEFT] SEMI | [LEFT] ANTI
conditions := condition (AND condition)*      parentheses around any part
condition := operand '=' operand | a time interval as ``intervals`` reads it
           | whatever else ``predicate`` reads
operand := stream.column | COALESCE(stream.column, ...)
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.intervals import Bound, parse_bounds, resolved_bound
from lsmstate.joins.conditions.join_tree import (
    Comparison,
    Join,
    Kind,
    Tree,
    shown_streams,
    streams_of,
)
from lsmstate.joins.conditions.key_classes import resolved, unknown
from lsmstate.joins.conditions.predicate import PairCondition
from lsmstate.joins.conditions.tokens import Column, Token, tokens_of

_KINDS: dict[tuple[str, ...], Kind] = {
    (): "inner",
    ("INNER",): "inner",
    ("LEFT",): "left",
    ("LEFT", "OUTER"): "left",
    ("RIGHT",): "right",
    ("RIGHT", "OUTER"): "right",
    ("FULL",): "full",
    ("FULL", "OUTER"): "full",
    ("SEMI",): "semi",
    ("LEFT", "SEMI"): "semi",
    ("ANTI",): "anti",
    ("LEFT", "ANTI"): "anti",
}
_MODIFIERS = {word for words in _KINDS for word in words} | {"CROSS", "NATURAL"}
_INEQUALITIES = ("<", "<=", ">", ">=")
_MOST_PARENTHESES = 50


def is_from_clause(text: str) -> bool:
    """Whether the text says JOIN, and so is no mere condition."""
    tokens = tokens_of(text)
    dots = {at for at, token in enumerate(tokens) if token.text == "."}
    return any(
        token.is_keyword("JOIN") and at - 1 not in dots and at + 1 not in dots
        for at, token in enumerate(tokens)
    )


def parse_joins(text: str, columns: Mapping[str, Sequence[str]]) -> Tree:
    """The tree of joins over streams, whose ``columns`` are given; each stream stands once.
    InvalidArgumentError names what does not fit."""
    parser = _Parser(text, columns)
    parser.accept("FROM")
    tree = parser.joins()
    parser.expect_end()
    named = streams_of(tree)
    for name in columns:
        if named.count(name) != 1:
            times = "is not joined" if name not in named else "stands in it several times"
            raise InvalidArgumentError(
                f"joins: stream {name!r} {times} in {text!r}; name each stream once"
            )
    return tree


class _Parser:
    """Reads from left to right; ``self._at`` is the token that comes next."""

    def __init__(self, text: str, columns: Mapping[str, Sequence[str]]) -> None:
        self._text = text
        self._columns = columns
        self._tokens = tokens_of(text)
        self._at = 0
        self._depth = 0

    def joins(self) -> Tree:
        tree = self._source()
        while True:
            words = self._words()
            if not words and not self._next.is_keyword("JOIN"):
                return tree
            if words not in _KINDS or not self._next.is_keyword("JOIN"):
                raise self._refusal("a join such as LEFT JOIN, FULL JOIN or LEFT SEMI JOIN")
            self._at += 1
            right = self._source()
            if self.accept("USING"):
                tree = Join(_KINDS[words], tree, right, self._using(tree, right))
            else:
                self._expect("ON")
                tree = Join(_KINDS[words], tree, right, *self._conditions(tree, right))

    def accept(self, word: str) -> bool:
        """Go past a keyword or sign if it comes next."""
        found = self._next.text == word or self._next.is_keyword(word)
        self._at += found
        return found

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._refusal("JOIN or the end")

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _words(self) -> tuple[str, ...]:
        words = []
        while any(self._next.is_keyword(word) for word in _MODIFIERS):
            words.append(self._next.text.upper())
            self._at += 1
        return tuple(words)

    def _source(self) -> Tree:
        if not self.accept("("):
            return resolved("stream", self._name("a stream's name"), self._columns)
        self._depth += 1
        if self._depth > _MOST_PARENTHESES:
            raise self._refusal(f"at most {_MOST_PARENTHESES} parentheses in each other")
        tree = self.joins()
        self._expect(")")
        self._depth -= 1
        return tree

    def _using(self, left: Tree, right: Tree) -> tuple[Comparison, ...]:
        self._expect("(")
        found = []
        while True:
            name = self._name("a column's name")
            sides = (self._everywhere(name, side) for side in (left, right))
            found.append(Comparison(*sides))
            if not self.accept(","):
                self._expect(")")
                return tuple(found)

    def _everywhere(self, name: str, tree: Tree) -> tuple[Column, ...]:
        """The columns of that name in the streams of ``tree``."""
        shown = shown_streams(tree)
        found = tuple(
            Column(stream, column)
            for stream in shown
            for column in self._columns[stream]
            if column.lower() == name.lower()
        )
        if not found:
            known = {column: None for stream in shown for column in self._columns[stream]}
            raise unknown("column", name, known, " or ".join(shown))
        return found

    def _conditions(
        self, left: Tree, right: Tree
    ) -> tuple[tuple[Comparison, ...], tuple[Bound, ...], tuple[PairCondition, ...]]:
        found: list[Comparison] = []
        bounds: list[Bound] = []
        others: list[PairCondition] = []
        depth = 0
        while True:
            if self._has_or():
                raise InvalidArgumentError(
                    f"joins: {left} and {right} are joined by no equality, in {self._text!r}, as "
                    "AND binds before OR; put both sides of OR in parentheses, as in a.k = b.k "
                    "AND (a.x = 1 OR b.y = 2)"
                )
            while not self._is_whole() and self.accept("("):
                depth += 1
            if self._is_whole() or not self._is_equality():
                interval = None if self._is_whole() else self._interval(left, right)
                if interval:
                    bounds += interval
                else:
                    others.append(self._other(left, right))
            else:
                first = self._operand()
                if not (self.accept("=") or self.accept("==")):
                    raise self._refusal("'='")
                found.append(self._sided(first, self._operand(), left, right))
            while depth and self.accept(")"):
                depth -= 1
            if not self.accept("AND"):
                if depth:
                    raise self._refusal("')' or AND")
                if not found:
                    raise InvalidArgumentError(
                        f"joins: {left} and {right} are joined by no equality, in {self._text!r}; "
                        "equate a column of one with a column of the other, as in a.k = b.k"
                    )
                return tuple(found), tuple(bounds), tuple(others)

    def _is_whole(self) -> bool:
        """Whether what comes next is one condition up to AND, by an OR in parentheses around all of
        it, or by a NOT before it."""
        depths = self._depths()
        is_enclosed = self._next.text == "(" and all(depths[:-1])
        is_not = self._next.is_keyword("NOT") and not self._is_part(self._at)
        return is_not or (is_enclosed and self._has_or(1))

    def _has_or(self, depth: int = 0) -> bool:
        """Whether the condition that comes next has an OR in so many parentheses."""
        return any(
            found == depth and self._tokens[at].is_keyword("OR") and not self._is_part(at)
            for at, found in enumerate(self._depths(), self._at)
        )

    def _depths(self) -> list[int]:
        """In how many parentheses each token of the condition that comes next stands."""
        signs = (
            {"(": 1, ")": -1}.get(token.text, 0)
            for token in self._tokens[self._at : self._condition_end()]
        )
        return list(accumulate(signs))

    def _is_equality(self) -> bool:
        """Whether columns of two streams, or COALESCE of some, are equated next."""
        tokens = self._tokens[self._at : self._condition_end()]
        if self._next.is_keyword("COALESCE"):
            return True
        if len(tokens) != 7 or tokens[1].text != "." or tokens[5].text != ".":
            return False
        is_other = tokens[0].value.lower() != tokens[4].value.lower()
        return is_other and tokens[3].text in ("=", "==")

    def _other(self, left: Tree, right: Tree) -> PairCondition:
        """A condition that is neither an equality of both sides nor a time interval."""
        stop = self._condition_end()
        text = self._text[self._next.start : self._tokens[stop].start]
        found = PairCondition.of(text, self._columns)
        for column in found.columns:
            if not (_all_in((column,), left) or _all_in((column,), right)):
                raise InvalidArgumentError(
                    f"joins: {text.strip()!r} names {column.stream}.{column.name}, which is not a "
                    f"column of the joined streams {left} and {right}; name one of theirs"
                )
        self._at = stop
        return found

    def _interval(self, left: Tree, right: Tree) -> tuple[Bound, ...]:
        """The bounds of a time interval if one comes next, and go past it; none otherwise, as for
        a comparison of streams that are joined already, which is another condition."""
        stop = self._condition_end()
        if not any(map(self._says_interval, range(self._at, stop))):
            return ()
        text = self._text[self._next.start : self._tokens[stop].start]
        found = tuple(resolved_bound(self._columns, bound) for bound in parse_bounds(text) or ())
        if any(bound.later.stream == bound.earlier.stream for bound in found):
            return ()
        is_inside = any(
            _all_in((b.later, b.earlier), side) for b in found for side in (left, right)
        )
        if is_inside and not any(bound.most_us for bound in found):
            return ()
        for bound in found:
            for one, other in ((left, right), (right, left)):
                if _all_in((bound.later,), one) and _all_in((bound.earlier,), other):
                    break
            else:
                raise InvalidArgumentError(
                    f"joins: {text.strip()!r} is not between the joined streams {left} and "
                    f"{right}; write a time interval at the join that names its later stream"
                )
        if found:
            self._at = stop
        return found

    def _says_interval(self, at: int) -> bool:
        token = self._tokens[at]
        is_word = any(map(token.is_keyword, ("BETWEEN", "INTERVAL"))) and not self._is_part(at)
        return is_word or token.text in _INEQUALITIES

    def _is_part(self, at: int) -> bool:
        """Whether a token is a part of a column's name, and so no keyword."""
        return "." in (token.text for token in self._tokens[max(at - 1, 0) : at + 2 : 2])

    def _condition_end(self) -> int:
        """Where the condition that comes next is over."""
        depth = betweens = 0
        for at in range(self._at, len(self._tokens)):
            token = self._tokens[at]
            if token.text == "(":
                depth += 1
            elif token.text == ")" and depth:
                depth -= 1
            elif token.text == ")" or token.kind == "end":
                return at
            elif depth or self._is_part(at):
                continue
            elif token.is_keyword("BETWEEN"):
                betweens += 1
            elif token.is_keyword("AND") and betweens:
                betweens -= 1
            elif any(map(token.is_keyword, ("AND", "JOIN", *_MODIFIERS))):
                return at
        raise AssertionError("the last token is the end")

    def _operand(self) -> tuple[Column, ...]:
        if not self.accept("COALESCE"):
            return (self._column(),)
        self._expect("(")
        columns = [self._column()]
        while self.accept(","):
            columns.append(self._column())
        self._expect(")")
        return tuple(columns)

    def _column(self) -> Column:
        stream = resolved("stream", self._name("a column such as a.id"), self._columns)
        self._expect(".")
        name = self._name("a column's name")
        return Column(stream, resolved("column", name, self._columns[stream], stream))

    def _sided(
        self, first: tuple[Column, ...], second: tuple[Column, ...], left: Tree, right: Tree
    ) -> Comparison:
        for one, other in ((first, second), (second, first)):
            if _all_in(one, left) and _all_in(other, right):
                return Comparison(one, other)
        written = Comparison(first, second)
        raise InvalidArgumentError(
            f"joins: {written} does not compare the joined streams {left} and {right}; name a "
            "column of one on each side of '=' (streams of a SEMI or ANTI JOIN have no columns)"
        )

    def _name(self, what: str) -> str:
        token = self._next
        if token.kind != "name":
            raise self._refusal(what)
        self._at += 1
        return token.value

    def _expect(self, word: str) -> None:
        if not self.accept(word):
            raise self._refusal(word)

    def _refusal(self, expected: str) -> InvalidArgumentError:
        found = self._next.text or "the end"
        read = self._text[: self._next.start][-40:]
        return InvalidArgumentError(
            f"joins: {expected} expected, found {found!r} after {read!r}; supported are joins ON "
            "equal columns and time intervals, such as a.k = b.k AND b.at <= a.at + INTERVAL 1 "
            "HOUR; filter by anything else before or after the join"
        )


def _all_in(columns: tuple[Column, ...], tree: Tree) -> bool:
    shown = shown_streams(tree)
    return all(column.stream in shown for column in columns)
