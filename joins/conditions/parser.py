"""SQL text of conditions, read by sqlglot in Spark's dialect, as trees.

What sqlglot calls an error is a syntax error here, with its place. A part that is read but not
known becomes ``Unknown``: Spark may evaluate it, plain Python refuses it by name. sqlglot is
imported at the first text, since the workers of a query read none.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.distances import DISTANCES
from lsmstate.joins.conditions.literals import date_of, length_of, span_of, time_of
from lsmstate.joins.conditions.names import resolved
from lsmstate.joins.conditions.predicate import (
    And,
    Between,
    Call,
    Case,
    Compare,
    Constant,
    Duration,
    Element,
    Equal,
    Expression,
    Field,
    IsNull,
    Like,
    Not,
    NullSafeEqual,
    Or,
    Unknown,
)

#: Columns of the streams, by which names are resolved.
Columns = Mapping[str, Sequence[str]]
#: A node or a token of sqlglot.
Node = Any

_MOST_PARENTHESES: Final = 50
#: What a parser may fail with beside its own errors, on text that no one writes.
_FAILURES: Final = (ValueError, TypeError, IndexError, KeyError, AttributeError, RecursionError)
_WORD: Final = re.compile(r"[^\W\d]\w*")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a"}
_NUMBER_TYPES: Final = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
}


@dataclass(frozen=True, slots=True)
class Conjunct:
    """A part of a condition that has to be true by itself."""

    predicate: Expression
    text: str
    """As it was written, without comments, as Spark reads it."""


def parse_condition(text: str, columns: Columns) -> Expression:
    """The tree of a condition. InvalidArgumentError for a syntax error, with its place, and for
    names that the streams, whose ``columns`` are given, do not have."""
    tokens = tokens_of(text, "join condition")
    return Converter(columns, text).expression(_parsed(tokens, text))


def parse_conjuncts(text: str, columns: Columns) -> tuple[Conjunct, ...]:
    """The conjuncts of a condition, in the order they stand. Raises as ``parse_condition``."""
    tokens = tokens_of(text, "join condition")
    converter = Converter(columns, text)
    return tuple(
        Conjunct(converter.expression(node), _written(part, text))
        for part, node in _split(tokens, _parsed(tokens, text), text)
    )


def read_conjuncts(node: Node, columns: Columns, text: str) -> list[Expression]:
    """The conjuncts of an ON clause that sqlglot has read."""
    found = Converter(columns, text).expression(node)
    return list(found.parts) if isinstance(found, And) else [found]


def tokens_of(text: str, what: str) -> list[Node]:
    """The text in tokens of sqlglot. A word or a double-quoted text beside a dot is a name, and
    strings have the values that Spark gives them. ``what`` begins the message of an error."""
    from sqlglot import TokenType
    from sqlglot.errors import TokenError

    try:
        tokens = _dialect().tokenize(text)
    except (TokenError, *_FAILURES):
        raise _unclosed(text, what) from None
    tokens = _joined_strings(tokens, text)
    depth = 0
    for token in tokens:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth > _MOST_PARENTHESES:
            raise InvalidArgumentError(
                f"{what}: at most {_MOST_PARENTHESES} parentheses may stand in each other in "
                f"{text!r}; leave some out"
            )
        if token.token_type == TokenType.SEMICOLON or depth < 0:
            raise syntax_error(what, text, token.start, token.end + 1, "leave it out")
    if depth:
        raise syntax_error(what, text, len(text), len(text), "a '(' is not closed; add ')'")
    beside = {at + step for at, t in enumerate(tokens) if _is_dot(t) for step in (-1, 1)}
    for at, token in enumerate(tokens):
        written = text[token.start : token.end + 1]
        if token.token_type == TokenType.STRING:
            token.text = _unescaped(written)
            if at in beside and written.startswith('"'):
                token.token_type = TokenType.IDENTIFIER
        elif at in beside and _WORD.fullmatch(written):
            token.token_type = TokenType.IDENTIFIER
    return tokens


def syntax_error(what: str, text: str, start: int, stop: int, remedy: str) -> InvalidArgumentError:
    """The error of what stands between two places of a text."""
    found = text[start:stop] or "the end"
    line = text.count("\n", 0, start) + 1
    column = start - (text.rfind("\n", 0, start) + 1) + 1
    return InvalidArgumentError(
        f"{what}: syntax error at {found!r}, line {line}, column {column} of {text!r}: {remedy}"
    )


def parse_tokens(kind: str, tokens: Sequence[Node], text: str, what: str) -> Node:
    """A node of sqlglot, of a class by name. InvalidArgumentError for a syntax error."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if not tokens:
        raise syntax_error(what, text, 0, 0, "write a condition such as a.id = b.id")
    try:
        (node,) = _dialect().parser().parse_into(getattr(exp, kind), list(tokens), text)
    except SqlglotError as error:
        (told, *_) = getattr(error, "errors", None) or [{}]
        raise _told_error(told, text, what) from None
    except _FAILURES:
        raise syntax_error(what, text, 0, len(text), "this is no condition of SQL") from None
    return node


