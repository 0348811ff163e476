"""Where a converted query could differ from Spark's own plan without a word: it does not."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import Skew, State, Time, streaming_sql, to_multiway
from lsmstate.spark_integration.catalyst.catalyst import Catalyst, analyzed_plan, items
from support.spark_streams import FileStream
from support.sql_views import FILES, assert_appends, rows_of, run, signature_of, so_far

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions", "view_files")]

START = datetime(2026, 3, 1, tzinfo=UTC)


def events(home: Path, name: str, *files: list[tuple[int, int]]) -> FileStream:
    """A stream of (key, minute) in one file a micro-batch."""
    stream = FileStream(home / name, "k INT, at TIMESTAMP")
    for rows in files:
        keys, minutes = zip(*rows, strict=True)
        times = [START + timedelta(minutes=minute) for minute in minutes]
        columns = {
            "k": pa.array(keys, pa.int32()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
        stream.add(pa.table(columns))
    return stream


def watched(spark: Any, *streams: FileStream) -> None:
    """The streams as views of their names, with a watermark each."""
    for stream in streams:
        watermarked = stream.read(spark).withWatermark("at", "5 minutes")
        watermarked.createOrReplaceTempView(stream.directory.name)


def test_columns_keep_their_ids(spark: Any):
    """A DataFrame's own columns are found in what became of it."""
    df = spark.table("cust").join(spark.table("ord"), "ck").select("seg", "price")
    query = to_multiway(df, strict=True, state=State(buckets=2))
    assert query.select(df["seg"], df.price + 1).schema.names == ["seg", "(price + 1)"]
    before, after = (items(analyzed_plan(frame).output()) for frame in (df, query.dataframe))
    assert [a.exprId().id() for a in after] == [a.exprId().id() for a in before]


def test_the_clock_stays_a_question(spark: Any):
    """The optimized plan would have its answer, for all micro-batches."""
    sql = "SELECT current_timestamp() AS now FROM ord o JOIN line l ON o.ok = l.ok"
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    assert "current_timestamp() AS now" in analyzed_plan(query.dataframe).toString()


def test_an_outer_join_is_no_part_of_a_group(spark: Any):
    """Spark itself refuses it without a watermark."""
    query = streaming_sql(spark, "SELECT * FROM cust c LEFT JOIN ord o ON c.ck = o.ck")
    assert not query.is_converted
    assert "only inner joins" in query.note
    with pytest.raises(InvalidArgumentError, match="Spark does not stream this query"):
        _ = query.dataframe


def test_a_join_with_a_table_is_no_part_of_a_group(spark: Any):
    sql = "SELECT * FROM cust c JOIN (VALUES (1), (2)) v(ck) ON c.ck = v.ck"
    query = streaming_sql(spark, sql)
    assert not query.is_converted
    assert "no join of streams" in query.note
    same = Catalyst(spark).gives_the_same
    assert same(analyzed_plan(query.dataframe), analyzed_plan(spark.sql(sql))), "not Spark's plan"


def test_a_streaming_aggregate_is_no_input(spark: Any):
    counts = "SELECT ck, count(*) AS n FROM ord GROUP BY ck"
    query = streaming_sql(spark, f"SELECT * FROM cust c JOIN ({counts}) o ON c.ck = o.ck")
    assert not query.is_converted
    assert "the right side of the join has a streaming aggregate" in query.note
    with pytest.raises(InvalidArgumentError, match=r"staged\(path\)"):
        _ = query.dataframe


CLAUSE = "SELECT c.ck, seg, o.ok, price FROM cust c JOIN ord o ON c.ck = o.ck"
PAIRS = "SELECT x.seg, x.price, y.ok FROM priced x JOIN priced y ON x.ok = y.ok"


