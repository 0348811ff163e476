"""split_condition: which conjuncts are keys, which filter; what stays in one piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.split import split_condition


@pytest.mark.parametrize(
    ("text", "keys", "rest"),
    [
        ("a.x = b.x", "a.x = b.x", ()),
        ("a.x = b.x AND a.y < b.y", "a.x = b.x", ("a.y < b.y",)),
        ("(a.x = b.x and (b.z == c.z AND a.y<c.y))", "a.x = b.x AND b.z == c.z", ("a.y<c.y",)),
        ("a.t BETWEEN b.t AND b.u AND a.x = b.x", "a.x = b.x", ("a.t BETWEEN b.t AND b.u",)),
        ("a.x = b.x AND (a.p = 1 OR b.q = 2)", "a.x = b.x", ("a.p = 1 OR b.q = 2",)),
        ("a.x = b.x AND a.s = 'x AND b.x = a.x'", "a.x = b.x", ("a.s = 'x AND b.x = a.x'",)),
        ("a.x = b.x AND a.s = 'it''s \\' AND'", "a.x = b.x", ("a.s = 'it''s \\' AND'",)),
        ("a.x = b.x AND a.x = a.y", "a.x = b.x", ("a.x = a.y",)),
        ("a.x = b.x AND a.x = 5 AND NOT b.f", "a.x = b.x", ("a.x = 5", "NOT b.f")),
        (
            "CASE WHEN a.p AND b.q THEN 1 END = 1 AND a.x = b.x",
            "a.x = b.x",
            ("CASE WHEN a.p AND b.q THEN 1 END = 1",),
        ),
        ("a.`x AND y` = b.`end` AND a.m['k AND l'] > 1", "a.`x AND y` = b.`end`",
         ("a.m['k AND l'] > 1",)),
        ("a.end = b.or AND b.case > a.between AND b.and", "a.end = b.or",
         ("b.case > a.between", "b.and")),
        ("(a.p) = (b.q) AND a.x = b.x", "a.x = b.x", ("(a.p) = (b.q)",)),
    ],
)  # fmt: skip
def test_conjuncts_are_sorted(text, keys, rest):
    found = split_condition(text)
    assert (found.keys, found.rest) == (keys, rest)


@pytest.mark.parametrize(
    "text", ["", "a.x < b.x", "a.x = b.x OR a.y = b.y", "a.x <=> b.x", "a.x = 1"]
)
def test_without_an_equality_there_is_no_join(text):
    with pytest.raises(InvalidArgumentError, match="no column is equal to one of another stream"):
        split_condition(text)


@pytest.mark.parametrize("text", ["a.x = b.x -- AND a.y", "a.x = b.x /* AND */ AND a.y < 1"])
def test_comments_are_refused(text):
    with pytest.raises(InvalidArgumentError, match="comments"):
        split_condition(text)


@given(st.text("ab.x=()[] `AND'\"OR\n<\\-", max_size=40))
def test_any_text_is_split_or_refused(text):
    try:
        found = split_condition(text)
    except InvalidArgumentError:
        return
    assert found.keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.k = b.k;", r"';' has no beginning.*leave it out"),
        ("a.k = b.k)", r"'\)' has no beginning"),
        ("a.k = b.k) AND (a.x < 1", r"'\)' has no beginning"),
        ("(a.k = b.k", r"a '\(' is not closed"),
        ("a.k = b.k AND (a.x < b.y", r"a '\(' is not closed"),
        ("a.k = b.k AND a.x = 'x", "quote ' is not closed"),
        ('a.k = b.k AND a.x = "x', 'quote " is not closed'),
        ("`a.k = b.k", "quote ` is not closed"),
    ],
)
def test_a_text_that_is_no_whole_expression_is_refused(text, message):
    with pytest.raises(InvalidArgumentError, match=f"join condition: .*{message}"):
        split_condition(text)


def test_what_looks_open_in_quotes_is_not():
    text = "a.k = b.k AND a.x <> '(' AND b.`y;` <> \"')\""
    assert split_condition(text).rest == ("a.x <> '('", 'b.`y;` <> "\')"')