class Converter:
    """Makes trees of what sqlglot read."""

    def __init__(self, columns: Columns, text: str) -> None:
        self._columns = columns
        self._text = text
        self._readers: dict[str, Callable[[Node], Expression | None]] = {
            "Paren": lambda node: self.expression(node.this),
            "Column": self.column,
            "Dot": self._dot,
            "Bracket": self._element,
            "Literal": self._literal,
            "Boolean": lambda node: Constant(bool(node.this), pa.bool_()),
            "Null": lambda _: Constant(None, pa.null()),
            "Neg": self._negative,
            "TryCast": self._suffixed,
            "Cast": self._typed_text,
            "Interval": self._interval,
            "EQ": lambda node: Equal(*self._both(node)),
            "NullSafeEQ": lambda node: NullSafeEqual(*self._both(node)),
            "NullSafeNEQ": lambda node: Not(NullSafeEqual(*self._both(node))),
            "NEQ": lambda node: Compare("<>", *self._both(node)),
            "LT": lambda node: Compare("<", *self._both(node)),
            "LTE": lambda node: Compare("<=", *self._both(node)),
            "GT": lambda node: Compare(">", *self._both(node)),
            "GTE": lambda node: Compare(">=", *self._both(node)),
            "And": self._and,
            "Or": self._or,
            "Not": lambda node: Not(self.expression(node.this)),
            "Is": self._is,
            "Between": self._between,
            "In": self._in,
            "Like": self._like,
            "Escape": self._like,
            "Add": self._add,
            "Sub": lambda node: Call("-", self._both(node)),
            "Mul": lambda node: Call("*", self._both(node)),
            "Div": lambda node: Call("/", self._both(node)),
            "Mod": lambda node: Call("%", self._both(node)),
            "IntDiv": lambda node: Call("div", self._both(node)),
            "Abs": lambda node: Call("abs", (self.expression(node.this),)),
            "Length": lambda node: Call("length", (self.expression(node.this),)),
            "DPipe": lambda node: Call("concat", self._both(node)),
            "Concat": lambda node: Call("concat", self._all(node.expressions)),
            "Coalesce": lambda node: self._first_and_more("coalesce", node),
            "Least": lambda node: self._first_and_more("least", node),
            "Greatest": lambda node: self._first_and_more("greatest", node),
            "CosineDistance": lambda node: Call("cosine_distance", self._both(node)),
            "ManhattanDistance": lambda node: Call("manhattan_distance", self._both(node)),
            "Levenshtein": self._levenshtein,
            "Anonymous": self._named,
            "DateBin": lambda node: Call("date_bin", self._both(node)),
            "Case": self._case,
            "If": self._if,
            "DateDiff": self._datediff,
            "TsOrDsAdd": self._date_add,
            "JSONExtractScalar": self._json_path,
        }

    def expression(self, node: Node) -> Expression:
        """The tree of a node, ``Unknown`` where none of ours says the same."""
        if node is None:
            raise InvalidArgumentError(
                f"join condition {self._text!r}: a part is missing; write a condition such as "
                "a.id = b.id"
            )
        reader = self._readers.get(type(node).__name__)
        found = reader(node) if reader is not None else None
        return self._unknown(node) if found is None else found

    def column(self, node: Node) -> Expression | None:
        """A column, or fields of it."""
        parts = [part.name for part in node.parts]
        if len(self._columns) == 1:
            (only,) = self._columns
            parts = parts if parts[0].lower() == only.lower() and parts[1:] else [only, *parts]
        if len(parts) == 1:
            near = next(iter(self._columns))
            raise InvalidArgumentError(
                f"join condition: a column needs its stream's name in front, as in {near}.id; "
                f"found {parts[0]!r} in {self._text!r}"
            )
        if not all(parts) or type(node.this).__name__ == "Star":
            return None
        stream = resolved("stream", parts[0], self._columns)
        name = resolved("column", parts[1], self._columns[stream], stream)
        found: Expression = Column(stream, name)
        for field in parts[2:]:
            found = Field(found, field)
        return found

    def _dot(self, node: Node) -> Expression | None:
        if type(node.expression).__name__ != "Identifier":
            return None
        return Field(self.expression(node.this), node.expression.name)

    def _element(self, node: Node) -> Expression | None:
        keys = self._all(node.expressions)
        is_one = len(keys) == 1 and isinstance(keys[0], Constant) and keys[0].value is not None
        if not is_one:
            return None
        (key,) = keys
        assert isinstance(key, Constant)
        return Element(self.expression(node.this), key)

    def _add(self, node: Node) -> Expression:
        left, right = self._both(node)
        values = [s.value for s in (left, right) if isinstance(s, Constant)]
        lengths = [value for value in values if isinstance(value, Duration)]
        if len(lengths) < 2:
            return Call("+", (left, right))
        # INTERVAL 1 HOUR 30 MINUTES, which sqlglot reads as a sum.
        total = sum(length.length_us for length in lengths)
        has_days = any(length.has_days for length in lengths)
        return Constant(Duration(total, has_days), pa.duration("us"))

    def _both(self, node: Node) -> tuple[Expression, Expression]:
        return self.expression(node.this), self.expression(node.expression)

    def _all(self, nodes: Iterable[Node]) -> tuple[Expression, ...]:
        return tuple(map(self.expression, nodes))

    def _first_and_more(self, name: str, node: Node) -> Expression:
        found = self._all((node.this, *node.expressions))
        return found[0] if name == "coalesce" and len(found) == 1 else Call(name, found)

    def _named(self, node: Node) -> Expression | None:
        name = str(node.this).lower()
        is_known = name in DISTANCES or name == "date_bin"
        return Call(name, self._all(node.expressions)) if is_known else None

    def _levenshtein(self, node: Node) -> Expression | None:
        told = {name for name, value in node.args.items() if value}
        if told != {"this", "expression"}:
            raise InvalidArgumentError(
                f"join condition {self._text!r}: levenshtein with a third argument gives -1 beyond "
                "it, which is no distance; write levenshtein(a.s, b.s) <= 2"
            )
        return Call("levenshtein", self._both(node))

    def _literal(self, node: Node) -> Expression:
        return Constant(node.this, pa.string()) if node.is_string else _number(node.this)

    def _negative(self, node: Node) -> Expression:
        found = self.expression(node.this)
        if isinstance(found, Constant) and isinstance(found.value, Duration):
            length = found.value
            return Constant(Duration(-length.length_us, length.has_days), found.type)
        if type(node.this).__name__ == "Literal" and not node.this.is_string:
            return _number("-" + node.this.this)
        if isinstance(found, Constant) and isinstance(found.value, int | float | Decimal):
            return Constant(-found.value, found.type)
        return Call("negative", (found,))

    def _suffixed(self, node: Node) -> Expression | None:
        """A number with letters, such as 1L or 2.5BD; casts are not known."""
        if type(node.this).__name__ != "Literal":
            return None
        written, kind = node.this.this, node.to.this.name
        if kind == "DECIMAL" and re.fullmatch(r"\d+\.?\d*|\.\d+", written):
            found = _decimal(Decimal(written))
            digits = [int(each.name) for each in node.to.expressions]
            return found if digits == [found.type.precision, found.type.scale] else None
        if node.this.is_string:
            return None
        if kind not in _NUMBER_TYPES:
            return None
        of = _NUMBER_TYPES[kind]
        value = float(written) if pa.types.is_floating(of) else int(written)
        if isinstance(value, int) and not -(1 << of.bit_width - 1) <= value < 1 << of.bit_width - 1:
            raise InvalidArgumentError(
                f"join condition: {written} is no {kind} in {self._text!r}; write a number in its "
                "range"
            )
        return Constant(value, of)

    def _typed_text(self, node: Node) -> Expression | None:
        """DATE '2026-01-31' and the like."""
        if type(node.this).__name__ != "Literal" or not node.this.is_string:
            return None
        written, kind = node.this.this, node.to.this.name
        if kind == "DATE":
            found = date_of(written)
            if found is None:
                raise InvalidArgumentError(
                    f"join condition: a date such as '2026-01-31' expected, found {written!r} in "
                    f"{self._text!r}"
                )
            return Constant(found, pa.date32())
        moment = time_of(written) if kind in ("TIMESTAMPNTZ", "TIMESTAMP_NTZ") else None
        return None if moment is None else Constant(moment, pa.timestamp("us"))

    def _interval(self, node: Node) -> Expression | None:
        amount, unit = node.this, node.args.get("unit")
        if type(amount).__name__ != "Literal":
            return None
        if type(unit).__name__ == "IntervalSpan":
            found = span_of(amount.this, unit.this.name.lower(), unit.expression.name.lower())
        else:
            found = length_of(f"{amount.this} {unit.name if unit is not None else ''}")
        return None if found is None else Constant(Duration(*found), pa.duration("us"))

    def _and(self, node: Node) -> Expression:
        return And(self._flat(node, And))

    def _or(self, node: Node) -> Expression:
        return Or(self._flat(node, Or))

    def _flat(self, node: Node, kind: type[And] | type[Or]) -> tuple[Expression, ...]:
        nodes, waiting = [], [node]
        while waiting:
            found = waiting.pop()
            if type(found).__name__ == kind.__name__:
                waiting += [found.expression, found.this]
            elif kind is And and type(found).__name__ == "Paren":
                waiting.append(found.this)
            else:
                nodes.append(found)
        return self._all(nodes)

    def _is(self, node: Node) -> Expression | None:
        value = self.expression(node.this)
        kind = type(node.expression).__name__
        found: Expression | None = None
        if kind == "Null":
            found = IsNull(value)
        elif kind == "Boolean":
            found = NullSafeEqual(value, Constant(bool(node.expression.this), pa.bool_()))
        return Not(found) if found is not None and node.args.get("negate") else found

    def _between(self, node: Node) -> Expression | None:
        if node.args.get("symmetric"):
            return None
        low, high = node.args["low"], node.args["high"]
        return Between(self.expression(node.this), *self._all((low, high)))

    def _in(self, node: Node) -> Expression | None:
        if not node.expressions or any(v for k, v in node.args.items() if k not in _IN_PARTS):
            return None
        value = self.expression(node.this)
        parts = tuple(Equal(value, option) for option in self._all(node.expressions))
        return parts[0] if len(parts) == 1 else Or(parts)

    def _like(self, node: Node) -> Expression | None:
        like, escape = node, "\\"
        if type(node).__name__ == "Escape":
            like = node.this
            written = node.expression
            if type(like).__name__ != "Like" or not written.is_string or len(written.this) != 1:
                return None
            escape = written.this
        if type(like.expression).__name__ in ("Any", "All", "Tuple"):
            return None
        found = Like(*self._both(like), escape)
        return Not(found) if like.args.get("negate") else found

    def _case(self, node: Node) -> Expression:
        of = node.this
        choices = []
        for choice in node.args["ifs"]:
            when = self.expression(choice.this)
            condition = when if of is None else Equal(self.expression(of), when)
            choices.append((condition, self.expression(choice.args["true"])))
        otherwise = node.args.get("default")
        last = None if otherwise is None else self.expression(otherwise)
        return Case(tuple(choices), last)

    def _if(self, node: Node) -> Expression:
        otherwise = node.args.get("false")
        choice = self.expression(node.this), self.expression(node.args["true"])
        return Case((choice,), None if otherwise is None else self.expression(otherwise))

    def _datediff(self, node: Node) -> Expression | None:
        sides = (node.this, node.expression)
        if node.args.get("unit") or any(type(s).__name__ != "TsOrDsToDate" for s in sides):
            return None
        return Call("datediff", self._all(side.this for side in sides))

    def _date_add(self, node: Node) -> Expression | None:
        unit = node.args.get("unit")
        if unit is None or unit.name.upper() != "DAY":
            return None
        day, days = self._both(node)
        is_back = isinstance(days, Call) and days.name == "*" and days.arguments[1] == _MINUS_ONE
        if is_back and type(node.expression).__name__ == "Mul":
            assert isinstance(days, Call)
            return Call("date_add", (day, _negated(days.arguments[0])))
        return Call("date_add", (day, days))

    def _json_path(self, node: Node) -> Expression | None:
        path = "$"
        for step in node.expression.expressions[1:]:
            kind = type(step).__name__
            if kind == "JSONPathKey" and isinstance(step.this, str) and step.this.isidentifier():
                path += f".{step.this}"
            elif kind == "JSONPathSubscript" and isinstance(step.this, int) and step.this >= 0:
                path += f"[{step.this}]"
            else:
                return None
        return Call("get_json_object", (self.expression(node.this), Constant(path, pa.string())))

    def _unknown(self, node: Node) -> Expression:
        shown = node.sql(dialect="spark", comments=False)
        called = re.match(r"\w+(?=\()", shown)
        if called is not None:
            what = f"the function {called[0].lower()}"
            if called[0].lower() in ("datediff", "date_add") and node.args.get("unit"):
                what += " with a unit"
        elif type(node).__name__ == "Interval":
            what = "an interval of months or years, which has no fixed length,"
        else:
            what = type(node).__name__.upper()
        columns = []
        for column in node.find_all(_column()):
            if len(column.parts) > 1 and self._is_stream(column.parts[0].name):
                found = self.column(column)
                while isinstance(found, Field):
                    found = found.of
                if isinstance(found, Column):
                    columns.append(found)
        return Unknown(what, shown, tuple(dict.fromkeys(columns)))

    def _is_stream(self, name: str) -> bool:
        return name.lower() in map(str.lower, self._columns)


