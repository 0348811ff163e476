"""SQL and DataFrames whose joins are merged into one operator: the rows of Spark and of DuckDB."""

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import Skew, State, streaming_sql, to_multiway
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan
from lsmstate.spark_integration.stateful_operator.query_start import operators_in
from support.spark_streams import FileStream
from support.sql_views import (
    FILES,
    assert_appends,
    in_duckdb,
    rows_of,
    run,
    signature_of,
    so_far,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions", "view_files")]


AROUND = """
WITH big AS (SELECT ok + 0 AS ok, ck, price * 2 AS twice FROM ord WHERE price > 10)
SELECT c.SEG, name, o.twice - l.qty AS left_over, l.note, o2.price AS again
FROM cust c JOIN nation n ON c.nk = n.nk
JOIN big o ON o.ck = c.ck
JOIN (SELECT * FROM line WHERE note <> 'n3') l ON l.ok = o.ok
JOIN ord o2 ON o2.ok = l.ok
WHERE l.qty + c.nk < 9 AND (seg = 's1' OR o.twice > 30)"""


def test_everything_around_the_joins(spark: Any, view_files: dict[str, FileStream], tmp_path: Path):
    """CTE, view, filters, projections, expressions as keys, a self-join and a static table."""
    query = streaming_sql(spark, AROUND, state=State(buckets=4, memory="8m"))
    assert query.is_converted
    assert query.note == ""
    assert query.schema == spark.sql(AROUND).schema
    assert "MultiJoin 1 of 4 inputs" in query.explain_multiway()
    assert_appends(query, AROUND, view_files, tmp_path)


TOP = """
SELECT seg, sum(price * qty) AS total, count(*) AS n
FROM cust, ord, line WHERE cust.ck = ord.ck AND ord.ok = line.ok
GROUP BY seg HAVING count(*) > 1 ORDER BY total DESC LIMIT 2"""


def test_only_what_is_read_is_kept(spark: Any):
    query = streaming_sql(spark, TOP, skew=Skew(rows={"line": 2}), state=State(buckets=4))
    assert [line.partition(": ")[2] for line in signature_of(query).splitlines()[:3]] == [
        "cust(seg, key_1 = Cast[long](ck@0))",
        "ord(ok, ck, price)",
        "line(qty, key_2 = Cast[long](ok@0))",
    ]


@pytest.mark.stress
def test_aggregate_sort_and_limit_in_complete_mode(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """Spark itself runs no join of streams in complete mode."""
    query = streaming_sql(spark, TOP, skew=Skew(rows={"line": 2}), state=State(buckets=4))
    batches = run(query, tmp_path, "complete")
    assert batches[-1] == in_duckdb(view_files, TOP)
    assert len(batches[-1]) == 2


@pytest.mark.stress
def test_aggregate_in_update_mode(spark: Any, view_files: dict[str, FileStream], tmp_path: Path):
    """The newest row of each group is the answer; a CTE used twice is one operator."""
    sql = """WITH o AS (SELECT ok, ck, price FROM ord WHERE price > 5)
        SELECT a.ok, count(*) AS n, max(b.price) AS most
        FROM o a JOIN line l ON l.ok = a.ok JOIN o b ON b.ok = a.ok GROUP BY a.ok"""
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=4))
    newest = {row[0]: row for batch in run(query, tmp_path, "update") for row in batch}
    assert sorted(newest.values()) == sorted(in_duckdb(view_files, sql))


