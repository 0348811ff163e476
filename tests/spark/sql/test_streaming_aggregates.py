"""Aggregates of SQL that are computed inside the join: the rows of DuckDB, in every output mode."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from lsmstate.spark import State, multiway_join, streaming_sql, to_multiway
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan
from lsmstate.spark_integration.stateful_operator.query_start import operators_in
from support.spark_streams import FileStream
from support.sql_views import in_duckdb, run, views

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions", "view_files")]

FROM = "FROM cust c JOIN ord o ON c.ck = o.ck JOIN line l ON l.ok = o.ok"

PUSHED = f"""
SELECT c.seg, count(*) AS n, sum(o.price) AS total, avg(l.qty) AS mean, min(l.note) AS least,
    max(o.price) + 1 AS most, count(l.qty) AS known, count_if(o.price > 50) AS dear,
    sum(o.price) FILTER (WHERE l.qty > 4) AS some, sum(o.price * l.qty) AS product,
    sum(CASE WHEN l.note IN ('n1', 'n2') THEN 1.50 ELSE 0.25 END) AS decimals,
    avg(CASE WHEN l.note IN ('n1', 'n2') THEN 1.50 END) AS rounded,
    any_value(c.seg) AS any_seg, bool_or(o.price > 50) AS has_dear, min(l.qty > 0) AS all_positive
{FROM} GROUP BY c.seg HAVING count(*) > 1"""


def alike(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> bool:
    pairs = zip(sorted(found), sorted(wanted), strict=True)
    return all(_alike(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))


def _alike(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-12)
    return bool(found == wanted)


def aggregates_of(query: Any) -> list[str]:
    """What ``explain_multiway`` says of them."""
    return list(query.converted.aggregates)


def newest(batches: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """The last row of each group."""
    return list({row[0]: row for batch in batches for row in batch}.values())


def test_parts_of_aggregates_add_up_to_the_answer(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    query = streaming_sql(spark, PUSHED, strict=True, state=State(buckets=2, memory="8m"))
    (line,) = aggregates_of(query)
    assert line.endswith("computed inside the join, one row per group and micro-batch")
    assert query.schema == spark.sql(PUSHED).schema
    assert alike(newest(run(query, tmp_path, "update")), in_duckdb(view_files, PUSHED))


def pinned(query: Any) -> Any:
    (wanted,) = operators_in(analyzed_plan(query.dataframe))
    return wanted.settings, wanted.adopted


@pytest.mark.stress
def test_the_state_is_that_of_the_query_whose_results_leave(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """What the checkpoint keeps of the join says nothing of aggregates."""
    with_parts = streaming_sql(spark, PUSHED, state=State(buckets=2))
    without = streaming_sql(spark, PUSHED, push_aggregates=False, state=State(buckets=2))
    assert "push_aggregates=False" in aggregates_of(without)[0]
    assert pinned(with_parts) == pinned(without)


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_groups_of_computed_columns_by_several_streams(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path, mode: str
):
    sql = f"""SELECT upper(seg) || note AS g, count(*) AS n, avg(dear) AS mean, max(note) AS m
        FROM (SELECT c.seg, l.note, o.price * 2 + l.qty AS dear {FROM}) GROUP BY upper(seg) || note
        ORDER BY g"""
    sql = sql if mode == "complete" else sql.partition("ORDER")[0]
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    assert "computed inside the join" in aggregates_of(query)[0]
    batches = run(query, tmp_path, mode)
    found = batches[-1] if mode == "complete" else newest(batches)
    wanted = in_duckdb(view_files, sql)
    assert alike(found, wanted)
    assert len(wanted) > 10


@pytest.mark.stress
def test_a_dataframe_is_aggregated_inside_the_join(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    c, o = spark.table("cust"), spark.table("ord")
    joined = c.join(o, c.ck == o.ck).groupBy("seg")
    df = joined.agg(F.count("*").alias("n"), F.avg("price").alias("mean"), F.min("ok").alias("ok"))
    query = to_multiway(df, strict=True, state=State(buckets=2))
    assert "computed inside the join" in aggregates_of(query)[0]
    sql = """SELECT seg, count(*), avg(price), min(ok) FROM cust c JOIN ord o ON c.ck = o.ck
        GROUP BY seg"""
    assert alike(newest(run(query, tmp_path, "update")), in_duckdb(view_files, sql))


@pytest.mark.stress
@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("collect_list(note)", "collect_list is not computed inside the join"),
        ("stddev(qty)", "stddev is not computed inside the join"),
        ("sum(hash(note))", "is not computed inside the join"),
        ("min(struct(note, qty))", "is not computed inside the join"),
        ("try_sum(qty)", "try_sum is not computed inside the join"),
    ],
)
def test_what_is_left_to_spark_is_explained(
    spark: Any, view_files: dict[str, FileStream], select: str, reason: str
):
    query = streaming_sql(spark, f"SELECT seg, {select} AS x {FROM} GROUP BY seg", strict=True)
    (line,) = aggregates_of(query)
    assert "left to Spark, which reads each result" in line
    assert reason in line
    assert line in query.explain_multiway()


@pytest.mark.stress
def test_a_filter_that_judges_results_is_not_passed(spark: Any, view_files: dict[str, FileStream]):
    sql = f"SELECT seg, count(*) AS n {FROM} AND o.price > l.qty GROUP BY seg"
    (line,) = aggregates_of(streaming_sql(spark, sql, strict=True))
    assert "left to Spark, which evaluates it on each result" in line


@pytest.mark.stress
@pytest.mark.parametrize(
    ("value", "fails"),
    [("sum(b.big)", True), ("avg(b.big)", False), ("sum(CAST(b.big AS DECIMAL(20, 0)))", False)],
)
def test_a_sum_overflows_where_that_of_spark_does(
    spark: Any, tmp_path: Path, value: str, fails: bool
):
    rows = pa.table({"k": pa.array([1] * 4, pa.int64()), "big": pa.array([1 << 62] * 4)})
    schema = "k BIGINT, big BIGINT"
    files = {n: FileStream(tmp_path / n, schema).add(rows) for n in ("left_side", "right_side")}
    with views(spark, files):
        sql = f"""SELECT b.k, {value} AS x FROM (SELECT * FROM left_side) a
            JOIN right_side b ON a.k = b.k GROUP BY b.k"""
        query = streaming_sql(spark, sql, strict=True, state=State(buckets=1))
        text = aggregates_of(query)[0]
        assert "computed inside the join" in text
        if fails:
            with pytest.raises(StreamingQueryException, match="ARITHMETIC_OVERFLOW"):
                run(query, tmp_path, "update")
            return
        ((_, found),) = newest(run(query, tmp_path, "update"))
        assert found == (2.0**62 if value.startswith("avg") else 16 << 62)


@pytest.mark.stress
@pytest.mark.parametrize(
    "on",
    [
        "c.ck = o.ck",
        "c.ck = o.ck AND o.price > 20",
        "c.ck < o.price",
        "c.ck = o.ck AND o.price BETWEEN c.ck AND c.ck + 40",
    ],
)
def test_a_dataframe_of_multiway_join_is_aggregated_inside_it(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path, on: str
):
    """Not where a condition is left to Spark."""
    joined = multiway_join({"c": spark.table("cust"), "o": spark.table("ord")}, on=on)
    named = joined.select("seg", (F.col("price") * 2).alias("twice"), "nk")
    df = named.groupBy("seg").agg(F.count("*").alias("n"), F.sum("twice").alias("s"), F.min("nk"))
    query = to_multiway(df)
    sql = f"""SELECT seg, count(*), sum(price * 2), min(nk) FROM cust c JOIN ord o ON {on}
        GROUP BY seg"""
    if "20" in on:
        assert not query.is_converted
        assert "is left to Spark, which judges each result" in query.explain_multiway()
        return
    assert "computed inside the join" in query.explain_multiway()
    assert alike(newest(run(query, tmp_path, "update")), in_duckdb(view_files, sql))


@pytest.mark.parametrize("change", ["filter", "distinct", "with another column"])
def test_what_stands_between_an_aggregate_and_a_join_is_not_passed(
    spark: Any, view_files: dict[str, FileStream], change: str
):
    """It has the columns of the join's result, or all but one; only Spark computes that one."""
    streams = {"c": spark.table("cust"), "o": spark.table("ord")}
    joined = multiway_join(streams, on="c.ck = o.ck")
    changed = {
        "filter": joined.where("nk > 1"),
        "distinct": joined.dropDuplicates(["seg"]),
        "with another column": joined.withColumn("nk", F.hash("seg")),
    }[change]
    query = to_multiway(changed.groupBy("seg").agg(F.sum("nk")))
    assert "one row per group and micro-batch" not in query.explain_multiway()
    pushed = to_multiway(joined.groupBy("seg").agg(F.sum("nk")))
    assert "one row per group and micro-batch" in pushed.explain_multiway()


