"""One language of conditions: plain Python and Spark give the same results, or refuse by the same
name. Spark's own batch join says which results those are."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State
from support.grouped import grouped
from support.spark_streams import BACKEND, FileStream, collected

NAN = float("nan")
COUNT, FIRST = 20, 8
COLUMNS = {
    "n": (pa.int64(), "BIGINT"),
    "k": (pa.int64(), "BIGINT"),
    "j": (pa.int64(), "BIGINT"),
    "name": (pa.string(), "STRING"),
    "x": (pa.float64(), "DOUBLE"),
    "t": (pa.date32(), "DATE"),
    "at": (pa.timestamp("us"), "TIMESTAMP_NTZ"),
    "doc": (
        pa.struct([("id", pa.int64()), ("Of", pa.struct([("k", pa.string())]))]),
        "STRUCT<id: BIGINT, Of: STRUCT<k: STRING>>",
    ),
    "m": (pa.map_(pa.string(), pa.int64()), "MAP<STRING, BIGINT>"),
    "js": (pa.string(), "STRING"),
    "num": (pa.string(), "STRING"),
}
ROWS = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
DDL = ", ".join(f"{name} {kind}" for name, (_, kind) in COLUMNS.items())


def rows(side: int) -> pa.Table:
    """Rows of few values, some of them null."""
    rng = random.Random(side)

    def row(n: int) -> dict[str, Any]:
        key, number = rng.choice([0, 1, 2, 3, None]), rng.choice("0123")
        return {
            "n": n,
            "k": rng.choice([0, 1, 2, 3, None]),
            "j": rng.randrange(3),
            "name": rng.choice([None, "a", "b", "ba", "c%", "b_"]),
            "x": rng.choice([NAN, -0.0, 0.0, 1.0, 1.5, 2.0, None]),
            "t": rng.choice([None, date(2026, 1, 3), date(2026, 1, 4), date(2026, 1, 6)]),
            "at": rng.choice([None, *(datetime(2026, 1, 1, hour, 30 * side) for hour in range(6))]),
            "doc": rng.choice([None, *[{"id": key, "Of": {"k": rng.choice("xy")}}] * 4]),
            "m": rng.choice([[], [("q", rng.randrange(4))], [("p", 1), ("q", 2)]]),
            "js": rng.choice(["no", f'{{"v": {{"id": {number}}}, "w": "a"}}', None]),
            "num": rng.choice([None, number, f" {number} "]),
        }

    return pa.Table.from_pylist([row(n) for n in range(COUNT)], ROWS)


TABLES = {"u": rows(0), "c": rows(1)}

#: What both run as a stream.
STREAMED = [
    "u.k = c.k AND u.name < c.name",
    "u.num = c.k",
    "u.k = c.k AND c.at <= u.at + INTERVAL '0 1' DAY TO HOUR AND u.at <= c.at",
    "u.k = c.k -- the key\n AND /* and */ u.j <> c.j",
    "u.doc.id = c.doc.id AND u.doc.of.k = c.doc.Of.k",
    "u.k = c.k AND u.j = c.j AND u.k = c.j",
    "u.m['q'] = c.k AND abs(u.j - c.x) <= 1",
    "get_json_object(u.js, '$.v.id') = c.num",
]
#: What plain Python does as Spark's batch join does.
JOINED = [
    *STREAMED,
    "u.k = c.x",
    "u.x = c.x AND u.n <= c.n",
    "u.k = c.k AND u.x < c.x",
    "u.k = c.k AND u.j <= c.x + 0.5 AND c.x <> 'NaN'",
    "u.k = c.k AND (u.name LIKE c.name OR c.name LIKE 'b\\\\_' OR u.name IS NULL)",
    "u.k = c.k AND u.n % 5 BETWEEN c.n / 4 AND c.n * 2 - 3",
    "u.k = c.k AND CASE WHEN u.j > 0 THEN c.n / u.j > 2 ELSE c.j = 0 END",
    "u.k = c.k AND coalesce(u.x, c.x, 9) <=> greatest(u.j, c.j, 1)",
    "u.k = c.k AND (datediff(u.t, c.t) IN (1, -2) OR date_add(u.t, 3) = c.t)",
    "u.k = c.k AND length(concat(u.name, c.name)) > 2 AND NOT u.name = c.name",
    "u.k = c.k AND u.t < '2026-01-05' AND c.at - u.at > INTERVAL 90 MINUTES",
    "u.k = c.k AND least(u.x, c.j) < 1.25",
    "u.k < c.k",
    "u.k = c.k OR u.j = c.j",
    "u.x BETWEEN c.x AND c.j",
    "abs(u.j - c.x) <= 1 AND u.name > c.name",
    "u.j * c.n + c.x < u.n + 30",
    "u.at - c.at <= INTERVAL 90 MINUTES AND u.t >= c.t",
    "(u.k = c.k AND (u.j = 1 OR c.j = 2)) AND u.name <> 'it''s (AND)'",
]
#: What neither takes, and the words of both.
REFUSED = {
    "u.k = c.k AND u.j <": "syntax error at '<', line 1, column 19",
    "u.k = c.k\nAND (u.j = 1": "syntax error at 'the end', line 2, column 13",
    "u.k = c.k AND u.j FROM": "syntax error at 'FROM', line 1, column 19",
    "u.k = c.k AND u.name = 'x": "the quote ' is not closed",
    "u.k = c.k; DROP": "syntax error at ';', line 1, column 10",
    "u.k = c.kk": "there is no column 'kk' in stream 'c'",
    "u.k = d.k": "there is no stream 'd'",
    "k = c.k": "a column needs its stream's name in front, as in u.id; found 'k'",
    "u NATURAL JOIN c": "there is no NATURAL JOIN here",
    "u JOIN c ON u.k = c.k WHERE u.j = 1": "syntax error at 'WHERE'",
    "u AS a JOIN c ON u.k = c.k": "'u AS a' is no stream",
    "u.k = c.k AND u.t < DATE '2026-02-31'": "a date such as '2026-01-31' expected",
}


def by_us(on: str, **options: Any) -> Counter[tuple[int, int]]:
    with MultiwayJoin({"u": ROWS, "c": ROWS}, on, **grouped(backend="memory", **options)) as join:
        found: Counter[tuple[int, int]] = Counter()
        for start, stop in ((0, FIRST), (FIRST, COUNT)):
            for name, table in TABLES.items():
                (batch,) = table.slice(start, stop - start).combine_chunks().to_batches()
                for piece in join.process(name, batch):
                    assert piece.schema.equals(join.output_schema)
                    found.update((row["u_n"], row["c_n"]) for row in piece.to_pylist())
    return found


@pytest.fixture(scope="module")
def by_spark(spark: Any) -> Iterator[dict[str, Counter[tuple[int, int]]]]:
    """The results of each condition, all of which one query evaluates on all pairs of rows."""
    pytest.importorskip("pyspark")
    for name, table in TABLES.items():
        frame = spark.createDataFrame(table)
        local = frame["at"].cast("timestamp_ntz")
        frame.withColumn("at", local).coalesce(1).cache().createOrReplaceTempView(f"table_{name}")

    conditions = ", ".join(f"({on}) AS c{n}" for n, on in enumerate(JOINED))
    sql = f"SELECT u.n, c.n, {conditions} FROM table_u u CROSS JOIN table_c c"
    rows = spark.sql(sql).collect()
    yield {
        on: Counter((row[0], row[1]) for row in rows if row[2 + n]) for n, on in enumerate(JOINED)
    }
    for name in TABLES:
        spark.catalog.dropTempView(f"table_{name}")


@pytest.mark.spark
@pytest.mark.parametrize("on", JOINED)
def test_plain_python_gives_what_spark_gives(
    by_spark: dict[str, Counter[tuple[int, int]]], on: str
) -> None:
    expected = by_spark[on]
    assert expected, "a condition that nothing keeps shows nothing"
    assert by_us(on) == expected
    clause = f"u JOIN c ON {on}"
    assert by_us(clause) == expected


@pytest.mark.spark
@pytest.mark.parametrize(
    "on",
    [
        *(pytest.param(on, marks=[] if "[" in on else [pytest.mark.stress]) for on in STREAMED),
        pytest.param('u."k" = c.`k` AND u."name" > c.name', marks=pytest.mark.stress),
    ],
)
def test_a_stream_gives_what_plain_python_gives(spark: Any, tmp_path: Path, on: str) -> None:
    from lsmstate.spark import multiway_join

    streams = {
        name: FileStream(tmp_path / name, DDL).add(table.slice(0, FIRST), table.slice(FIRST))
        for name, table in TABLES.items()
    }
    joined = multiway_join(
        {name: stream.read(spark) for name, stream in streams.items()},
        on,
        state=State(backend=BACKEND, buckets=2),
    )
    assert joined.columns == [f"{name}_{column}" for name in TABLES for column in COLUMNS]
    found = collected(joined.select("u_n", "c_n"), tmp_path)
    assert Counter((row[0], row[1]) for row in found) == by_us(on)


@pytest.mark.spark
def test_columns_are_conditions(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    from lsmstate.spark import multiway_join
    from lsmstate.spark_integration.catalyst.conditions import column_text

    u, c = (lambda name, s=stream: F.col(f"{s}.{name}") for stream in "uc")
    texts = {
        "u.k = c.k AND u.name < c.name": (u("k") == c("k")) & (u("name") < c("name")),
        "u.doc.id = c.doc.id": u("doc.id") == c("doc.id"),
        "u.m['q'] = c.k AND abs(u.j - c.x) <= 1": (u("m")["q"] == c("k"))
        & (F.abs(u("j") - c("x")) <= 1),
        "u.k = c.k AND NOT u.x IS NULL AND u.j IN (1, 2)": (u("k") == c("k"))
        & ~u("x").isNull()
        & u("j").isin(1, 2),
        "u.k = c.k AND u.x BETWEEN -1 AND 1.5": (u("k") == c("k")) & u("x").between(-1, 1.5),
        "u.k = c.k AND (u.name LIKE 'b%' OR u.name <> 'it\\'s')": (u("k") == c("k"))
        & (u("name").like("b%") | (u("name") != "it's")),
        "u.k = c.k AND CASE WHEN u.j > 1 THEN 1 ELSE 2 END = c.j": (u("k") == c("k"))
        & (F.when(u("j") > 1, 1).otherwise(2) == c("j")),
        "u.k = c.k AND c.at <= u.at + INTERVAL 1 HOUR": (u("k") == c("k"))
        & F.expr("c.at <= u.at + INTERVAL 1 HOUR"),
    }
    for text, column in texts.items():
        assert by_us(column_text(column)) == by_us(text), column_text(column)
    frames = {name: FileStream(tmp_path / name, DDL).add().read(spark) for name in TABLES}
    for column in texts.values():
        assert multiway_join(frames, column).isStreaming
    with pytest.raises(InvalidArgumentError, match=r"'k' names no stream; write it as F.col"):
        multiway_join(frames, frames["u"]["k"] == frames["c"]["k"])


@pytest.mark.parametrize(("on", "words"), REFUSED.items())
def test_plain_python_refuses_by_name(on: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(words)):
        by_us(on)


@pytest.mark.spark
def test_spark_refuses_by_the_same_name(spark: Any, tmp_path: Path) -> None:
    from lsmstate.spark import multiway_join

    frames = {name: FileStream(tmp_path / name, DDL).add().read(spark) for name in TABLES}
    for on, words in REFUSED.items():
        with pytest.raises(InvalidArgumentError, match=re.escape(words)):
            multiway_join(frames, on)
    with pytest.raises(InvalidArgumentError, match="the function upper is not known here"):
        by_us("u.k = c.k AND upper(u.name) = c.name")
    assert multiway_join(frames, "u.k = c.k AND upper(u.name) = c.name").isStreaming
