"""SQL and DataFrames whose joins are merged into one operator: the rows of Spark and of DuckDB."""

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from spark_streams import FileStream, pieces

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import streaming_sql, to_multiway
from spark_integration.catalyst import analyzed_plan
from spark_integration.query import operators_in

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

VIEWS = ("cust", "ord", "line", "nation")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileStream]:
    """Customers, orders, lines in three files each, and a small table; some keys are null."""
    rng = random.Random(11)
    home = tmp_path_factory.mktemp("views")

    def some(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.05 else v for v in values], kind)

    cust = pa.table(
        {
            "ck": some(list(range(50)), pa.int32()),
            "nk": some([i % 5 for i in range(50)], pa.int32()),
            "seg": [f"s{i % 3}" for i in range(50)],
        }
    )
    ord_ = pa.table(
        {
            "ok": some([rng.randrange(100) for _ in range(150)], pa.int64()),
            "ck": some([rng.randrange(60) for _ in range(150)], pa.int64()),
            "price": pa.array([rng.randrange(100) for _ in range(150)], pa.int32()),
        }
    )
    line = pa.table(
        {
            "ok": some([rng.randrange(110) for _ in range(300)], pa.int32()),
            "qty": some([rng.randrange(9) for _ in range(300)], pa.int32()),
            "note": [f"n{i % 7}" for i in range(300)],
        }
    )
    nation = pa.table({"nk": pa.array(range(5), pa.int32()), "name": [f"N{i}" for i in range(5)]})
    return {
        "cust": FileStream(home / "cust", "ck INT, nk INT, seg STRING COMMENT 'market'").add(
            *pieces(cust, 3)
        ),
        "ord": FileStream(home / "ord", "ok BIGINT, ck BIGINT, price INT").add(*pieces(ord_, 3)),
        "line": FileStream(home / "line", "ok INT, qty INT, note STRING").add(*pieces(line, 3)),
        "nation": FileStream(home / "nation", "nk INT, name STRING").add(nation),
    }


@pytest.fixture(scope="module", autouse=True)
def _views(spark: Any, files: dict[str, FileStream]) -> Iterator[None]:
    for name, stream in files.items():
        df = spark.read.parquet(str(stream.directory)) if name == "nation" else stream.read(spark)
        df.createOrReplaceTempView(name)
    yield
    for name in files:
        spark.catalog.dropTempView(name)