@pytest.mark.stress
def test_update_mode_without_an_aggregate(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """Spark streams such joins in update mode, and the operator does not: append is the same."""
    sql = "SELECT l.ok, price, qty FROM ord o JOIN line l ON o.ok = l.ok"
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    found = Counter(rows_of(run(query, tmp_path, "update")))
    assert found == Counter(in_duckdb(view_files, sql))
    assert len(found) > 20


def test_random_values_of_a_clause_that_is_named_twice(spark: Any):
    """Its rows are the same in both places; two copies would not be."""
    twice = """WITH r AS (SELECT ok, ck, rand() AS x FROM ord)
        SELECT a.x - b.x AS zero FROM r a JOIN r b ON a.ok = b.ok JOIN line l ON l.ok = a.ok"""
    query = streaming_sql(spark, twice)
    assert not query.is_converted
    assert "is not deterministic is referenced several times" in query.note
    with pytest.raises(InvalidArgumentError, match="not deterministic"):
        query.staged("nowhere")
    once = "WITH r AS (SELECT ok, rand() AS x FROM ord) SELECT x FROM r JOIN line l ON l.ok = r.ok"
    assert streaming_sql(spark, once, strict=True).is_converted


def test_the_signature_says_the_same_in_every_session(spark: Any):
    """A restart with other expressions beside the join, whose binary key has a literal in it."""

    def pinned(columns: str) -> str:
        sql = f"""SELECT {columns} FROM ord o JOIN line l
            ON concat(encode(o.ok, 'utf-8'), X'0102') = concat(encode(l.ok, 'utf-8'), X'0102')
            AND date_format(date_from_unix_date(price), 'y') = regexp_replace(note, 'n', '1')"""
        return signature_of(streaming_sql(spark, sql, strict=True, state=State(buckets=2)))

    one = pinned("price, note, ck, qty")
    assert "X'0102'" in one
    assert one == pinned("rlike(note, 'n') AS a, price IN (1, 2) AS b, ck LIKE 'a' AS c, qty")


def test_a_watermark_that_is_declared_again_is_sparks(spark: Any, tmp_path: Path):
    frames = [
        FileStream(tmp_path / name, "k INT, at TIMESTAMP").add().read(spark) for name in ("a", "b")
    ]
    joined = frames[0].withWatermark("at", "1 minute").join(frames[1].drop("at"), "k")
    query = to_multiway(joined.withWatermark("at", "5 minutes").dropDuplicates(["k", "at"]))
    assert not query.is_converted
    assert "a watermark is declared again above the joins" in query.note


@pytest.mark.stress
def test_dataframe_with_drop_duplicates(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    cust, ord_, line = (spark.table(name) for name in ("cust", "ord", "line"))
    df = (
        cust.where("nk > 0")
        .join(ord_, "ck")
        .join(line, ord_.ok == line.ok)
        .select(line.ok, "seg")
        .dropDuplicates()
    )
    query = to_multiway(df, state=State(buckets=4))
    assert query.is_converted
    assert query.schema == df.schema
    sql = """SELECT DISTINCT l.ok, seg FROM cust c JOIN ord o ON c.ck = o.ck
        JOIN line l ON o.ok = l.ok WHERE nk > 0"""
    assert_appends(query, sql, view_files, tmp_path)


@pytest.mark.stress
def test_a_checkpoint_of_another_join_is_refused(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    def query(key: str, columns: str = "seg, price, note") -> Any:
        sql = f"SELECT {columns} FROM cust, ord, line WHERE cust.ck = ord.ck AND {key} = line.ok"
        return streaming_sql(spark, sql, state=State(buckets=2))

    run(query("ord.ok"), tmp_path)
    run(query("ord.ok", "concat(seg, note), price"), tmp_path)  # the same join, used otherwise
    for other in (query("ord.ok + 1"), query("ord.ok", "seg, price")):
        with pytest.raises(Exception, match="line") as refusal:
            run(other, tmp_path)
        assert "this checkpoint was started with" in str(refusal.value)
        assert "the query now has" in str(refusal.value)


def test_what_is_left_to_spark(spark: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path):
    """Unconverted with a note, or refused: each with its reason."""
    outer = "SELECT * FROM cust c JOIN ord o ON c.ck = o.ck LEFT JOIN line l ON l.ok = o.ok"
    cases = {
        "SELECT seg FROM cust": "the query has no join",
        "SELECT name FROM nation": "the query reads no stream",
        "SELECT * FROM cust c JOIN nation n ON c.nk = n.nk": "the query has no join of streams",
    }
    for sql, reason in cases.items():
        query = streaming_sql(spark, sql)
        assert not query.is_converted
        assert reason in query.note
        assert reason in query.explain_multiway()
        with pytest.raises(InvalidArgumentError, match="strict=True"):
            streaming_sql(spark, sql, strict=True)
    with pytest.raises(InvalidArgumentError, match=r"emit='changes'.*the query itself says"):
        streaming_sql(spark, TOP, emit="changes")
    query = streaming_sql(spark, outer)
    with pytest.raises(InvalidArgumentError, match=r"watermark.*staged"):
        _ = query.dataframe
    staged = query.staged(str(tmp_path)).explain_multiway()
    assert "not merged: a left outer join; only inner joins are merged" in staged
    assert "Fragment: join of c, o\nFragment: line" in staged
    with pytest.raises(AnalysisException, match="prise"):
        streaming_sql(spark, "SELECT c.prise FROM cust c, ord o WHERE c.ck = o.ck")
    with pytest.raises(AnalysisException, match="NON_DETERMINISTIC"):  # in staged mode too
        streaming_sql(spark, "SELECT 1 FROM cust c JOIN ord o ON c.ck = o.ck AND rand() < 1")
    subquery = (
        "SELECT * FROM cust c, ord o WHERE c.ck = o.ck AND price > (SELECT avg(price) FROM ord)"
    )
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    log.addHandler(caplog.handler)
    with pytest.raises(InvalidArgumentError, match="staged"):
        _ = streaming_sql(spark, subquery).dataframe
    log.removeHandler(caplog.handler)
    assert log.name not in {record.name for record in caplog.records}, "a stack trace was shown"


#: Joins without an equality -> the conditions of the operator, and what is said of them.
ANY_CONDITION = {
    "cust c CROSS JOIN ord o": (None, "warning: no condition connects o to c"),
    "cust c JOIN ord o ON c.ck < o.ck": (
        "c.ck < o.ck",
        "range in o, range in c; a row reads all rows beyond one bound of o",
    ),
    "cust c JOIN ord o ON c.nk >= o.price AND c.nk <= o.ok": (
        "c.nk >= o.price AND c.nk <= o.ok",
        "interval in o, range in c",
    ),
    "cust c JOIN ord o ON c.nk BETWEEN o.price AND o.ok": (
        "c.nk >= o.price AND c.nk <= o.ok",
        "interval in o, range in c",
    ),
    "cust c JOIN ord o ON nullif(c.nk, 3) BETWEEN o.price - 2 AND o.price": (
        "c.key_1 <= o.price",
        "merged into group 1",
    ),
    "cust c JOIN ord o ON c.ck < o.ck WHERE rand() + c.nk BETWEEN 0 AND 3": (
        "c.ck < o.ck",
        "range in o",
    ),
    "cust c JOIN ord o ON abs(c.nk - o.price) <= 2": (
        "absc.nk - o.price <= 2",
        "range in o, checked on candidates",
    ),
    "cust c JOIN ord o ON c.ck = o.ck OR c.nk = o.price": (
        "c.ck = o.ck OR c.nk = o.price",
        "checked on candidates; evaluated on each row of o",
    ),
    "cust c JOIN ord o ON c.ck <=> o.ck": ("c.ck <=> o.ck", "checked on candidates"),
    "cust c JOIN ord o ON c.ck = 1 AND o.ck = 1": (None, "warning: no condition connects"),
    "cust c JOIN ord o ON date_add(DATE '1970-01-02', c.nk) < date_from_unix_date(o.price)": (
        "c.key_1 < o.key_2",
        "range in o",
    ),
    "cust c JOIN ord o ON c.ck = o.ck CROSS JOIN line l": (
        "c.key_1 = o.ck",
        "key of o, key of c",
    ),
    "cust c, ord o, line l WHERE c.ck = o.ck AND o.price < l.qty": ("o.price < l.qty", "key of o"),
    "cust c JOIN ord o ON hash(c.seg, o.price) > 0": (None, "warning: no condition connects o"),
}


@pytest.mark.parametrize(
    "joins",
    [
        pytest.param(joins, marks=pytest.mark.stress if at % 3 else ())
        for at, joins in enumerate(ANY_CONDITION)
    ],
)
def test_joins_without_an_equality_are_joins_by_any_condition(spark: Any, joins: str):
    """Spark takes them, and fails as it plans the first micro-batch."""
    sql = f"SELECT c.seg, o.price FROM {joins}"
    query = streaming_sql(spark, sql, state=State(buckets=2), strict=True)
    (operator,) = operators_in(analyzed_plan(query.dataframe))
    condition, told = ANY_CONDITION[joins]
    found = " ".join(re.sub(r"[`()]", "", operator.settings["condition"]).split())
    assert condition is None or condition in found
    assert query.schema == spark.sql(sql).schema
    assert told in query.explain_multiway()


def test_a_join_without_an_equality_gives_the_rows_of_a_batch(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """Casts, a list of streams, a range, a filter that only Spark knows, and an aggregate."""
    sql = """SELECT c.seg, count(*) AS n, sum(o.price - l.qty) AS total
        FROM cust c, ord o, line l
        WHERE c.ck BETWEEN o.price - 2 AND o.price + 1 AND o.ok = l.ok
          AND (c.nk < l.qty OR c.nk IS NULL) AND hash(c.seg, l.note) % 3 <> 0
        GROUP BY c.seg"""
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    told = query.explain_multiway()
    assert "left to Spark" in told
    batches = run(query, tmp_path, "complete")
    for name, stream in view_files.items():
        batch = spark.read.schema(stream.schema).parquet(str(stream.directory))
        batch.createOrReplaceTempView(f"batch_{name}")
    as_batch = re.sub(r"(cust c|ord o|line l)", r"batch_\1", sql)
    expected = sorted(map(tuple, spark.sql(as_batch).collect()))
    assert sorted(batches[-1]) == expected
    assert len(expected) == 3


@pytest.mark.stress
def test_columns_that_would_have_one_name(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    """Ids and what refers to them, as they are often named: o.id and c.id beside o.c_id."""
    sql = """SELECT c.name, o.id, l.qty
        FROM (SELECT ck AS id, seg AS name FROM cust) c
        JOIN (SELECT ok AS id, ck AS c_id FROM ord) o ON c.id = o.c_id
        JOIN (SELECT ok AS o_id, qty FROM line) l ON l.o_id = o.id"""
    query = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    assert query.is_converted
    assert_appends(query, sql, view_files, tmp_path)


WINDOWS = """
SELECT window.start AS start, count(*) AS n, sum(v) AS total
FROM clicks JOIN views ON clicks.k = views.k
GROUP BY window(clicks.at, '10 minutes')"""
WINDOWS_OF_UNION = """
SELECT window.start AS start, count(*) AS n, sum(v) AS total
FROM (SELECT c.at, v FROM clicks c JOIN views ON c.k = views.k
      UNION ALL SELECT d.at, -views.v FROM clicks d JOIN views ON d.k = views.v)
GROUP BY window(at, '10 minutes')"""


def minutes(*at: int) -> pa.Array:
    return pa.array([m * 60_000_000 for m in at], pa.timestamp("us", "UTC"))


@pytest.mark.stress
@pytest.mark.parametrize("sql", [WINDOWS, WINDOWS_OF_UNION], ids=["one", "union"])
def test_windows_in_append_mode_through_a_pause_of_the_join(spark: Any, tmp_path: Path, sql: str):
    """The watermark reaches the window above, also while the join gives nothing: as in Spark."""
    clicks = FileStream(tmp_path / "clicks", "k INT, at TIMESTAMP").add(
        pa.table({"k": pa.array([1, 2, 3], pa.int32()), "at": minutes(1, 5, 12)}),
        pa.table({"k": pa.array([9, 9], pa.int32()), "at": minutes(31, 34)}),  # match nothing
        pa.table({"k": pa.array([9, 9], pa.int32()), "at": minutes(51, 3)}),
        pa.table({"k": pa.array([1, 2, 1], pa.int32()), "at": minutes(52, 58, 2)}),  # one is late
        pa.table({"k": pa.array([9], pa.int32()), "at": minutes(95)}),
    )
    views = FileStream(tmp_path / "views", "k INT, v INT")
    kinds = {"k": pa.int32(), "v": pa.int32()}
    views.add(*(pa.table({"k": [k, k], "v": [k, 2 * k]}, pa.schema(kinds)) for k in (1, 2, 3)))
    clicks.read(spark).withWatermark("at", "5 minutes").createOrReplaceTempView("clicks")
    views.read(spark).createOrReplaceTempView("views")
    converted = streaming_sql(spark, sql, strict=True, state=State(buckets=2))
    assert converted.is_converted
    found = run(converted, tmp_path / "converted")
    expected = run(spark.sql(sql), tmp_path / "spark")
    assert sorted(rows_of(found)) == sorted(rows_of(expected))
    assert len(rows_of(expected)) == 3


LARGE = """
SELECT c.ck, count(DISTINCT l.note) AS notes, max(price) AS most
FROM cust c, ord o, line l
WHERE c.ck = o.ck AND o.ok = l.ok AND price > (SELECT avg(price) FROM ord WHERE ck IS NOT NULL)
  AND NOT EXISTS (SELECT * FROM line x WHERE x.ok = o.ok AND x.qty = 8)
GROUP BY c.ck ORDER BY c.ck"""


SMALL = """
SELECT c.ck, count(*) AS n, max(price) AS most FROM cust c, ord o
WHERE c.ck = o.ck AND price > (SELECT avg(price) FROM ord WHERE ck IS NOT NULL)
GROUP BY c.ck ORDER BY c.ck"""


@pytest.mark.parametrize(
    ("sql", "fragments"),
    [
        pytest.param(SMALL, ("join of c, o", "ord"), id="small"),
        pytest.param(
            LARGE, ("join of c, o, l", "ord", "line"), marks=pytest.mark.stress, id="large"
        ),
    ],
)
def test_staged_answers_after_every_micro_batch(
    spark: Any,
    view_files: dict[str, FileStream],
    tmp_path: Path,
    sql: str,
    fragments: tuple[str, ...],
):
    """Also when a micro-batch fails after its answer, and is repeated."""
    answers: dict[int, list[tuple[Any, ...]]] = {}
    failed: list[int] = []

    def keep(df: Any, number: int) -> None:
        rows = [tuple(row) for row in df.collect()]
        assert answers.setdefault(number, rows) == rows
        if number == 1 and not failed:
            failed.append(number)
            raise RuntimeError("the sink is away")

    def start() -> Any:
        staged = streaming_sql(spark, sql, state=State(buckets=2)).staged(str(tmp_path))
        assert staged.fragments == fragments
        return staged.start(keep, trigger={"availableNow": True})

    with pytest.raises(Exception, match="the sink is away"):
        start().awaitTermination()
    start().awaitTermination()
    assert failed == [1]
    for number in range(FILES):
        assert answers[number] == so_far(view_files, number + 1, sql)
    assert len(answers[FILES - 1]) > 5
    for changed in ("c.ck = o.ck + 1", "c.ck = o.ck AND c.ck < 40"):
        other = streaming_sql(spark, sql.replace("c.ck = o.ck", changed), state=State(buckets=2))
        with pytest.raises(InvalidArgumentError, match="belongs to a query with the fragments"):
            other.staged(str(tmp_path)).start(keep)


def test_staged_mode_refuses_subqueries_that_it_does_not_find(spark: Any, tmp_path: Path):
    """Spark looks for a stream in them no more, and would read it whole, or fail far later."""
    for where, sql in {
        "Aggregate": "SELECT seg, sum(nk + (SELECT max(price) FROM ord)) FROM cust GROUP BY seg",
        "Sort": "SELECT seg FROM cust ORDER BY (SELECT max(price) FROM ord) + nk",
    }.items():
        with pytest.raises(InvalidArgumentError, match=f"a subquery in the {where} of the query"):
            streaming_sql(spark, sql).staged(str(tmp_path))
    static = "SELECT seg, sum(nk + (SELECT max(nk) FROM nation)) FROM cust GROUP BY seg"
    assert streaming_sql(spark, static).staged(str(tmp_path)).fragments == ("cust",)


def test_a_conversion_asks_spark_little(spark: Any, monkeypatch: pytest.MonkeyPatch):
    """A call takes 0.1 to 0.3 ms; 921 were counted, the making of the operator included."""
    streaming_sql(spark, AROUND)
    calls = 0
    client = spark.sparkContext._gateway._gateway_client
    send = client.send_command

    def counted(command: str, *rest: Any, **named: Any) -> Any:
        nonlocal calls
        calls += not command.startswith("m\n")  # the garbage collector's
        return send(command, *rest, **named)

    monkeypatch.setattr(client, "send_command", counted)
    before = time.process_time()
    assert streaming_sql(spark, AROUND).is_converted
    print(f"{calls} calls, {time.process_time() - before:.2f} s of this process")
    assert 100 < calls < 1100