_IN_PARTS: Final = ("this", "expressions")
_MINUS_ONE: Final = Constant(-1, pa.int32())


def _negated(days: Expression) -> Expression:
    if isinstance(days, Constant) and isinstance(days.value, int):
        return Constant(-days.value, days.type)
    return Call("negative", (days,))


def _dialect() -> Any:
    from sqlglot.dialects.spark import Spark

    return Spark()


def _column() -> Any:
    from sqlglot import exp

    return exp.Column


def _parsed(tokens: Sequence[Node], text: str) -> Node:
    return parse_tokens("Condition", tokens, text, "join condition")


def _told_error(told: Mapping[str, Any], text: str, what: str) -> InvalidArgumentError:
    line, last = told.get("line"), told.get("col")
    if line is None or last is None:
        return syntax_error(what, text, 0, len(text), "this is no condition of SQL")
    highlight = told.get("highlight") or ""
    before = sum(len(each) + 1 for each in text.split("\n")[: line - 1])
    start = max(before + last - len(highlight), 0)
    missing = re.match(r"Required keyword: '(?:this|expression)'", told.get("description") or "")
    remedy = "a column or a value is missing beside it" if missing else "it does not belong here"
    if not missing and re.match(r"\w", highlight) and re.search(r"\w\s+$", text[:start]):
        remedy += "; is an AND missing, or are backquotes around a name with a space?"
    return syntax_error(what, text, start, start + len(highlight), remedy)