def in_duckdb(files: dict[str, FileStream], sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        for name, stream in files.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM {stream.sql}")
        return db.execute(sql).fetchall()


def run(query: Any, home: Path, mode: str = "append") -> list[list[tuple[Any, ...]]]:
    """The rows of each micro-batch."""
    batches: list[list[tuple[Any, ...]]] = []

    def keep(df: Any, _number: int) -> None:
        batches.append([tuple(row) for row in df.collect()])

    started = (
        query.writeStream.outputMode(mode)
        .foreachBatch(keep)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    return batches


def rows_of(batches: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in batch]


def signature_of(query: Any) -> str:
    """What the checkpoint keeps of the merged join."""
    (wanted,) = operators_in(analyzed_plan(query.dataframe))
    return str(wanted.settings["multi-way join"])


def assert_appends(query: Any, sql: str, files: dict[str, FileStream], home: Path) -> None:
    found = Counter(rows_of(run(query, home)))
    expected = Counter(in_duckdb(files, sql))
    assert found == expected
    assert len(expected) > 20, "a query without rows shows nothing"


AROUND = """
WITH big AS (SELECT ok + 0 AS ok, ck, price * 2 AS twice FROM ord WHERE price > 10)
SELECT c.SEG, name, o.twice - l.qty AS left_over, l.note, o2.price AS again
FROM cust c JOIN nation n ON c.nk = n.nk
JOIN big o ON o.ck = c.ck
JOIN (SELECT * FROM line WHERE note <> 'n3') l ON l.ok = o.ok
JOIN ord o2 ON o2.ok = l.ok
WHERE l.qty + c.nk < 9 AND (seg = 's1' OR o.twice > 30)"""


def test_everything_around_the_joins(spark: Any, files: dict[str, FileStream], tmp_path: Path):
    """CTE, view, filters, projections, expressions as keys, a self-join and a static table."""
    query = streaming_sql(spark, AROUND, buckets=4, memory="8m")
    assert query.is_converted
    assert query.note == ""
    assert query.schema == spark.sql(AROUND).schema
    assert "MultiJoin 1 of 4 inputs" in query.explain_multiway()
    assert_appends(query, AROUND, files, tmp_path)


TOP = """
SELECT seg, sum(price * qty) AS total, count(*) AS n
FROM cust, ord, line WHERE cust.ck = ord.ck AND ord.ok = line.ok
GROUP BY seg HAVING count(*) > 1 ORDER BY total DESC LIMIT 2"""


def test_aggregate_sort_and_limit_in_complete_mode(
    spark: Any, files: dict[str, FileStream], tmp_path: Path
):
    """Spark itself runs no join of streams in complete mode. Only what is read is kept."""
    query = streaming_sql(spark, TOP, buckets=4, rows={"line": 2})
    assert [line.partition(": ")[2] for line in signature_of(query).splitlines()[:3]] == [
        "cust(seg, key_1 = Cast[long](ck@0))",
        "ord(ok, ck, price)",
        "line(qty, key_2 = Cast[long](ok@0))",
    ]
    batches = run(query, tmp_path, "complete")
    assert batches[-1] == in_duckdb(files, TOP)
    assert len(batches[-1]) == 2


def test_aggregate_in_update_mode(spark: Any, files: dict[str, FileStream], tmp_path: Path):
    """The newest row of each group is the answer; a CTE used twice is one operator."""
    sql = """WITH o AS (SELECT ok, ck, price FROM ord WHERE price > 5)
        SELECT a.ok, count(*) AS n, max(b.price) AS most
        FROM o a JOIN line l ON l.ok = a.ok JOIN o b ON b.ok = a.ok GROUP BY a.ok"""
    query = streaming_sql(spark, sql, strict=True, buckets=4)
    newest = {row[0]: row for batch in run(query, tmp_path, "update") for row in batch}
    assert sorted(newest.values()) == sorted(in_duckdb(files, sql))


def test_update_mode_without_an_aggregate(spark: Any, files: dict[str, FileStream], tmp_path: Path):
    """Spark streams such joins in update mode, and the operator does not: append is the same."""
    sql = "SELECT l.ok, price, qty FROM ord o JOIN line l ON o.ok = l.ok"
    query = streaming_sql(spark, sql, strict=True, buckets=2)
    found = Counter(rows_of(run(query, tmp_path, "update")))
    assert found == Counter(in_duckdb(files, sql))
    assert len(found) > 20


def test_random_values_of_a_clause_that_is_named_twice(spark: Any):
    """Its rows are the same in both places; two copies would not be."""
    twice = """WITH r AS (SELECT ok, ck, rand() AS x FROM ord)
        SELECT a.x - b.x AS zero FROM r a JOIN r b ON a.ok = b.ok JOIN line l ON l.ok = a.ok"""
    query = streaming_sql(spark, twice)
    assert not query.is_converted
    assert "is not deterministic is named several times" in query.note
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
        return signature_of(streaming_sql(spark, sql, strict=True, buckets=2))

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


def test_dataframe_with_drop_duplicates(spark: Any, files: dict[str, FileStream], tmp_path: Path):
    cust, ord_, line = (spark.table(name) for name in ("cust", "ord", "line"))
    df = (
        cust.where("nk > 0")
        .join(ord_, "ck")
        .join(line, ord_.ok == line.ok)
        .select(line.ok, "seg")
        .dropDuplicates()
    )
    query = to_multiway(df, buckets=4)
    assert query.is_converted
    assert query.schema == df.schema
    sql = """SELECT DISTINCT l.ok, seg FROM cust c JOIN ord o ON c.ck = o.ck
        JOIN line l ON o.ok = l.ok WHERE nk > 0"""
    assert_appends(query, sql, files, tmp_path)


def test_a_checkpoint_of_another_join_is_refused(
    spark: Any, files: dict[str, FileStream], tmp_path: Path
):
    def query(key: str, columns: str = "seg, price, note") -> Any:
        sql = f"SELECT {columns} FROM cust, ord, line WHERE cust.ck = ord.ck AND {key} = line.ok"
        return streaming_sql(spark, sql, buckets=2)

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
        "SELECT seg FROM cust": "there is no join in it",
        "SELECT name FROM nation": "no stream is read",
        "SELECT * FROM cust c JOIN ord o ON c.ck < o.ck": "no equality links its two sides",
        "SELECT * FROM cust c JOIN nation n ON c.nk = n.nk": "there is no join of streams in it",
    }
    for sql, reason in cases.items():
        query = streaming_sql(spark, sql)
        assert not query.is_converted
        assert reason in query.note
        assert reason in query.explain_multiway()
        with pytest.raises(InvalidArgumentError, match="strict=True"):
            streaming_sql(spark, sql, strict=True)
    with pytest.raises(InvalidArgumentError, match=r"emit='changes'.*the query says"):
        streaming_sql(spark, TOP, emit="changes")
    query = streaming_sql(spark, outer)
    with pytest.raises(InvalidArgumentError, match=r"watermark.*staged"):
        _ = query.dataframe
    staged = query.staged(str(tmp_path)).explain_multiway()
    assert "not merged: a left outer join; only inner joins are merged" in staged
    assert "Fragment: join of c, o\nFragment: line" in staged
    with pytest.raises(AnalysisException, match="prise"):
        streaming_sql(spark, "SELECT c.prise FROM cust c, ord o WHERE c.ck = o.ck")
    subquery = (
        "SELECT * FROM cust c, ord o WHERE c.ck = o.ck AND price > (SELECT avg(price) FROM ord)"
    )
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    log.addHandler(caplog.handler)
    with pytest.raises(InvalidArgumentError, match="staged"):
        _ = streaming_sql(spark, subquery).dataframe
    log.removeHandler(caplog.handler)
    assert log.name not in {record.name for record in caplog.records}, "a stack trace was shown"


def test_columns_that_would_have_one_name(spark: Any, files: dict[str, FileStream], tmp_path: Path):
    """Ids and what refers to them, as they are often named: o.id and c.id beside o.c_id."""
    sql = """SELECT c.name, o.id, l.qty
        FROM (SELECT ck AS id, seg AS name FROM cust) c
        JOIN (SELECT ok AS id, ck AS c_id FROM ord) o ON c.id = o.c_id
        JOIN (SELECT ok AS o_id, qty FROM line) l ON l.o_id = o.id"""
    query = streaming_sql(spark, sql, strict=True, buckets=2)
    assert query.is_converted
    assert_appends(query, sql, files, tmp_path)


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


@pytest.mark.parametrize(
    "sql", [WINDOWS, pytest.param(WINDOWS_OF_UNION, marks=pytest.mark.stress)], ids=["one", "union"]
)
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
    converted = streaming_sql(spark, sql, strict=True, buckets=2)
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


def test_staged_answers_after_every_micro_batch(
    spark: Any, files: dict[str, FileStream], tmp_path: Path
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
        staged = streaming_sql(spark, LARGE, buckets=2).staged(str(tmp_path))
        assert staged.fragments == ("join of c, o, l", "ord", "line")
        return staged.start(keep, trigger={"availableNow": True})

    with pytest.raises(Exception, match="the sink is away"):
        start().awaitTermination()
    start().awaitTermination()
    assert failed == [1]
    for number in range(3):
        assert answers[number] == so_far(files, number + 1, LARGE)
    assert len(answers[2]) > 5
    for changed in ("c.ck = o.ck + 1", "c.ck = o.ck AND c.ck < 40"):
        other = streaming_sql(spark, LARGE.replace("c.ck = o.ck", changed), buckets=2)
        with pytest.raises(InvalidArgumentError, match="was started with"):
            other.staged(str(tmp_path)).start(keep)


def test_staged_mode_refuses_subqueries_that_it_does_not_find(spark: Any, tmp_path: Path):
    """Spark looks for a stream in them no more, and would read it whole, or fail far later."""
    for where, sql in {
        "Aggregate": "SELECT seg, sum(nk + (SELECT max(price) FROM ord)) FROM cust GROUP BY seg",
        "Sort": "SELECT seg FROM cust ORDER BY (SELECT max(price) FROM ord) + nk",
    }.items():
        with pytest.raises(InvalidArgumentError, match=f"stands in the {where} of the query"):
            streaming_sql(spark, sql).staged(str(tmp_path))
    static = "SELECT seg, sum(nk + (SELECT max(nk) FROM nation)) FROM cust GROUP BY seg"
    assert streaming_sql(spark, static).staged(str(tmp_path)).fragments == ("cust",)


GROUPS = """
SELECT seg, count(*) AS n, sum(price * qty) AS total
FROM cust c, ord o, line l
WHERE c.ck = o.ck AND o.ok = l.ok
  AND price > (SELECT avg(price) * 0.9 FROM ord o2, line l2, cust c2
               WHERE o2.ok = l2.ok AND c2.ck = o2.ck AND l2.qty > 3)
  AND o.ok NOT IN (SELECT o3.ok FROM ord o3 JOIN ord o4 ON o3.ok = o4.ok AND o3.price > o4.price
                   WHERE o3.ok IS NOT NULL)
GROUP BY seg ORDER BY seg"""


def test_one_operator_serves_all_groups_of_joins(
    spark: Any, files: dict[str, FileStream], tmp_path: Path
):
    """Of the query and of its subqueries, by several keys and by one; over a restart."""
    answers: dict[int, list[tuple[Any, ...]]] = {}

    def keep(df: Any, number: int) -> None:
        answers[number] = [tuple(row) for row in df.collect()]
        if number == 1 and len(answers) == 2:
            raise RuntimeError("the sink is away")

    def start() -> Any:
        query = streaming_sql(spark, GROUPS, buckets=3, rows={"l": 300, "o": 150})
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
    for number in range(3):
        assert answers[number] == so_far(files, number + 1, GROUPS)
    assert sum(row[1] for row in answers[2]) > 20


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
    spark: Any, files: dict[str, FileStream], tmp_path: Path
):
    """What one branch computes fails for rows of another, whose columns are null there."""
    query = streaming_sql(spark, UNION, strict=True, buckets=2)
    assert query.schema == spark.sql(UNION).schema
    explained = query.explain_multiway()
    assert all(f"join {number}:" in explained for number in (1, 2, 3))
    assert_appends(query, UNION_IN_DUCKDB, files, tmp_path)


def test_groups_that_one_operator_does_not_serve_say_why(spark: Any):
    """Two joins in a union are more than one of three inputs beside it; one alone is not."""
    two = "SELECT c.ck FROM cust c JOIN ord o ON c.ck = o.ck"
    three = f"{two} JOIN line l ON l.ok = o.ok"
    beside = f"SELECT u.ck FROM ({two} UNION ALL {two}) u JOIN ord p ON u.ck = p.ck"
    query = streaming_sql(spark, f"{beside} UNION ALL SELECT nk FROM cust")
    assert query.is_converted
    assert "the groups of 2 and 2 inputs that a UNION ALL puts together" in query.note
    assert query.note in query.explain_multiway()
    random_values = two.replace("c.ck", "floor(rand())", 1)  # it has to stay where it is
    query = streaming_sql(spark, f"{three} UNION ALL {random_values}")
    assert "the group of 3 inputs that it serves is no smaller; of a UNION ALL" in query.note
    assert "without random values" in query.note
    above = two.replace("c.ck", "c.ck, rand() AS r", 1)
    query = streaming_sql(spark, f"SELECT u.ck, r FROM ({above}) u JOIN ord p ON u.ck = p.ck")
    assert query.note.endswith("the group of 2 inputs that it serves is no smaller")


@pytest.mark.stress
def test_a_union_of_joins_and_other_streams(
    spark: Any, files: dict[str, FileStream], tmp_path: Path
):
    """SQL nests unions to the left: the first join stands beside the stream, the second above."""
    sql = """SELECT seg AS what, nk AS v FROM cust
        UNION ALL SELECT seg, price FROM cust c JOIN ord o ON c.ck = o.ck
        UNION ALL SELECT note, qty FROM line
        UNION ALL SELECT note, price FROM line l JOIN ord o ON l.ok = o.ok"""
    query = streaming_sql(spark, sql, strict=True, buckets=2)
    assert query.schema == spark.sql(sql).schema
    assert_appends(query, sql, files, tmp_path)


def test_columns_of_a_union_keep_their_comments(spark: Any):
    """Of the first branch, as in Spark."""
    sql = """SELECT upper(seg) AS what, seg FROM cust c JOIN ord o ON c.ck = o.ck
        UNION ALL SELECT note, upper(note) FROM line l JOIN ord o ON l.ok = o.ok"""
    query = streaming_sql(spark, sql, strict=True, buckets=2)
    assert query.schema == spark.sql(sql).schema
    assert query.schema["seg"].metadata == {"comment": "market"}


@pytest.mark.parametrize("calls", [("after(price)", "true"), ("price", "after(price + qty) > 3")])
def test_functions_in_python_see_no_rows_of_other_joins(spark: Any, calls: tuple[str, str]):
    """Spark evaluates them for all rows, whatever IF they stand in: such joins are not united."""
    spark.udf.register("after", lambda number: number + 1, "int")
    value, condition = calls
    sql = f"""SELECT {value} AS v FROM ord o JOIN line l ON o.ok = l.ok WHERE {condition}
        UNION ALL SELECT nk FROM cust c JOIN ord o ON o.ck = c.ck"""
    query = streaming_sql(spark, sql, buckets=2)
    assert query.is_converted
    assert "the group of 2 inputs that it serves is no smaller" in query.note


def so_far(files: dict[str, FileStream], count: int, sql: str) -> list[tuple[Any, ...]]:
    """DuckDB's answer over the first files of each stream."""
    with duckdb.connect() as db:
        for name, stream in files.items():
            listed = ", ".join(first_files(stream, count))
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{listed}])")
        return db.execute(sql).fetchall()


def first_files(stream: FileStream, count: int) -> list[str]:
    paths = sorted(stream.directory.glob("*.parquet"))[:count]
    return [f"'{path}'" for path in paths]


def test_a_conversion_asks_spark_little(spark: Any, monkeypatch: pytest.MonkeyPatch):
    """A call takes 0.1 to 0.3 ms; 1,815 were counted, the making of the operator included."""
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
    assert 100 < calls < 2000