def test_a_join_that_is_used_twice_is_one_operator(spark: Any):
    """As a view, as a clause, and beside itself; or a refusal that names staged mode."""
    spark.sql(CLAUSE).createOrReplaceTempView("priced")
    query = streaming_sql(spark, PAIRS, strict=True, state=State(buckets=2))
    assert "of 4 inputs" in query.explain_multiway()
    clauses = f"WITH priced AS ({CLAUSE}) {PAIRS}"
    assert signature_of(
        streaming_sql(spark, clauses, strict=True, state=State(buckets=2))
    ) == signature_of(query)
    one_after_the_other = "SELECT ok FROM priced UNION ALL SELECT price FROM priced"
    assert streaming_sql(
        spark, one_after_the_other, strict=True, state=State(buckets=2)
    ).is_converted
    compared = "SELECT ok FROM priced WHERE price > (SELECT avg(price) FROM priced)"
    with pytest.raises(InvalidArgumentError, match=r"staged\(path\)"):
        _ = streaming_sql(spark, compared).dataframe
    spark.catalog.dropTempView("priced")


@pytest.mark.stress
def test_the_rows_of_a_join_that_is_used_twice(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    sql = f"WITH priced AS ({CLAUSE}) {PAIRS}"
    assert_appends(
        streaming_sql(spark, sql, strict=True, state=State(buckets=2)), sql, view_files, tmp_path
    )


def test_sizes_decide_the_shares(spark: Any, tmp_path: Path):
    """Of files as they lie there, unless a hint says otherwise."""
    for name, rows, columns in (("big", 9000, "k, j"), ("middle", 300, "j, i"), ("small", 9, "i")):
        names = columns.split(", ")
        table = pa.table({column: pa.array(range(rows), pa.int64()) for column in names})
        stream = FileStream(tmp_path / name, ", ".join(f"{n} BIGINT" for n in names)).add(table)
        stream.read(spark).createOrReplaceTempView(name)
    sql = "SELECT k FROM big, middle, small WHERE big.j = middle.j AND middle.i = small.i"

    def shares(**hints: int) -> str:
        query = streaming_sql(
            spark, sql, strict=True, skew=Skew(rows=hints), state=State(buckets=8)
        )
        return next(line for line in query.explain_multiway().splitlines() if "shares" in line)

    assert "big.j 8;" in shares()
    assert "middle.i 8;" in shares(big=1, middle=1, small=1000)


LATE = """SELECT a.k, b.at FROM a JOIN b
    ON a.k = b.k AND b.at BETWEEN a.at - INTERVAL 10 MINUTES AND a.at + INTERVAL 10 MINUTES"""


@pytest.mark.stress
def test_late_rows_of_an_interval(spark: Any, tmp_path: Path):
    """The full history keeps what Spark's own join of an interval drops; ``retention`` drops it."""
    a = events(tmp_path, "a", [(1, 0), (2, 1)], [(9, 300)], [(9, 301)], [(1, 2)])
    b = events(tmp_path, "b", [(1, 1), (2, 2)], [(8, 300)], [(8, 301)], [(2, 3)])
    watched(spark, a, b)
    sparks = Counter(rows_of(run(spark.sql(LATE), tmp_path / "spark")))
    query = streaming_sql(spark, LATE, strict=True, state=State(buckets=2))
    found = Counter(rows_of(run(query, tmp_path / "all")))
    assert sum(sparks.values()) == 2
    assert sum((found - sparks).values()) == 2, "the late rows"
    assert not sparks - found
    kept = {"a": "10 minutes", "b": "10 minutes"}
    query = streaming_sql(
        spark, LATE, strict=True, time=Time(retention=kept), state=State(buckets=2)
    )
    assert Counter(rows_of(run(query, tmp_path / "kept"))) == sparks


WINDOWED = "SELECT a.k FROM a JOIN b ON a.k = b.k"


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_a_window_is_a_part_of_merged_joins(spark: Any, tmp_path: Path, runs: bool):
    """Of event times that the query does not read itself; not where joins are left to Spark."""
    a = events(tmp_path, "a", [(1, 0), (2, 1), (3, 9)])
    b = events(tmp_path, "b", [(1, 9), (2, 12), (3, 10), (3, 1)])
    watched(spark, a, b)
    time, state = Time(window="10 minutes"), State(buckets=2)
    query = streaming_sql(spark, WINDOWED, time=time, state=state)
    assert query.is_converted
    assert not runs or sorted(rows_of(run(query, tmp_path / "out"))) == [(1,), (3,)]
    with pytest.raises(InvalidArgumentError, match="staged mode answers the rest"):
        query.staged(str(tmp_path / "staged"))
    with pytest.raises(
        InvalidArgumentError, match="window='10 minutes' is a part of the condition"
    ):
        streaming_sql(spark, WINDOWED.replace("JOIN", "LEFT JOIN"), time=time, state=state)


ABOVE = """SELECT a.k, a.at, n, c.at FROM a JOIN (SELECT k, at AS n FROM b) b ON a.k = b.k
    {} JOIN c ON c.k = a.k AND c.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES"""
SEMI = ABOVE.replace(", c.at FROM", " FROM").format("LEFT SEMI")


@pytest.mark.stress
def test_a_semi_join_above_the_group_is_planned(spark: Any, tmp_path: Path, capsys: Any):
    """Spark moves it into the union that carries the watermark, where its keys are null."""
    streams = [events(tmp_path, name, [(1, 0)]) for name in "abc"]
    watched(spark, *streams)
    query = streaming_sql(spark, SEMI, state=State(buckets=2))
    assert query.is_converted
    query.explain()
    assert "StreamingSymmetricHashJoin" in capsys.readouterr().out


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["LEFT SEMI", "LEFT"], ids=["semi", "outer"])
def test_joins_of_other_types_above_the_group(spark: Any, tmp_path: Path, kind: str):
    """With a watermark and a range, as Spark wants it; rows without a partner come in time."""
    a = events(tmp_path, "a", [(1, 0), (2, 1)], [(3, 30)], [(9, 60)], [(9, 90)])
    b = events(tmp_path, "b", [(1, 0), (2, 0), (3, 0)])
    c = events(tmp_path, "c", [(1, 2)], [(3, 31)], [(9, 60)], [(7, 90)])
    watched(spark, a, c)
    b.read(spark).createOrReplaceTempView("b")
    sql = SEMI if kind == "LEFT SEMI" else ABOVE.format(kind)
    query = streaming_sql(spark, sql, state=State(buckets=2))
    assert query.is_converted
    assert "only inner joins are merged" in query.note
    found = Counter(rows_of(run(query, tmp_path / "converted")))
    assert found == Counter(rows_of(run(spark.sql(sql), tmp_path / "spark")))
    assert len(found) == (2 if kind == "LEFT SEMI" else 3)