def _unclosed(text: str, what: str) -> InvalidArgumentError:
    """The error of a quote or a comment without an end: the last one before which all is whole."""
    from sqlglot.errors import TokenError

    for found in reversed(list(re.finditer(r"[`'\"]|/\*", text))):
        try:
            _dialect().tokenize(text[: found.start()])
        except (TokenError, *_FAILURES):
            continue
        remedy = f"the {'comment' if found[0] == '/*' else 'quote'} {found[0]} is not closed"
        return syntax_error(what, text, found.start(), found.end(), remedy)
    return syntax_error(what, text, 0, len(text), "this is no condition of SQL")


def _is_dot(token: Node) -> bool:
    return bool(token.text == "." and token.start == token.end)


def _joined_strings(tokens: list[Node], text: str) -> list[Node]:
    """With ``'it''s'`` as the one string that Spark reads."""
    found: list[Node] = []
    for token in tokens:
        if found and _continues(found[-1], token, text):
            found[-1].end = token.end
        else:
            found.append(token)
    return found


def _continues(first: Node, second: Node, text: str) -> bool:
    """Whether a quote between two strings is one that was doubled."""
    are_strings = first.token_type.name == second.token_type.name == "STRING"
    is_next = first.end + 1 == second.start
    return are_strings and is_next and text[first.start] == text[second.start]


