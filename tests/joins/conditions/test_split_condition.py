"""split_condition: which conjuncts are keys, which filter; what stays in one piece."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import split_condition

NAMES = [*"kxyzptuqsfm", "x AND y", "y;", *["end", "or", "case", "between", "and", "at"]]
COLUMNS = dict.fromkeys("abc", NAMES)


@pytest.mark.parametrize(
    ("text", "keys", "rest"),
    [
        ("a.x = b.x", "a.x = b.x", ()),
        ("a.x = b.x AND a.y < b.y", "a.x = b.x", ("a.y < b.y",)),
        ("(a.x = b.x and (b.z == c.z AND a.y<c.y))", "a.x = b.x AND b.z = c.z", ("a.y<c.y",)),
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
        ("a.`x AND y` = b.`end` AND a.m['k AND l'] > 1", "a.`x AND y` = b.end",
         ("a.m['k AND l'] > 1",)),
        ("a.end = b.or AND b.case > a.between AND b.and", "a.end = b.`or`",
         ("b.case > a.between", "b.and")),
        ("(a.p) = (b.q) AND a.x = b.x", "a.p = b.q AND a.x = b.x", ()),
    ],
)  # fmt: skip
def test_conjuncts_are_sorted(text, keys, rest):
    found = split_condition(text, COLUMNS)
    assert (found.keys, found.rest) == (keys, rest)


@pytest.mark.parametrize("text", ["a.x < b.x", "a.x = b.x OR a.y = b.y", "a.x <=> b.x", "a.x = 1"])
def test_without_an_equality_there_is_no_join(text):
    with pytest.raises(InvalidArgumentError, match="no column is equal to one of another stream"):
        split_condition(text, COLUMNS)


@pytest.mark.parametrize(
    "text", ["a.x = b.x -- AND a.y\n AND a.y < 1", "a.x = b.x /* AND */ AND a.y < /* 2 */ 1"]
)
def test_comments_are_left_out(text):
    found = split_condition(text, COLUMNS)
    assert (found.keys, found.rest) == ("a.x = b.x", ("a.y < 1",))


def test_an_equality_that_a_class_has_no_room_for_is_a_filter():
    found = split_condition("a.k = b.k AND a.x = b.x AND a.k = b.x AND b.k = c.k", COLUMNS)
    assert (found.keys, found.rest) == ("a.k = b.k AND a.x = b.x AND b.k = c.k", ("a.k = b.x",))
    found = split_condition("a.k = b.k AND b.k = c.k AND c.x = a.k", COLUMNS)
    assert (found.keys, found.rest) == ("a.k = b.k AND b.k = c.k", ("c.x = a.k",))


@given(st.text("ab.x=()[] `AND'\"OR\n<\\-", max_size=40))
def test_any_text_is_split_or_refused(text):
    try:
        found = split_condition(text, COLUMNS)
    except InvalidArgumentError:
        return
    assert found.keys


@pytest.mark.parametrize(
    ("text", "at", "column", "remedy"),
    [
        ("", "the end", 1, "write a condition"),
        ("a.k = b.k;", ";", 10, "leave it out"),
        ("a.k = b.k)", ")", 10, "leave it out"),
        ("a.k = b.k) AND (a.x < 1", ")", 10, "leave it out"),
        ("(a.k = b.k", "the end", 11, r"a '\(' is not closed"),
        ("a.k = b.k AND (a.x < b.y", "the end", 25, r"a '\(' is not closed"),
        ("a.k = b.k AND a.x = 'x", "'", 21, "quote ' is not closed"),
        ('a.k = b.k AND a.x = "x', '"', 21, 'quote " is not closed'),
        ("`a.k = b.k", "`", 1, "quote ` is not closed"),
        ("a.k = b.k /* AND", "/*", 11, r"comment /\* is not closed"),
        ("a.k = b.k AND", "AND", 11, "is missing beside it"),
        ("a.k = b.k FROM a", "FROM", 11, "does not belong here"),
        ("a.k = 5 b.k", "b", 9, "does not belong here"),
    ],
)
def test_a_syntax_error_is_called_one_and_shows_its_place(text, at, column, remedy):
    place = re.escape(f"{at!r}, line 1, column {column} of {text!r}: ")
    with pytest.raises(InvalidArgumentError, match=f"syntax error at {place}.*{remedy}"):
        split_condition(text, COLUMNS)


def test_the_place_of_an_error_in_several_lines():
    with pytest.raises(InvalidArgumentError, match="at 'OR', line 3, column 4"):
        split_condition("a.k = b.k\nAND a.x = 1\n   OR", COLUMNS)


def test_a_name_in_double_quotes_beside_a_dot_is_one_and_else_a_string():
    found = split_condition('a."x" = b.k AND a."p" <> "p"', COLUMNS)
    assert (found.keys, found.rest) == ("a.x = b.k", ('a.`p` <> "p"',))


def test_what_looks_open_in_quotes_is_not():
    text = "a.k = b.k AND a.x <> '(' AND b.`y;` <> \"')\""
    assert split_condition(text, COLUMNS).rest == ("a.x <> '('", 'b.`y;` <> "\')"')