@pytest.mark.stress
def test_any_value_of_those_that_pass_a_filter(spark: Any, tmp_path: Path):
    """A micro-batch and a bucket in which none does says nothing of the group."""
    schema = "k BIGINT, g BIGINT, x BIGINT"
    left = [{"k": k, "g": 0, "x": None} for k in range(8)]
    right = [{"k": k, "g": 0, "x": k} for k in range(8)]
    files = {
        "left_side": FileStream(tmp_path / "l", schema).add(pa.Table.from_pylist(left)),
        "right_side": FileStream(tmp_path / "r", schema).add(
            *(pa.Table.from_pylist(right[at : at + 1]) for at in range(8))
        ),
    }
    with views(spark, files):
        sql = """SELECT b.g, any_value(b.x) FILTER (WHERE b.x = 6) AS a, first(b.x) FILTER
            (WHERE b.x > 5) AS f FROM left_side a JOIN right_side b ON a.k = b.k GROUP BY b.g"""
        query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
        assert "computed inside the join" in aggregates_of(query)[0]
        ((_, only, one),) = newest(run(query, tmp_path, "update"))
    assert only == 6
    assert one in (6, 7)


@pytest.mark.stress
def test_sums_of_decimals_without_ansi_mode(spark: Any, tmp_path: Path):
    schema = "k BIGINT, d DECIMAL(30, 2)"
    kind = pa.schema([("k", pa.int64()), ("d", pa.decimal128(30, 2))])
    rows = pa.Table.from_pylist([{"k": 1, "d": Decimal(10**25)}] * 3, schema=kind)
    files = {n: FileStream(tmp_path / n, schema).add(rows) for n in ("left_side", "right_side")}
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with views(spark, files):
            sql = """SELECT a.k, sum(b.d) AS s FROM left_side a JOIN right_side b ON a.k = b.k
                GROUP BY a.k"""
            query = streaming_sql(spark, sql, strict=True, state=State(buckets=1))
            assert "computed inside the join" in aggregates_of(query)[0]
            ((_, total),) = newest(run(query, tmp_path, "update"))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert total == 9 * 10**25