def _unescaped(written: str) -> str:
    """The value of a string, as Spark reads it; a backslash before % and _ stays for LIKE."""
    quote, inside = written[0], written[1:-1]

    def unescaped(found: re.Match[str]) -> str:
        of = found[1]
        if of in "%_":
            return found[0]
        if of[0] in "uU" and len(of) > 1:
            return chr(int(of[1:], 16))
        return chr(int(of, 8)) if len(of) == 3 else _ESCAPED.get(of, of)

    parts = inside.split(quote * 2)
    return quote.join(_ESCAPE.sub(unescaped, part) for part in parts)


def _split(tokens: Sequence[Node], node: Node, text: str) -> list[tuple[Sequence[Node], Node]]:
    """The conjuncts of a node, each with its tokens. Which AND joins them is sqlglot's to say: the
    one on both sides of which it reads what it read of the whole."""
    while type(node).__name__ == "Paren":
        tokens, node = tokens[1:-1], node.this
    if type(node).__name__ != "And":
        return [(tokens, node)]
    for at in reversed(_places_of_and(tokens)):
        sides = tokens[:at], tokens[at + 1 :]
        try:
            left, right = (_parsed(side, text) for side in sides)
        except InvalidArgumentError:
            continue
        if left == node.this and right == node.expression:
            return _split(sides[0], left, text) + _split(sides[1], right, text)
    return [(tokens, node)]