@pytest.mark.stress
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ok, price FROM ord WHERE price > 20 ORDER BY price DESC, ok NULLS FIRST LIMIT 9",
        "SELECT max(n), count(*) FROM (SELECT ck, count(*) AS n FROM ord GROUP BY ck)",
        "SELECT ok FROM ord WHERE ck IN (SELECT ck FROM cust WHERE nk > 2) ORDER BY ok NULLS FIRST",
        "SELECT qty, l.ok FROM line l LEFT SEMI JOIN ord o ON o.ok = l.ok ORDER BY ALL NULLS FIRST",
        "SELECT seg, c.ck FROM cust c LEFT ANTI JOIN ord o ON o.ck = c.ck ORDER BY ALL NULLS FIRST",
        "SELECT seg, price FROM cust c LEFT JOIN ord o ON o.ck = c.ck ORDER BY ALL NULLS FIRST",
    ],
)
def test_staged_mode_without_joins_to_merge(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path, sql: str
):
    answers: dict[int, list[tuple[Any, ...]]] = {}

    def keep(df: Any, number: int) -> None:
        answers[number] = [tuple(row) for row in df.collect()]

    staged = streaming_sql(spark, sql, state=State(buckets=2)).staged(str(tmp_path))
    staged.start(keep, trigger={"availableNow": True}).awaitTermination()
    in_duckdb = sql.replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
    assert len(answers) == FILES
    for number, found in answers.items():
        assert found == so_far(view_files, number + 1, in_duckdb)
