"""What joins by type make of the streams present at a key, against DuckDB for every pattern."""

import itertools
import random

import duckdb
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.from_clause import is_from_clause, parse_joins
from lsmstate.joins.conditions.join_tree import (
    SQL_NAMES,
    Join,
    conditions_of,
    nullable_streams,
    products,
    required_streams,
    shown_streams,
    streams_of,
)
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.joins.specs.typed_condition import TypedCondition, check_tree, typed_condition

KEY = {name: ["k"] for name in "abcde"}


def patterns(names):
    """Every set of streams that may have rows at a key; the key is its number."""
    return [
        {name for at, name in enumerate(names) if number >> at & 1}
        for number in range(1 << len(names))
    ]


@pytest.fixture(scope="module")
def db():
    """A table per stream: a row for each pattern of four streams that it occurs in."""
    connection = duckdb.connect(config={"threads": 1})
    for name in "abcd":
        keys = [n for n, present in enumerate(patterns("abcd")) if name in present]
        connection.execute(f"CREATE TABLE {name} AS SELECT unnest({keys}) AS k")
    yield connection
    connection.close()


def check(db, tree):
    """Every pattern's products are DuckDB's rows, and what is said of the tree is true."""
    shown, names = shown_streams(tree), streams_of(tree)
    sql = str(tree).replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
    rows = db.execute(f"SELECT {', '.join(f'{name}.k' for name in shown)} FROM {sql}").fetchall()
    expected = {number: set() for number in range(16)}
    for row in rows:
        (number,) = {key for key in row if key is not None}
        product = frozenset(n for n, key in zip(shown, row, strict=True) if key is not None)
        expected[number].add(product)
    everything = set()
    for number, present in enumerate(patterns("abcd")):
        found = products(tree, present & set(names))
        assert len(set(found)) == len(found)
        if present <= set(names):
            assert set(found) == expected[number], (str(tree), present)
        everything |= {(frozenset(present), product) for product in found}
    missing = {name for name in shown if any(name not in product for _, product in everything)}
    assert nullable_streams(tree) >= missing, str(tree)
    assert all(required_streams(tree) <= present for present, _ in everything), str(tree)


def text_of(kinds, compared):
    """Joins of a, b, ...: stream n by ``kinds[n]`` ON the one named, or USING where None is."""
    text = "a"
    for name, kind, other in zip("bcd", kinds, compared, strict=False):
        on = "USING (k)" if other is None else f"ON {other}.k = {name}.k"
        text += f" {SQL_NAMES[kind]} {name} {on}"
    return text


def left_deep(count):
    """Every combination of types, each compared with every one that it may be."""
    for kinds in itertools.product(SQL_NAMES, repeat=count - 1):
        shown = ["a"]
        choices = []
        for name, kind in zip("bcd", kinds, strict=False):
            choices.append([None, *shown])
            shown += [] if kind in ("semi", "anti") else [name]
        for compared in itertools.product(*choices):
            yield text_of(kinds, compared)


def parsed(text, names="abcd"):
    return parse_joins(text, {name: KEY[name] for name in names})


@pytest.mark.parametrize("count", [2, 3])
def test_every_combination_of_types_of_two_and_three_streams(db, count):
    for text in left_deep(count):
        check(db, parsed(text, "abcd"[:count]))


def test_some_joins_of_four_streams(db):
    for text in random.Random(3).sample(list(left_deep(4)), 100):
        check(db, parsed(text))


@pytest.mark.stress
def test_every_combination_of_types_and_comparisons_of_four_streams(db):
    for text in left_deep(4):
        check(db, parsed(text))


def test_joins_of_joins(db):
    kinds = list(itertools.product(SQL_NAMES, repeat=3))
    for outer, left, right in random.Random(1).sample(kinds, 70):
        text = (
            f"(a {SQL_NAMES[left]} b ON a.k = b.k) {SQL_NAMES[outer]} "
            f"(c {SQL_NAMES[right]} d ON d.k = c.k) ON c.k = a.k"
        )
        check(db, parsed(text))
    check(db, parsed("a FULL JOIN (b FULL JOIN (c LEFT JOIN d USING (k)) USING (k)) USING (k)"))
    check(db, parsed("a FULL JOIN b ON a.k = b.k FULL JOIN c ON b.k = c.k JOIN d ON a.k = d.k"))
    check(db, parsed("a FULL JOIN b USING (k) LEFT JOIN c ON COALESCE(a.k, b.k) = c.k", "abc"))


def test_rows_that_lack_the_compared_stream_match_nothing():
    tree = parsed("a FULL JOIN b ON a.k = b.k LEFT JOIN c ON c.k = a.k", "abc")
    assert products(tree, {"b", "c"}) == (frozenset("b"),)
    tree = parsed("a FULL JOIN b USING (k) LEFT JOIN c USING (k)", "abc")
    assert products(tree, {"b", "c"}) == (frozenset("bc"),)
    tree = parsed("a FULL JOIN b ON a.k = b.k FULL JOIN c ON c.k = a.k", "abc")
    assert products(tree, {"b", "c"}) == (frozenset("b"), frozenset("c"))