def _places_of_and(tokens: Sequence[Node]) -> list[int]:
    from sqlglot import TokenType

    found, depth = [], 0
    for at, token in enumerate(tokens):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if token.token_type == TokenType.AND and depth == 0:
            found.append(at)
    return found


def _written(tokens: Sequence[Node], text: str) -> str:
    """The text of some tokens, without comments, with quoted names as Spark quotes them."""
    from sqlglot import TokenType

    shown, end = "", None
    for token in tokens:
        if end is not None and token.start < end:
            continue  # sqlglot makes several tokens of 1.5D
        gap = "" if end is None else text[end : token.start]
        written = text[token.start : token.end + 1]
        if token.token_type == TokenType.IDENTIFIER and written.startswith('"'):
            written = "`" + token.text.replace("`", "``") + "`"
        shown += (" " if gap.strip() else gap) + written
        end = token.end + 1
    return shown


def _number(written: str) -> Constant:
    if re.fullmatch(r"-?\d+", written):
        value = int(written)
        for kind in (pa.int32(), pa.int64()):
            if -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1:
                return Constant(value, kind)
        return _decimal(Decimal(value))
    if "e" in written.lower():
        return Constant(float(written), pa.float64())
    return _decimal(Decimal(written))


def _decimal(value: Decimal) -> Constant:
    """With the digits that Spark gives it."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if exponent > 0:
        digits, exponent = (*digits, *([0] * exponent)), 0
    count = max(len(digits), -exponent)
    if count > 38:
        raise InvalidArgumentError(
            f"join condition: {value} has more than 38 digits; write it with fewer"
        )
    return Constant(value, pa.decimal128(count, -exponent))
