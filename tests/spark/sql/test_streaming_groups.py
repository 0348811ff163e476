"""One operator for several groups of joins: of a query and its subqueries, and of a UNION ALL."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import Skew, State, streaming_sql
from support.spark_streams import FileStream
from support.sql_views import FILES, assert_appends, so_far

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions", "view_files")]


GROUPS = """
SELECT seg, count(*) AS n, sum(price * qty) AS total
FROM cust c, ord o, line l
WHERE c.ck = o.ck AND o.ok = l.ok
  AND price > (SELECT avg(price) * 0.9 FROM ord o2, line l2, cust c2
               WHERE o2.ok = l2.ok AND c2.ck = o2.ck AND l2.qty > 3)
  AND o.ok NOT IN (SELECT o3.ok FROM ord o3 JOIN ord o4 ON o3.ok = o4.ok AND o3.price > o4.price
                   WHERE o3.ok IS NOT NULL)
GROUP BY seg ORDER BY seg"""


@pytest.mark.stress
def test_one_operator_serves_all_groups_of_joins(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """Of the query and of its subqueries, by several keys and by one; over a restart."""
    answers: dict[int, list[tuple[Any, ...]]] = {}

    def keep(df: Any, number: int) -> None:
        answers[number] = [tuple(row) for row in df.collect()]
        if number == 1 and len(answers) == 2:
            raise RuntimeError("the sink is away")

    def start() -> Any:
        query = streaming_sql(
            spark, GROUPS, skew=Skew(rows={"l": 300, "o": 150}), state=State(buckets=3)
        )
        staged = query.staged(str(tmp_path))
        joins = ["join of c, o, l", "join of o2, l2, c2", "join of o3, o4"]
        assert [name for name in staged.fragments if name.startswith("join")] == joins
        explained = staged.explain_multiway()
        assert "join 3:\n  one key: o3.ok = o4.ok" in explained
        assert "Subquery 1\n  Before" in explained
        return staged.start(keep, trigger={"availableNow": True})

    with pytest.raises(Exception, match="the sink is away"):
        start().awaitTermination()
    answers[-1] = []
    start().awaitTermination()
    for number in range(FILES):
        assert answers[number] == so_far(view_files, number + 1, GROUPS)
    assert sum(row[1] for row in answers[FILES - 1]) > 20


#: Fields of structs go by their place in a union.
UNION = """
SELECT what, ok, v, extra.first FROM (
WITH priced AS (SELECT c.seg, o.ok, o.price FROM cust c JOIN ord o ON o.ck = c.ck)
SELECT seg AS what, ok + 1 AS ok, 100 div coalesce(price, raise_error('of another join')) AS v,
    named_struct('first', price) AS extra
FROM priced WHERE coalesce(price - length(seg), raise_error('of another join')) > 18
UNION ALL (
    SELECT note, o.ok, qty, named_struct('only', qty) FROM line l JOIN ord o ON o.ok = l.ok
        WHERE qty + price < 40
    UNION ALL SELECT seg, nk, k.ok, named_struct('first', nk)
        FROM cust JOIN (SELECT ck, ok FROM ord) k USING (ck)
))"""
UNION_IN_DUCKDB = (
    re.sub(r"named_struct\('\w+', ", "row(", UNION)
    .replace("extra.first", "extra[1]")
    .replace(" div ", " // ")
    .replace("raise_error(", "error(")
)


def test_one_operator_serves_the_groups_of_a_union(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """What one branch computes fails for rows of another, whose columns are null there."""
    query = streaming_sql(spark, UNION, strict=True, state=State(buckets=2))
    assert query.schema == spark.sql(UNION).schema
    explained = query.explain_multiway()
    assert all(f"join {number}:" in explained for number in (1, 2, 3))
    assert_appends(query, UNION_IN_DUCKDB, view_files, tmp_path)


def test_groups_that_one_operator_does_not_serve_say_why(spark: Any):
    """Two joins in a union are more than one of three inputs beside it; one alone is not."""
    two = "SELECT c.ck FROM cust c JOIN ord o ON c.ck = o.ck"
    three = f"{two} JOIN line l ON l.ok = o.ok"
    beside = f"SELECT u.ck FROM ({two} UNION ALL {two}) u JOIN ord p ON u.ck = p.ck"
    query = streaming_sql(spark, f"{beside} UNION ALL SELECT nk FROM cust")
    assert query.is_converted
    assert "the groups of 2 and 2 inputs that a UNION ALL combines" in query.note
    assert query.note in query.explain_multiway()
    random_values = two.replace("c.ck", "floor(rand())", 1)  # it has to stay where it is
    query = streaming_sql(spark, f"{three} UNION ALL {random_values}")
    assert "another group of 3 inputs, which is no smaller; of a UNION ALL" in query.note
    assert "without random values" in query.note
    above = two.replace("c.ck", "c.ck, rand() AS r", 1)
    query = streaming_sql(spark, f"SELECT u.ck, r FROM ({above}) u JOIN ord p ON u.ck = p.ck")
    assert query.note.endswith("another group of 2 inputs, which is no smaller")


@pytest.mark.stress
def test_a_union_of_joins_and_other_streams(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """SQL nests unions to the left: the first join stands beside the stream, the second above."""
    sql = """SELECT seg AS what, nk AS v FROM cust
        UNION ALL SELECT seg, price FROM cust c JOIN ord o ON c.ck = o.ck
        UNION ALL SELECT note, qty FROM line
        UNION ALL SELECT note, price FROM line l JOIN ord o ON l.ok = o.ok"""
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    assert query.schema == spark.sql(sql).schema
    assert_appends(query, sql, view_files, tmp_path)


def test_columns_of_a_union_keep_their_comments(spark: Any):
    """Of the first branch, as in Spark."""
    sql = """SELECT upper(seg) AS what, seg FROM cust c JOIN ord o ON c.ck = o.ck
        UNION ALL SELECT note, upper(note) FROM line l JOIN ord o ON l.ok = o.ok"""
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    assert query.schema == spark.sql(sql).schema
    assert query.schema["seg"].metadata == {"comment": "market"}


@pytest.mark.parametrize(
    "calls",
    [
        ("after(price)", "true"),
        pytest.param(("price", "after(price + qty) > 3"), marks=pytest.mark.stress),
    ],
)
def test_functions_in_python_see_no_rows_of_other_joins(spark: Any, calls: tuple[str, str]):
    """Spark evaluates them for all rows, whatever IF they stand in: such joins are not united."""
    spark.udf.register("after", lambda number: number + 1, "int")
    value, condition = calls
    sql = f"""SELECT {value} AS v FROM ord o JOIN line l ON o.ok = l.ok WHERE {condition}
        UNION ALL SELECT nk FROM cust c JOIN ord o ON o.ck = c.ck"""
    query = streaming_sql(spark, sql, state=State(buckets=2))
    assert query.is_converted
    assert "another group of 2 inputs, which is no smaller" in query.note