def test_text_and_how_mean_the_same():
    columns = {name: KEY[name] for name in "abc"}
    text = "FROM a LEFT OUTER JOIN b ON (B.K = a.k) LEFT ANTI JOIN c ON c.k == a.k"
    expected = parse_joins(text, columns)
    assert str(expected) == "a LEFT JOIN b ON a.k = b.k LEFT ANTI JOIN c ON a.k = c.k"
    how = {"b": "left_outer", "C": "anti"}
    assert typed_condition(columns, "a.k = b.k AND c.k = a.k", how).tree == expected
    assert typed_condition(columns, text).tree == expected
    assert typed_condition(columns, text).on == "a.k = b.k AND a.k = c.k"
    using = parse_joins("a LEFT JOIN b USING (k) ANTI JOIN c USING (k)", columns)
    assert typed_condition(columns, ["k"], how).tree == using
    assert typed_condition(columns, columns, how).tree == using


def test_conditions_beside_the_keys_mean_the_same_in_text_and_how():
    columns = {"a": ["k", "x"], "b": ["k", "x"], "c": ["k", "y"]}
    on = "a.k = b.k AND (a.x < b.x OR b.x IS NULL) AND b.k = c.k AND c.y NOT IN (1, 2)"
    text = (
        "a LEFT JOIN b ON ((a.x < b.x) OR b.x IS NULL) AND a.k = b.k "
        "LEFT JOIN c ON (b.k = c.k AND (NOT c.y IN (1, 2)))"
    )
    tree = typed_condition(columns, on, "left").tree
    assert tree == typed_condition(columns, text).tree == typed_condition(columns, str(tree)).tree
    assert [str(found) for found in conditions_of(tree)] == [
        "(a.x < b.x OR b.x IS NULL)",
        "NOT ((c.y = 1 OR c.y = 2))",
    ]
    inner = typed_condition(columns, text.replace("LEFT ", ""))
    rest = " AND ".join(map(str, conditions_of(tree)))
    assert inner == TypedCondition(f"a.k = b.k AND b.k = c.k AND {rest}", None)
    with pytest.raises(
        InvalidArgumentError, match="on 'a' alone and belongs to no join; write the joins"
    ):
        typed_condition(columns, "a.k = b.k AND b.k = c.k AND a.x > 5", "left")
    in_strings = "a LEFT JOIN b ON a.k = b.k AND a.x <> ' OR JOIN c AND )' LEFT JOIN c ON c.k = a.k"
    (found,) = conditions_of(typed_condition(columns, in_strings).tree)
    assert str(found) == "a.x <> ' OR JOIN c AND )'"


def test_a_condition_on_one_stream_is_one_however_its_name_is_spelled():
    columns = {"a": ["k", "x", "y"], "b": ["k", "x", "y"]}
    (found,) = conditions_of(typed_condition(columns, "a.k = b.k AND b.x < B.y", "left").tree)
    assert str(found) == "b.x < b.y"
    with pytest.raises(InvalidArgumentError, match=r"condition a\.x < a\.y is on 'a' alone"):
        typed_condition(columns, "a.k = b.k AND A.x < a.Y", "left")
    with pytest.raises(InvalidArgumentError, match="'1 = 1' names no column"):
        typed_condition(columns, "a.k = b.k AND 1 = 1", "left")


def test_only_inner_joins_are_no_tree():
    columns = {"a": ["x", "y"], "b": ["x"], "c": ["y"]}
    found = typed_condition(columns, "a JOIN b ON a.x = b.x INNER JOIN c USING (y)")
    assert found.tree is None
    assert found.on == "a.x = b.x AND a.y = c.y"
    assert typed_condition(columns, "a.x = b.x", "inner").tree is None
    assert typed_condition(columns, "a.x = b.x", {"b": "inner"}).tree is None


def test_names_that_need_quotes_are_quoted():
    columns = {"left": ["a b"], "on`e": ["join"]}
    text = "`left` FULL JOIN `on``e` ON `left`.`a b` = `on``e`.join"
    tree = parse_joins(text, columns)
    assert isinstance(tree, Join)
    assert parse_joins(str(tree), columns) == tree


def test_what_says_join_is_a_from_clause():
    assert is_from_clause("FROM a join b USING (k)")
    assert not is_from_clause("a.join = b.join AND join.x = `join`.y")


def test_columns_named_like_intervals_are_keys():
    tree = parse_joins(
        "a LEFT JOIN b ON a.interval = b.between", {"a": ["interval"], "b": ["between"]}
    )
    assert isinstance(tree, Join)
    assert (len(tree.on), tree.bounds) == (1, ())


