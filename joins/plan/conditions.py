"""Expressions of a plan: what conditions compare, and projections compute.

Values: immutable, equal if they say the same. An expression knows the columns it reads and nothing
of their types; the two sides of an ``=`` are taken to have one type (Spark's analyzer casts them to
one), so that equality is transitive. Conditions have SQL's three truth values.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lsmstate.errors import InvalidArgumentError

COMPARISONS = ("=", "<=>", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Column:
    """A column of some node. ``number`` tells columns of one name apart; 0 is not shown."""

    name: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.name}#{self.number}" if self.number else self.name


@dataclass(frozen=True)
class Literal:
    value: Hashable
    sql: str | None = field(default=None, compare=False, repr=False)
    """As SQL, where a condition of a multi-way join can have it."""

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Comparison:
    left: "Expression"
    operator: str
    right: "Expression"

    def __post_init__(self) -> None:
        if self.operator not in COMPARISONS:
            raise InvalidArgumentError(
                f"comparison {self.operator!r}: must be one of {' '.join(COMPARISONS)}"
            )

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True)
class And:
    operands: tuple["Expression", ...]

    def __str__(self) -> str:
        return " AND ".join(_within_and(operand) for operand in self.operands)


@dataclass(frozen=True)
class Or:
    operands: tuple["Expression", ...]

    def __str__(self) -> str:
        return " OR ".join(str(operand) for operand in self.operands)


@dataclass(frozen=True)
class Not:
    operand: "Expression"

    def __str__(self) -> str:
        return f"NOT ({self.operand})"


@dataclass(frozen=True)
class Opaque:
    """Anything else, of which only the arguments are known: a function, an operator, a subquery.

    ``volatile``: evaluated twice it may differ, so it must neither move nor be copied.
    ``subquery``: holds a plan of its own, whose outer columns are the arguments; it stays above
    multi-way joins. ``eager``: evaluated for every row, even those for which a condition around it
    asks for another value, as Spark does with functions in Python. ``serial`` tells apart those of
    one name that may differ in what is not known; it is not shown. ``widens``: a cast that keeps
    every value and their order, as from INT to BIGINT. ``handle`` is whatever the front end needs
    to find its own expression again.
    """

    name: str
    arguments: tuple["Expression", ...] = ()
    serial: int = 0
    volatile: bool = False
    subquery: bool = False
    eager: bool = False
    widens: bool = field(default=False, compare=False, repr=False)
    handle: object = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(str(argument) for argument in self.arguments)})"


Expression = Column | Literal | Comparison | And | Or | Not | Opaque


def equal(left: Expression, right: Expression) -> Comparison:
    return Comparison(left, "=", right)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and all its parts."""
    yield expression
    for part in _parts(expression):
        yield from walk(part)


def columns_of(expression: Expression) -> frozenset[Column]:
    return frozenset(part for part in walk(expression) if isinstance(part, Column))


def is_volatile(expression: Expression) -> bool:
    return any(isinstance(part, Opaque) and part.volatile for part in walk(expression))


def may_move(expression: Expression) -> bool:
    """Whether it may be evaluated elsewhere: neither volatile nor a subquery."""
    return not any(
        isinstance(part, Opaque) and (part.volatile or part.subquery) for part in walk(expression)
    )


def is_eager(expression: Expression) -> bool:
    return any(isinstance(part, Opaque) and part.eager for part in walk(expression))


def substitute(expression: Expression, values: Mapping[Column, Expression]) -> Expression:
    """The expression with columns replaced; a column that is no key of ``values`` stays."""
    match expression:
        case Column():
            return values.get(expression, expression)
        case Literal():
            return expression
        case Comparison(left, operator, right):
            return Comparison(substitute(left, values), operator, substitute(right, values))
        case And(operands):
            return And(tuple(substitute(operand, values) for operand in operands))
        case Or(operands):
            return Or(tuple(substitute(operand, values) for operand in operands))
        case Not(operand):
            return Not(substitute(operand, values))
        case Opaque():
            arguments = tuple(substitute(argument, values) for argument in expression.arguments)
            return replace(expression, arguments=arguments)


def conjuncts(condition: Expression | None) -> list[Expression]:
    """The parts of which all must be true; none for no condition.

    What all branches of an OR have in common is taken out of them, as equalities of TPC-H's Q19
    must be: (a AND b) OR (a AND c) is a AND (b OR c), also with NULLs. That changes no row, but
    a volatile part counts as equal to nothing.
    """
    match condition:
        case None:
            return []
        case And(operands):
            return [part for operand in operands for part in conjuncts(operand)]
        case Or():
            return _factored(condition)
        case _:
            return [condition]


def all_of(parts: Sequence[Expression]) -> Expression | None:
    """The conjunction of the parts; None if there are none."""
    if len(parts) > 1:
        return And(tuple(parts))
    return parts[0] if parts else None


def key_classes(equalities: Iterable[Comparison]) -> list[list[Expression]]:
    """The sides of the equalities, in classes of what must be equal (union-find).

    Classes, and expressions in them, stand in the order of their first appearance.
    """
    parent: dict[Expression, Expression] = {}

    def root(expression: Expression) -> Expression:
        parent.setdefault(expression, expression)
        while parent[expression] != expression:
            expression = parent[expression]
        return expression

    for equality in equalities:
        # The earlier root wins, which keeps the order.
        left, right = root(equality.left), root(equality.right)
        parent[right] = left
    classes: dict[Expression, list[Expression]] = {}
    for expression in parent:
        classes.setdefault(root(expression), []).append(expression)
    return list(classes.values())


def _parts(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Column() | Literal():
            return ()
        case Comparison(left, _, right):
            return (left, right)
        case And(operands) | Or(operands):
            return operands
        case Not(operand):
            return (operand,)
        case Opaque():
            return expression.arguments


def _within_and(operand: Expression) -> str:
    return f"({operand})" if isinstance(operand, Or) else str(operand)


def _factored(condition: Or) -> list[Expression]:
    branches = [conjuncts(operand) for operand in condition.operands]
    common = [
        part
        for part in dict.fromkeys(branches[0])
        if not is_volatile(part) and all(part in branch for branch in branches[1:])
    ]
    if not common:
        return [condition]
    rests = [all_of([part for part in branch if part not in common]) for branch in branches]
    left_over = [rest for rest in rests if rest is not None]
    # A branch that asks for nothing else is implied by the common part, and with it the OR.
    return common if len(left_over) < len(rests) else [*common, Or(tuple(left_over))]
