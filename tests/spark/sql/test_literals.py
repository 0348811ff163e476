"""Literals of Spark's plans as conditions of joins have them."""

import pytest

pytest.importorskip("pyspark")

from lsmstate.spark_integration.sql.plan_reader import is_exact, literal_sql


@pytest.mark.parametrize(
    ("text", "kind", "sql"),
    [
        ("5", "integer", "5"),
        ("-5", "long", "-5L"),
        ("5", "short", "5S"),
        ("1.5E-7", "double", "1.5E-7D"),
        ("NaN", "double", None),
        ("2.50", "decimal(3,2)", "2.50BD"),
        ("1E+3", "decimal(4,-3)", None),
        ("it's \\", "string", "'it\\'s \\\\'"),
        ("2026-01-31", "date", "DATE '2026-01-31'"),
        ("+10000-01-01", "date", None),
        ("true", "boolean", "TRUE"),
        ("2026-01-31 00:00:00", "timestamp", None),
        ("x", "binary", None),
    ],
)
def test_a_literal_as_sql(text: str, kind: str, sql: str | None) -> None:
    assert literal_sql(text, kind) == sql


def test_whole_numbers_that_are_the_same_in_another_type() -> None:
    assert is_exact("5", "double")
    assert is_exact("-5L", "decimal(20,0)")
    assert not is_exact("50000000", "double")
    assert not is_exact("1.5D", "decimal(3,1)")
    assert not is_exact("5", "string")