@pytest.mark.parametrize(
    ("on", "how", "words"),
    [
        ("a.k = b.k AND a.k = c.k", "outre", "no join type 'outre'; did you mean"),
        ("a.k = b.k AND a.k = c.k", {"a": "left"}, "give the types of 'b', 'c'"),
        ("a.k = b.k AND a.k = c.k", {"x": "left"}, "no stream 'x'"),
        ("a.k = b.k AND a.k = c.k", ["left"], "one per stream as in"),
        ("a.k = c.k AND c.k = b.k", "left", "'b' is joined to 'a' and must be compared"),
        ("a.k = b.k AND b.k = c.k", {"b": "anti"}, "no columns"),
        ("a.k = b.k AND b.k = c.k AND a.k = c.k", {"b": "anti"}, "no columns"),
        ("a LEFT JOIN b USING (k) JOIN c USING (k)", "left", "leave how out"),
        ("a LEFT JOIN b USING (k)", "inner", "'c' is not joined"),
        ("a JOIN b USING (k) LEFT JOIN a USING (k)", "inner", "stands in it several times"),
        (
            "a LEFT JOIN b ON a.k <> b.k JOIN c USING (k)",
            "inner",
            "a and b are joined by no equality",
        ),
        (
            "a LEFT JOIN b ON a.k = b JOIN c USING (k)",
            "inner",
            "a column needs its stream's name in front, as in a.id; found 'b'",
        ),
        ("a LEFT INNER JOIN b USING (k)", "inner", "a join such as LEFT JOIN"),
        ("a NATURAL JOIN b JOIN c USING (k)", "inner", "a join such as LEFT JOIN"),
        ("a LEFT JOIN b JOIN c USING (k)", "inner", "a and b are joined by no equality"),
        (
            "a LEFT JOIN b ON (a.k = b.k JOIN c USING (k)",
            "inner",
            r"syntax error at 'the end', .* a '\(' is not closed",
        ),
        (
            "a LEFT JOIN b USING (k) JOIN c USING (k) WHERE a.k = 1",
            "inner",
            "syntax error at 'WHERE', line 1, column 42",
        ),
        ("a LEFT JOIN b USING (k) JOIN c USING (j)", "inner", "no column 'j' in stream 'a or b'"),
        (
            "a SEMI JOIN b USING (k) LEFT JOIN c ON b.k = c.k",
            "inner",
            "does not compare the joined streams a LEFT",
        ),
        ("a AS x LEFT JOIN b USING (k) JOIN c USING (k)", "inner", "'a AS x' is no stream"),
        ("db.a LEFT JOIN b USING (k) JOIN c USING (k)", "inner", "'`db`.`a`' is no stream"),
        ("(SELECT 1) LEFT JOIN b USING (k) JOIN c USING (k)", "inner", "is no stream"),
        ("a CROSS JOIN b JOIN c USING (k)", "inner", "there is no CROSS JOIN here"),
        ("a LEFT JOIN b ON a.k = a.k JOIN c USING (k)", "inner", "are joined by no equality"),
        ("(" * 60 + "a JOIN b" + ")" * 60, "inner", "at most 50 parentheses"),
    ],
)
def test_what_does_not_fit_is_refused(on, how, words):
    with pytest.raises(InvalidArgumentError, match=words):
        typed_condition({name: KEY[name] for name in "abc"}, on, how)


@pytest.mark.parametrize(
    "on",
    [
        "a.k = b.k AND a.v > b.v OR b.v = 1",
        "a.k = b.k AND a.v > b.v OR b.v = 1 AND a.v = 2",
        "(a.k = b.k) AND NOT a.v > b.v OR b.v = 1",
        "a.k = b.k AND a.v BETWEEN 1 AND 2 OR b.v = 1",
        "a.v > b.v OR b.v = 1 AND a.k = b.k",
        "(a.k = b.k AND a.v > b.v OR b.v = 1)",
        "a.k = b.k OR a.v = b.v",
    ],
)
def test_an_or_that_takes_in_the_keys_is_refused(on):
    """AND binds before it, so rows match whose keys differ."""
    columns = {name: ["k", "v"] for name in "ab"}
    for kind in ("JOIN", "LEFT JOIN", "ANTI JOIN"):
        with pytest.raises(InvalidArgumentError, match="are joined by no equality"):
            typed_condition(columns, f"a {kind} b ON {on}")
    typed = typed_condition(columns, "a LEFT JOIN b ON a.k = b.k AND (a.v > b.v OR b.v = 1)")
    assert str(typed.tree) == "a LEFT JOIN b ON a.k = b.k AND (a.v > b.v OR b.v = 1)"


def test_a_join_by_a_part_of_the_key_is_refused():
    import pyarrow as pa

    schema = pa.schema([("x", pa.int8()), ("y", pa.int8())])
    streams = dict.fromkeys("abc", schema)
    columns = {name: ["x", "y"] for name in "abc"}
    on = "a.x = b.x AND a.x = c.x AND a.y = c.y AND b.y = c.y"
    typed = typed_condition(columns, on, {"c": "left"})
    with pytest.raises(InvalidArgumentError, match=r"leaves out a part of the key, a.y = b.y = c"):
        check_tree(typed.tree, JoinSpec.create(streams, typed.on))