@pytest.mark.stress
def test_a_filter_above_multiway_join_is_not_passed(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """It has the columns of the join, and is none. What it does not read stays in the operator."""
    joined = multiway_join({"c": spark.table("cust"), "o": spark.table("ord")}, on="c.ck = o.ck")
    df = joined.where("price > 20").groupBy("seg").agg(F.count("*").alias("n"))
    query = to_multiway(df)
    told = query.explain_multiway()
    assert "left to Spark, which evaluates it on each result" in told
    assert "columns leave the operator" in told
    sql = """SELECT seg, count(*) FROM cust c JOIN ord o ON c.ck = o.ck WHERE price > 20
        GROUP BY seg"""
    assert alike(newest(run(query, tmp_path, "update")), in_duckdb(view_files, sql))


def test_what_is_taken_back_counts_against_what_came(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """Signed by the operation, counts and sums are those of the results that stand: here of a left
    join, whose results without a partner go when one comes."""
    joined = multiway_join(
        {"c": spark.table("cust"), "o": spark.table("ord")},
        on="c LEFT JOIN o ON c.ck = o.ck",
        emit="changes",
        state=State(buckets=2),
    )
    sign = F.when(F.col("op") == "+I", 1).otherwise(-1)
    sums = [F.sum(sign).alias("n"), F.sum(sign * F.col("price")).alias("total")]
    query = to_multiway(joined.groupBy("seg").agg(*sums))
    assert "one row per group and micro-batch" in query.explain_multiway()
    sql = "SELECT seg, count(*), sum(price) FROM cust c LEFT JOIN ord o ON c.ck = o.ck GROUP BY seg"
    assert alike(newest(run(query, tmp_path, "update")), in_duckdb(view_files, sql))
    least = to_multiway(joined.groupBy("seg").agg(F.min("price")))
    assert "results may be taken back, and min reads those too" in least.explain_multiway()


@pytest.mark.stress
def test_columns_that_nothing_reads_stay_in_the_operator(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    sql = f"SELECT upper(c.seg) AS seg, o.price {FROM} WHERE l.qty > 1"
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    assert "2 of 6 columns leave the operator" in query.explain_multiway()
    found = [row for batch in run(query, tmp_path / "sql", "append") for row in batch]
    assert sorted(found) == sorted(in_duckdb(view_files, sql))
    joined = multiway_join(
        {"c": spark.table("cust"), "o": spark.table("ord"), "l": spark.table("line")},
        on="c.ck = o.ck AND o.ok = l.ok",
        state=State(buckets=2),
    )
    narrow = to_multiway(joined.where("qty > 1").select(F.upper("seg").alias("seg"), "price"))
    assert "columns leave the operator" in narrow.explain_multiway()
    found = [row for batch in run(narrow, tmp_path / "frame", "append") for row in batch]
    assert sorted(found) == sorted(in_duckdb(view_files, sql))


#: Rows of two streams, by file; some keys and bounds are null.
RANGED = {
    "left_side": [[(1, 10, 1), (1, None, 2), (2, 3, 4)], [(1, 2, 8), (None, 1, 16), (2, 9, 32)]],
    "right_side": [[(1, 11, 1), (2, 9, 2), (1, None, 4)], [(1, 1, 8), (None, 1, 16), (2, 2, 32)]],
}
TWO_ENDS = "b.m BETWEEN a.m - 1 AND a.m + 1"


@pytest.mark.parametrize(
    ("beside", "calls"),
    [
        (TWO_ENDS, "a.k AS g, count(*) AS n"),
        pytest.param("b.m >= a.m", "a.k AS g, count(*) AS n, sum(a.v)", marks=pytest.mark.stress),
        pytest.param("a.m > b.m", "a.k AS g, sum(a.v + b.v), max(b.m)", marks=pytest.mark.stress),
        pytest.param(f"{TWO_ENDS} AND a.v <> b.v", "a.k AS g, sum(b.v)", marks=pytest.mark.stress),
        pytest.param("b.m < a.m", "1 AS g, count(*) AS n", marks=pytest.mark.stress),
    ],
)
@pytest.mark.parametrize("by", ["sql", pytest.param("frame", marks=pytest.mark.stress)])
def test_results_of_a_range_beside_keys_are_aggregated_inside(
    spark: Any, tmp_path: Path, by: str, beside: str, calls: str
):
    """Also after a restart, and with one end."""
    files = {name: FileStream(tmp_path / name, "k INT, m BIGINT, v BIGINT") for name in RANGED}
    joined = f"FROM left_side a JOIN right_side b ON a.k = b.k AND {beside}"
    sql = f"SELECT {calls} {joined} GROUP BY {'a.k' if 'a.k' in calls else '1'}"
    found: list[list[tuple[Any, ...]]] = []
    for at in range(2):
        for name, stream in files.items():
            rows = [dict(zip("kmv", row, strict=True)) for row in RANGED[name][at]]
            kinds = pa.schema([("k", pa.int32()), ("m", pa.int64()), ("v", pa.int64())])
            stream.add(pa.Table.from_pylist(rows, kinds))
        with views(spark, files):
            if by == "sql":
                query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
            else:
                query = to_multiway(aggregated_frame(spark, beside, sql))
            assert "computed inside the join" in query.explain_multiway()
            assert "is left to Spark" not in query.explain_multiway()
            found += run(query, tmp_path, "update")
    assert sorted(newest(found)) == sorted(in_duckdb(files, sql))


def aggregated_frame(spark: Any, beside: str, sql: str) -> Any:
    """The query, over a ``multiway_join``."""
    streams = {"a": spark.table("left_side"), "b": spark.table("right_side")}
    joined = multiway_join(streams, on=f"a.k = b.k AND {beside}", state=State(buckets=2))
    group, *calls = sql.removeprefix("SELECT ").partition(" FROM")[0].split(", ")
    named = [F.expr(call.replace("a.", "a_").replace("b.", "b_")) for call in calls]
    key = F.expr(group.partition(" AS")[0].replace("a.", "a_")).alias("g")
    return joined.groupBy(key).agg(*named)


@pytest.mark.parametrize(
    ("select", "beside"),
    [("a.k, b.v", "b.m >= a.m"), ("a.k, collect_list(b.v)", "b.m >= a.m"), ("a.k", "a.v <> b.v")],
)
def test_a_range_that_finds_no_fewer_rows_stays_a_filter(
    spark: Any, tmp_path: Path, select: str, beside: str
):
    """With one end, of results that leave the join."""
    files = {name: FileStream(tmp_path / name, "k INT, m BIGINT, v BIGINT") for name in RANGED}
    for stream in files.values():
        stream.directory.mkdir()
    sql = f"SELECT {select} FROM left_side a JOIN right_side b ON a.k = b.k AND {beside}"
    with views(spark, files):
        sql += " GROUP BY a.k" if "collect" in select else ""
        query = streaming_sql(spark, sql, strict=True)
        assert "left to Spark, which evaluates it on each result" in query.explain_multiway()


def test_a_range_that_fails_for_a_row_without_partner_fails_no_query(spark: Any, tmp_path: Path):
    """Spark evaluates what is beside a key for pairs with that key."""
    rows = {"left_side": [(1, 5, 1), (7, 1000, 2), (None, 1000, 4)], "right_side": [(1, 6, 1)]}
    files = {name: FileStream(tmp_path / name, "k INT, m BIGINT, v BIGINT") for name in rows}
    kinds = pa.schema([("k", pa.int32()), ("m", pa.int64()), ("v", pa.int64())])
    for name, stream in files.items():
        stream.add(
            pa.Table.from_pylist([dict(zip("kmv", r, strict=True)) for r in rows[name]], kinds)
        )
    sql = """SELECT a.k, count(*) AS n FROM left_side a JOIN right_side b
        ON a.k = b.k AND CAST(a.m AS TINYINT) < b.m GROUP BY a.k"""
    with views(spark, files):
        found = run(streaming_sql(spark, sql, strict=True), tmp_path, "update")
    assert newest(found) == [(1, 1)]


def test_a_range_between_event_times_forgets_no_row(spark: Any, tmp_path: Path):
    """It stays a filter: in the join it would bound how long rows are kept."""
    schema = "k INT, at TIMESTAMP"
    for name in ("left_side", "right_side"):
        stream = FileStream(tmp_path / name, schema)
        stream.directory.mkdir()
        stream.read(spark).withWatermark("at", "1 minute").createOrReplaceTempView(name)
    for beside in ("BETWEEN a.at AND a.at + INTERVAL 1 HOUR", ">= a.at"):
        sql = f"""SELECT a.k, count(*) AS n FROM left_side a JOIN right_side b
            ON a.k = b.k AND b.at {beside} GROUP BY a.k"""
        told = streaming_sql(spark, sql, strict=True).explain_multiway()
        assert "left to Spark, which evaluates it on each result" in told
        assert "evaluated by the operator" not in told
