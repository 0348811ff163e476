"""Conditions taken apart: conjuncts, what OR branches share, classes of equal expressions."""

from itertools import product

import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.plan.conditions import (
    And,
    Column,
    Comparison,
    Expression,
    Literal,
    Not,
    Opaque,
    Or,
    all_of,
    columns_of,
    conjuncts,
    equal,
    key_classes,
    may_move,
    substitute,
)
from support.plan_eval import value

P, Q, R, S = (Column(name) for name in "pqrs")


def test_conjuncts_of_nested_ands_stand_in_their_order():
    assert conjuncts(And((P, And((Q, R)), S))) == [P, Q, R, S]
    assert conjuncts(None) == []


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Or((And((P, Q)), And((P, R)))), [P, Or((Q, R))]),
        (Or((And((P, Q)), And((R, P, Q)))), [P, Q]),
        (Or((P, And((P, Q)))), [P]),
        (Or((P, Q)), [Or((P, Q))]),
        (Or((And((P, Q, R)), And((Q, P, S)))), [P, Q, Or((R, S))]),
        (Or((And((P, Or((And((Q, R)), And((Q, S)))))), And((Q, P)))), [P, Q]),
    ],
    ids=["one", "branch_implied", "absorbed", "nothing", "two", "nested"],
)
def test_what_or_branches_share_is_taken_out(condition: Expression, expected: list[Expression]):
    assert conjuncts(condition) == expected
    together = all_of(expected)
    assert together is not None
    for values in product((True, False, None), repeat=4):
        row = dict(zip((P, Q, R, S), values, strict=True))
        assert value(condition, row) == value(together, row)


def test_volatile_parts_of_branches_are_not_the_same():
    rand = Comparison(Opaque("rand", volatile=True), "<", Literal(1))
    condition = Or((And((rand, P)), And((rand, Q))))
    assert conjuncts(condition) == [condition]
    assert not may_move(condition)


def test_key_classes_join_what_is_equal_by_way_of_others():
    found = key_classes([equal(P, Q), equal(R, S), equal(S, Opaque("f", (P,)))])
    assert found == [[P, Q], [R, S, Opaque("f", (P,))]]
    assert key_classes([equal(P, Q), equal(R, S), equal(S, P)]) == [[P, Q, R, S]]


def test_substitution_reaches_every_part():
    inside: list[Expression] = [
        P,
        Comparison(P, "<", Literal(1)),
        And((P, Q)),
        Or((P, Q)),
        Not(P),
        Opaque("f", (Opaque("g", (P,)),), subquery=True),
    ]
    for expression in inside:
        replaced = substitute(expression, {P: R})
        assert columns_of(replaced) == (columns_of(expression) - {P}) | {R}
        assert may_move(replaced) == may_move(expression)


def test_text_keeps_the_meaning():
    assert str(And((Or((P, Q)), Not(And((R, equal(S, Literal("a")))))))) == (
        "(p OR q) AND NOT (r AND s = 'a')"
    )
    assert str(Column("p", 7)) == "p#7"


def test_unknown_comparison_is_refused():
    with pytest.raises(InvalidArgumentError, match="comparison '=='"):
        Comparison(P, "==", Q)
