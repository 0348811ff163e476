"""SQL text of joins by type: ``a FULL JOIN b ON a.k = b.k LEFT JOIN c ON c.k = a.k``.

Sources are streams, and joins in parentheses. A join is INNER, LEFT, RIGHT, FULL, SEMI or ANTI, and
has ON or USING. What ON says is sorted: equalities of columns, or of COALESCE of columns, of both
sides; time intervals; other conditions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column, quoted
from lsmstate.joins.conditions.computed import Computing
from lsmstate.joins.conditions.intervals import Bound, bounds_in
from lsmstate.joins.conditions.join_tree import (
    SQL_NAMES,
    Comparison,
    Join,
    Kind,
    Tree,
    shown_streams,
    streams_of,
)
from lsmstate.joins.conditions.names import resolved, unknown
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.parser import parse_tokens, read_conjuncts, tokens_of
from lsmstate.joins.conditions.predicate import Call, Constant, Equal, Expression, Or, text_of

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
_INNER = ((), ("INNER",), ("CROSS",))
_WITH_CROSS: dict[tuple[str, ...], Kind] = {**_KINDS, ("CROSS",): "inner"}
#: Parts of a source or a join that are read.
_SOURCE_PARTS = ("this", "joins")
_JOIN_PARTS = ("this", "side", "kind", "on", "using")


class Side(NamedTuple):
    """What stands on one side of a join: streams that have columns there, and which of them may
    have no row."""

    shown: tuple[str, ...]
    nullable: frozenset[str] = frozenset()

    def joined(self, kind: Kind, right: "Side") -> "Side":
        """The result of a join with another one."""
        if kind in ("semi", "anti"):
            return self
        lost = self.nullable | right.nullable
        lost |= frozenset(right.shown) if kind in ("left", "full") else frozenset()
        lost |= frozenset(self.shown) if kind in ("right", "full") else frozenset()
        return Side(self.shown + right.shown, lost)


#: Gives conditions between the two sides of a join.
Between = Callable[[Side, Side], Iterable[str]]


def is_from_clause(text: str) -> bool:
    """Whether the text says JOIN, and so is no mere condition."""
    return any(token.token_type.name == "JOIN" for token in tokens_of(text, "join condition"))


def parse_joins(
    text: str, columns: Mapping[str, Sequence[str]], computing: Computing | None = None
) -> Tree:
    """The tree of joins over streams, whose ``columns`` are given; each stream stands once. With
    ``computing`` keys may be other parts of rows than columns. InvalidArgumentError names what does
    not fit."""
    tokens = _from_tokens(text)
    tree = _Reader(text, columns, computing or Computing(columns)).tree(
        parse_tokens("From", tokens, text, "joins").this
    )
    named = streams_of(tree)
    for name in columns:
        if named.count(name) != 1:
            times = "is not joined" if name not in named else "stands in it several times"
            raise InvalidArgumentError(
                f"joins: stream {name!r} {times} in {text!r}; name each stream once"
            )
    return tree


class TwoSided(NamedTuple):
    """A join of two streams by a condition, whatever that says."""

    kind: Kind
    left: str
    right: str
    condition: str


def two_sided(text: str, columns: Mapping[str, Sequence[str]]) -> TwoSided | None:
    """A FROM clause of two streams, each of ``columns`` once.

    None if it is another clause, or has USING. InvalidArgumentError for a syntax error, an unknown
    name, or what is not supported.
    """
    clause = parse_tokens("From", _from_tokens(text), text, "joins").this
    joins = list(clause.args.get("joins") or ())
    if len(joins) != 1:
        return None
    join = joins[0]
    words = tuple(str(join.args[name]) for name in ("side", "kind") if join.args.get(name))
    more = [name for name, value in join.args.items() if value and name not in _JOIN_PARTS]
    kind = "inner" if words in _INNER else _KINDS.get(words)
    if kind is None or more or join.args.get("using") or not _are_tables(clause, join.this):
        return None
    left, right = (resolved("stream", each.name, columns) for each in (clause, join.this))
    if sorted((left, right)) != sorted(columns):
        return None
    on = join.args.get("on")
    return TwoSided(kind, left, right, _written([] if on is None else [on], columns, text))


def inner_condition(text: str, columns: Mapping[str, Sequence[str]]) -> str | None:
    """The condition that says the same as a FROM clause of inner and cross joins.

    None if it has another join, USING, or streams that are not all of ``columns``, each once.
    InvalidArgumentError for a syntax error, an unknown name, or what is not supported.
    """
    tokens = _from_tokens(text)
    clause = parse_tokens("From", tokens, text, "joins").this
    sources, conditions = [clause], []
    for join in clause.args.get("joins") or ():
        words = tuple(str(join.args[name]) for name in ("side", "kind") if join.args.get(name))
        more = [name for name, value in join.args.items() if value and name not in _JOIN_PARTS]
        if words not in _INNER or more or join.args.get("using"):
            return None
        sources.append(join.this)
        if join.args.get("on") is not None:
            conditions.append(join.args["on"])
    if not _are_tables(*sources):
        return None
    named = [resolved("stream", each.name, columns) for each in sources]
    if sorted(named) != sorted(columns):
        return None
    return _written(conditions, columns, text)


def with_conditions(text: str, columns: Mapping[str, Sequence[str]], between: Between) -> str:
    """A FROM clause with more conditions at each of its joins. InvalidArgumentError for a syntax
    error, an unknown name, or what is not supported."""
    clause = parse_tokens("From", _from_tokens(text), text, "joins").this
    return _Reader(text, columns, Computing(columns)).written(clause, between)[0]


def _are_tables(*sources: Any) -> bool:
    """Whether all sources are names of streams, and nothing more."""
    parts = {name for each in sources for name, value in each.args.items() if value}
    is_plain = all(type(each).__name__ == "Table" for each in sources)
    return is_plain and parts <= set(_SOURCE_PARTS)


def _written(conditions: Sequence[Any], columns: Mapping[str, Sequence[str]], text: str) -> str:
    """What all conditions say together."""
    conjuncts = [each for on in conditions for each in read_conjuncts(on, columns, text)]
    return " AND ".join(f"({text_of(each)})" for each in conjuncts) or "TRUE"


def _from_tokens(text: str) -> list[Any]:
    from sqlglot import Token, TokenType

    tokens = tokens_of(text, "joins")
    if tokens and tokens[0].token_type != TokenType.FROM:
        tokens = [Token(TokenType.FROM, "FROM"), *tokens]
    return tokens


class _Reader:
    """Makes a tree of joins of what sqlglot read."""

    def __init__(
        self, text: str, columns: Mapping[str, Sequence[str]], computing: Computing
    ) -> None:
        self._text = text
        self._columns = columns
        self._computing = computing

    def tree(self, node: Any) -> Tree:
        tree = self._source(node)
        for join in node.args.get("joins") or ():
            tree = self._join(tree, join)
        return tree

    def written(self, node: Any, between: Between) -> tuple[str, Side]:
        """The clause as text, with what ``between`` gives for each join, and what it shows."""
        name = self._stream(node)
        if name is None:
            text, left = self.written(node.this, between)
            text = f"({text})"
        else:
            text, left = quoted(name), Side((name,))
        for join in node.args.get("joins") or ():
            kind = self._kind(join, _WITH_CROSS)
            below, right = self.written(join.this, between)
            below = f"({below})" if join.this.args.get("joins") else below
            on = [
                *(f"({text_of(each)})" for each in self._conjuncts(join.args.get("on"))),
                *self._used(join, left, right),
                *between(left, right),
            ]
            text = f"{text} {SQL_NAMES[kind]} {below} ON {' AND '.join(on) or 'TRUE'}"
            left = left.joined(kind, right)
        return text, left

    def _used(self, join: Any, left: Side, right: Side) -> Iterable[str]:
        """What USING says, as conditions: where each stream has a row, all columns are equal."""
        for each in join.args.get("using") or ():
            sides = [self._everywhere(each.name, side.shown) for side in (left, right)]
            if left.nullable or right.nullable:
                yield str(Comparison(*sides))
            else:
                pairs = product(*sides)
                yield from (str(Comparison((one,), (other,))) for one, other in pairs)

    def _source(self, node: Any) -> Tree:
        name = self._stream(node)
        return self.tree(node.this) if name is None else name

    def _stream(self, node: Any) -> str | None:
        """The stream that is named; None for parentheses around something else."""
        kind = type(node).__name__
        more = [name for name, value in node.args.items() if value and name not in _SOURCE_PARTS]
        if kind == "Table" and not more:
            return resolved("stream", node.name, self._columns)
        if kind == "Subquery" and not more and type(node.this).__name__ in ("Table", "Subquery"):
            return None
        bare = node.copy()
        bare.set("joins", None)
        raise InvalidArgumentError(
            f"joins: {bare.sql(dialect='spark')!r} is no stream in {self._text!r}; name a stream, "
            "without another name for it, or write joins in parentheses"
        )

    def _kind(self, join: Any, known: Mapping[tuple[str, ...], Kind] = _KINDS) -> Kind:
        """The type of a join; InvalidArgumentError for one that is not known."""
        words = tuple(str(join.args[name]) for name in ("side", "kind") if join.args.get(name))
        more = [name for name, value in join.args.items() if value and name not in _JOIN_PARTS]
        if words not in known or more:
            shown = " ".join([*(str(join.args[name]) for name in more), *words])
            raise InvalidArgumentError(
                f"joins: there is no {shown} JOIN here, in {self._text!r}; write a join such as "
                "LEFT JOIN, FULL JOIN or LEFT SEMI JOIN"
            )
        return known[words]

    def _join(self, left: Tree, join: Any) -> Join:
        kind = self._kind(join)
        right = self.tree(join.this)
        using = join.args.get("using")
        if using:
            shown = (shown_streams(left), shown_streams(right))
            sides = ((self._everywhere(each.name, side) for side in shown) for each in using)
            return Join(kind, left, right, tuple(Comparison(*both) for both in sides))
        return Join(kind, left, right, *self._conditions(join.args.get("on"), left, right))

    def _everywhere(self, name: str, shown: Sequence[str]) -> tuple[Column, ...]:
        """The columns of that name in some streams."""
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
        self, on: Any, left: Tree, right: Tree
    ) -> tuple[tuple[Comparison, ...], tuple[Bound, ...], tuple[PairCondition, ...]]:
        found: list[Comparison] = []
        bounds: list[Bound] = []
        others: list[PairCondition] = []
        conjuncts = self._conjuncts(on)
        for predicate in map(self._computing.of, conjuncts):
            sides = _equated(predicate)
            interval = () if sides else self._interval(predicate, left, right)
            if sides:
                found.append(self._sided(*sides, left, right))
            elif interval:
                bounds += interval
            elif conjuncts != [predicate] or not isinstance(predicate, Or):
                others.append(self._other(predicate, left, right))
        if found:
            return tuple(found), tuple(bounds), tuple(others)
        remedy = "equate a column of one with a column of the other, as in a.k = b.k"
        if any(isinstance(predicate, Or) for predicate in conjuncts):
            remedy = (
                "AND binds before OR, so put both sides of OR in parentheses, as in a.k = b.k AND "
                "(a.x = 1 OR b.y = 2)"
            )
        raise InvalidArgumentError(
            f"joins: {left} and {right} are joined by no equality, in {self._text!r}; {remedy}"
        )

    def _conjuncts(self, on: Any) -> list[Expression]:
        """What ON says; nothing for a mere TRUE, as which sqlglot reads a join without ON."""
        found = [] if on is None else read_conjuncts(on, self._columns, self._text)
        return [] if len(found) == 1 and isinstance(found[0], Constant) else found

    def _other(self, predicate: Expression, left: Tree, right: Tree) -> PairCondition:
        """A condition that is neither an equality of both sides nor a time interval."""
        found = PairCondition(predicate)
        found.check_names_columns()
        for column in found.columns:
            if not (_all_in((column,), left) or _all_in((column,), right)):
                raise InvalidArgumentError(
                    f"joins: {str(found)!r} names {column}, which is not a column of the joined "
                    f"streams {left} and {right}; name one of theirs"
                )
        return found

    def _interval(self, predicate: Expression, left: Tree, right: Tree) -> tuple[Bound, ...]:
        """The bounds of a time interval; none for others, as for a comparison of streams that are
        joined already, which is another condition."""
        found = bounds_in(predicate)
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
                    f"joins: {text_of(predicate)!r} is not between the joined streams {left} and "
                    f"{right}; write a time interval at the join that names its later stream"
                )
        return found

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


def _equated(predicate: Expression) -> tuple[tuple[Column, ...], tuple[Column, ...]] | None:
    """The columns on both sides of an equality, of COALESCE perhaps; None for another."""
    if not isinstance(predicate, Equal):
        return None
    left, right = _coalesced(predicate.left), _coalesced(predicate.right)
    if left is None or right is None:
        return None
    is_one = len(left) == len(right) == 1 and left[0].stream == right[0].stream
    return None if is_one else (left, right)


def _coalesced(expression: Expression) -> tuple[Column, ...] | None:
    if isinstance(expression, Column):
        return (expression,)
    if not isinstance(expression, Call) or expression.name != "coalesce":
        return None
    found = tuple(each for each in expression.arguments if isinstance(each, Column))
    return found if len(found) == len(expression.arguments) else None


def _all_in(columns: tuple[Column, ...], tree: Tree) -> bool:
    shown = shown_streams(tree)
    return all(column.stream in shown for column in columns)
