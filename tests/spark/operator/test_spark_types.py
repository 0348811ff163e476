"""Types as keys and as columns: the streaming join gives the rows and the schema of Spark's own."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import State, multiway_join
from lsmstate.spark_integration.columns.arrow_substitutes import nullable_parts
from support.spark_streams import BACKEND

pytestmark = pytest.mark.spark

ROWS = 14
TIME_SETTING = "spark.sql.timeType.enabled"


@pytest.fixture(scope="module", autouse=True)
def _time_type(spark: Any) -> Iterator[None]:
    """TIME is off by default in Spark 4.3."""
    spark.conf.set(TIME_SETTING, "true")
    yield
    spark.conf.unset(TIME_SETTING)


class KeyCase(NamedTuple):
    """A key column: its type on either side, and SQL of its values, of which some are equal."""

    left: str
    right: str
    values: list[str]


def _alike(kind: str, *values: str) -> KeyCase:
    return KeyCase(kind, kind, list(values))


_LETTERS = ("'straße'", "'STRASSE'", "'Straße'", "'ab'", "'AB '", "'é'", "'e\u0301'", "'İ'", "'i̇'")
_DEEP = "ARRAY<STRUCT<x: DOUBLE, at: TIMESTAMP, d: DECIMAL(9,2)>>"

KEYS = {
    "flag": _alike("BOOLEAN", "true", "false"),
    "whole": KeyCase("TINYINT", "BIGINT", ["-128", "0", "127"]),
    "number": KeyCase("FLOAT", "DOUBLE", ["0.0", "-0.0", "1.5", "float('nan')", "float('inf')"]),
    "money": KeyCase("DECIMAL(7,2)", "DECIMAL(20,5)", ["1.5", "1.50", "-99999.99", "0"]),
    "huge": _alike("DECIMAL(38,0)", f"{'9' * 38}BD", f"-{'9' * 38}BD", "0BD"),
    "text": _alike(
        "STRING", "''", "'x'", "'X'", "'x '", r"'x\0'", "string(X'FF')", "string(X'C3')"
    ),
    "raw": _alike("BINARY", "X''", "X'00'", "X'0000'", "X'FF'"),
    "day": KeyCase(
        "DATE", "TIMESTAMP", ["DATE'2024-03-31'", "DATE'1890-01-01'", "DATE'1700-02-28'"]
    ),
    "local": KeyCase(
        "TIMESTAMP_NTZ",
        "TIMESTAMP",
        ["TIMESTAMP_NTZ'2024-03-31 02:30:00'", "TIMESTAMP_NTZ'2024-03-31 03:30:00'"],
    ),
    "span": KeyCase(
        "INTERVAL DAY",
        "INTERVAL HOUR TO SECOND",
        ["INTERVAL '1' DAY", "INTERVAL '-3' DAY", "INTERVAL '0' DAY"],
    ),
    "months": KeyCase(
        "INTERVAL YEAR",
        "INTERVAL MONTH",
        ["INTERVAL '1' YEAR", "INTERVAL '-3' YEAR", "INTERVAL '0' YEAR"],
    ),
    "age": _alike(
        "INTERVAL YEAR TO MONTH",
        "INTERVAL '1-2' YEAR TO MONTH",
        "INTERVAL '14' MONTH",
        "INTERVAL '-178956970-8' YEAR TO MONTH",
    ),
    "clock": KeyCase("TIME(3)", "TIME(6)", ["TIME'10:11:12.5'", "TIME'23:59:59.999'"]),
    "lower": _alike("STRING COLLATE UTF8_LCASE", *_LETTERS),
    "unicode": _alike("STRING COLLATE UNICODE", *_LETTERS),
    "folded": _alike("STRING COLLATE UNICODE_CI_AI", *_LETTERS),
    "trimmed": _alike("STRING COLLATE UTF8_BINARY_RTRIM", *_LETTERS),
    "pair": KeyCase(
        "STRUCT<a: INT, b: STRING>",
        "STRUCT<A: INT, B: STRING>",
        ["(1, 'x')", "(1, 'X')", "(1, NULL)", "(NULL, NULL)"],
    ),
    "list": KeyCase(
        "ARRAY<INT>",
        "ARRAY<BIGINT>",
        ["array()", "array(1)", "array(1, NULL)", "array(NULL, 1)", "array(NULL)"],
    ),
    "days": KeyCase(
        "ARRAY<DATE>",
        "ARRAY<TIMESTAMP>",
        ["array(DATE'2024-03-31')", "array(DATE'2024-04-01')", "array(NULL)"],
    ),
    "deep": _alike(
        _DEEP,
        "array((-0.0D, TIMESTAMP'2024-03-31 02:30:00', 1.5))",
        "array((0.0D, TIMESTAMP'2024-03-31 03:30:00', 1.5))",
        "array((double('nan'), NULL, 2.25))",
        "array(NULL)",
        "array((NULL, NULL, NULL))",
        "array()",
    ),
    "mixed": _alike(
        "STRUCT<t: ARRAY<STRING COLLATE UNICODE_CI>, u: STRING, m: ARRAY<INTERVAL YEAR>, v: VOID>",
        "(array('a', 'B'), 'x', array(INTERVAL '2' YEAR), NULL)",
        "(array('A', 'b'), 'x', array(INTERVAL '2' YEAR), NULL)",
        "(array('A', 'b'), 'X', array(INTERVAL '2' YEAR), NULL)",
        "(array('A', NULL), NULL, array(NULL), NULL)",
        "(array('a', NULL), NULL, array(NULL), NULL)",
        "(NULL, NULL, NULL, NULL)",
    ),
}


def _key_rows(side: int) -> str:
    """SQL of rows in which one key column takes random values and all others have their first."""
    rng = random.Random(side)
    picks = [
        f"({kind}, {n}, {rng.randint(0, len(case.values))})"
        for kind, case in enumerate(KEYS.values())
        for n in range(ROWS)
    ]
    columns = ["kind", "n"]
    for kind, (name, case) in enumerate(KEYS.items()):
        values = ", ".join(f"CAST({value} AS {case[side]})" for value in case.values)
        # One past the last value is null.
        columns.append(f"get(array({values}), IF(kind = {kind}, pick, 0)) AS {name}")
    return f"SELECT {', '.join(columns)} FROM VALUES {', '.join(picks)} AS picks(kind, n, pick)"


def _as_text(frame: Any) -> list[str]:
    """The rows as text: NaN is not equal to itself, 0.0 and -0.0 are."""
    plain = frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])
    # PySpark collects no year-month intervals.
    spans = [f"c{i}" for i, f in enumerate(frame.schema) if "interval" in f.dataType.json()]
    plain = plain.withColumns({name: F.col(name).cast("string") for name in spans})
    return sorted(repr(tuple(row)) for row in plain.collect())


def _streamed(joined: Any, home: Path) -> list[str]:
    got: list[str] = []
    query = (
        joined.writeStream.foreachBatch(lambda batch, _: got.extend(_as_text(batch)))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(got)


def _kinds(schema: T.StructType) -> list[tuple[Any, bool]]:
    return [(field.dataType, field.nullable) for field in schema]


#: Columns that are no keys: their type, and SQL of their values.
COLUMNS = {
    "age": ("INTERVAL YEAR TO MONTH", ["INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-1' MONTH"]),
    "years": ("INTERVAL YEAR", ["INTERVAL '-7' YEAR"]),
    "any": (
        "VARIANT",
        ["""parse_json('{"a": [1, 2.50, null], "b": "x"}')""", "parse_json('null')"],
    ),
    "clock": ("TIME(6)", ["TIME'00:00:00'", "TIME'23:59:59.999999'"]),
    "nested": (
        "MAP<INTERVAL MONTH, ARRAY<STRUCT<y: INTERVAL YEAR, t: STRING COLLATE UNICODE_CI, "
        "v: VARIANT, c: TIME(0), n: VOID>>>",
        [
            "map(INTERVAL '5' MONTH, array((INTERVAL '3' YEAR, 'é', parse_json('1'), "
            "TIME'10:00:00', NULL), NULL, (NULL, NULL, NULL, NULL, NULL)))",
            "map()",
            "map(INTERVAL '6' MONTH, NULL, INTERVAL '5' MONTH, array())",
        ],
    ),
    "lower": ("STRING COLLATE UTF8_LCASE", ["'Ab'", "'aB'"]),
    "nothing": ("VOID", ["NULL"]),
    "nothings": ("ARRAY<VOID>", ["array(NULL, NULL)", "array(NULL)"]),
    "plane": ("GEOMETRY(0)", ["ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')"]),
    "globe": ("GEOGRAPHY(4326)", ["ST_GeogFromWKB(X'0101000000000000000000F03F0000000000000040')"]),
}


#: A column of each side that may not be null.
FIXED = {
    "l": "named_struct('y', INTERVAL '1' YEAR, 't', 'x' COLLATE UNICODE)",
    "r": "INTERVAL '1' YEAR",
}


def _column_rows() -> str:
    rng = random.Random(3)
    picks = ", ".join(f"({n}, {rng.randint(0, 3)})" for n in range(20))
    columns = ["n % 7 AS k", "n"]
    for name, (kind, values) in COLUMNS.items():
        listed = ", ".join(f"CAST({value} AS {kind})" for value in values)
        columns.append(f"get(array({listed}), pick) AS {name}")
    return f"SELECT {', '.join(columns)} FROM VALUES {picks} AS picks(n, pick)"


def test_every_column_type_comes_back_as_it_went(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors, VectorUDT

    vectors = T.StructType([T.StructField("k", T.IntegerType()), T.StructField("w", VectorUDT())])
    weights = [
        (n % 5, [None, Vectors.dense(n, 2.5), Vectors.sparse(9, [n], [1.5])][n % 3])
        for n in range(9)
    ]
    inputs = {"l": spark.sql(_column_rows()), "r": spark.createDataFrame(weights, vectors)}
    batches, streams = {}, {}
    for name, rows in inputs.items():
        directory = str(tmp_path / name)
        rows.coalesce(1).write.parquet(directory)
        fixed = F.expr(FIXED[name])
        batches[name] = spark.read.parquet(directory).withColumn(f"fixed `{name}.", fixed)
        stream = spark.readStream.schema(rows.schema).parquet(directory)
        streams[name] = stream.withColumn(f"fixed `{name}.", fixed)
    expected = batches["l"].alias("l").join(batches["r"].alias("r"), F.expr("l.k = r.k"))
    joined = multiway_join(streams, on=["k"], state=State(backend=BACKEND, buckets=2))
    kinds = zip(_kinds(joined.schema), _kinds(expected.schema), strict=True)
    changed = [(ours, theirs) for ours, theirs in kinds if ours != theirs]
    # Spark holds the parts of what comes out of a stateful operator for nullable.
    assert changed == [((nullable_parts(theirs[0]), False), theirs) for _, theirs in changed]
    assert len(changed) == 1
    got = _streamed(joined, tmp_path)
    assert got == _as_text(expected)
    assert len(got) > 20
    settings = json.loads((tmp_path / "checkpoint" / "lsmstate" / "query.json").read_text())
    assert "age int32 (interval year to month)" in settings["settings"]["columns of l"]


def test_every_key_type_joins_as_in_sparks_own_batch_join(spark: Any, tmp_path: Path) -> None:
    batches, streams = {}, {}
    for side, name in enumerate("lr"):
        directory = str(tmp_path / name)
        spark.sql(_key_rows(side)).repartition(2).write.parquet(directory)
        batches[name] = spark.read.parquet(directory)
        batches[name].createOrReplaceTempView(f"types_{name}")
        reader = spark.readStream.schema(batches[name].schema).option("maxFilesPerTrigger", 1)
        streams[name] = reader.parquet(directory)
    condition = " AND ".join(f"l.{name} = r.{name}" for name in ["kind", *KEYS])
    expected = spark.sql(f"SELECT * FROM types_l l JOIN types_r r ON {condition}")
    joined = multiway_join(streams, on=condition, state=State(backend=BACKEND, buckets=2))
    assert _kinds(joined.schema) == _kinds(expected.schema)
    got = _streamed(joined, tmp_path)
    assert got == _as_text(expected)
    assert len(got) > 20 * len(KEYS)
    settings = json.loads((tmp_path / "checkpoint" / "lsmstate" / "query.json").read_text())
    assert settings["settings"]["time zone of the keys"] == "Europe/Berlin", "dates are cast by it"
    keys = settings["settings"]["key types"]
    library = next(key for key in keys if key.startswith("binary, UTF8_LCASE "))
    assert re.fullmatch(r"binary, UTF8_LCASE [\d.]+", library)
    assert "int32 (interval year to month)" in keys


@pytest.mark.stress
def test_integers_that_meet_over_a_double_are_compared_as_in_sparks_own_batch_join(
    spark: Any, tmp_path: Path
) -> None:
    """2**53 and 2**53 + 1 are one double; the condition compares them with that alone."""
    rows = {"a": [2**53, 2**53 + 1], "b": [2.0**53, 1.5], "c": [2**53 + 1, 2**53 + 2]}
    condition = "a.k = b.k AND b.k = c.k"
    streams = {}
    for name, values in rows.items():
        kind = "k DOUBLE" if name == "b" else "k BIGINT"
        written = spark.createDataFrame([(value,) for value in values], kind)
        written.coalesce(1).write.parquet(str(tmp_path / name))
        written.createOrReplaceTempView(f"mixed_{name}")
        streams[name] = spark.readStream.schema(kind).parquet(str(tmp_path / name))
    with pytest.raises(InvalidArgumentError, match=r"a.k .* and c.k .* are compared as bigint"):
        multiway_join(streams, on=f"{condition} AND a.k = c.k")
    joined = multiway_join(streams, on=condition, state=State(backend=BACKEND, buckets=2))
    expected = spark.sql(f"SELECT * FROM mixed_a a JOIN mixed_b b JOIN mixed_c c ON {condition}")
    assert _streamed(joined, tmp_path) == _as_text(expected)
    assert expected.count() == 2


@pytest.fixture
def tables(spark: Any) -> Iterator[list[str]]:
    """Two tables of strings of declared lengths."""
    columns = {
        "chars_l": "a CHAR(5), v VARCHAR(4), c CHAR(3), s STRUCT<c: CHAR(2)>",
        "chars_r": "b CHAR(8), w CHAR(4), t STRING, u STRUCT<c: CHAR(2)>",
    }
    for name, declared in columns.items():
        spark.sql(f"CREATE TABLE {name} ({declared}) USING parquet")
        spark.sql(
            f"INSERT INTO {name} VALUES ('ab', 'abcd', 'x', struct('y')), (NULL, 'ab', 'x', NULL), "
            "('ab ', 'ab  ', 'x  ', struct('')), ('abcde', 'ab', 'x', struct('y ')), "
            "('', '', '', struct(NULL)), ('y', 'y', 'y', struct('y'))"
        )
    yield list(columns)
    for name in columns:
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.stress
@pytest.mark.parametrize("condition", ["l.a = r.b", "l.v = r.w", "l.c = r.t AND l.s = r.u"])
def test_char_columns_are_compared_as_in_sparks_own_batch_join(
    spark: Any, tmp_path: Path, tables: list[str], condition: str
) -> None:
    """A CHAR is padded to the length of a longer one, and not where it meets a plain string."""
    names = dict(zip("lr", tables, strict=True))
    both = " JOIN ".join(f"{table} {name}" for name, table in names.items())
    expected = spark.sql(f"SELECT * FROM {both} ON {condition}")
    streams = {name: spark.readStream.table(table) for name, table in names.items()}
    joined = multiway_join(streams, on=condition, state=State(backend=BACKEND, buckets=1))
    assert [f.metadata for f in joined.schema] == [f.metadata for f in expected.schema]
    got = _streamed(joined, tmp_path)
    assert got == _as_text(expected)
    assert got


@pytest.mark.stress
def test_char_and_varchar_as_types_of_their_own(
    spark: Any, tmp_path: Path, tables: list[str]
) -> None:
    setting = "spark.sql.preserveCharVarcharTypeInfo"
    spark.conf.set(setting, "true")
    try:
        streams = {name: spark.readStream.table(tables[0]) for name in "lr"}
        joined = multiway_join(streams, on=["a", "v", "s"], state=State(backend=BACKEND, buckets=1))
        kinds = [field.dataType for field in joined.schema][:4]
        char_part = T.StructType([T.StructField("c", T.CharType(2))])
        assert kinds == [T.CharType(5), T.VarcharType(4), T.CharType(3), char_part]
        rows = spark.table(tables[0])
        key = "l.a = r.a AND l.v = r.v AND l.s = r.s"
        expected = rows.alias("l").join(rows.alias("r"), F.expr(key))
        assert _kinds(joined.schema) == _kinds(expected.schema)
        assert _streamed(joined, tmp_path) == _as_text(expected)
    finally:
        spark.conf.unset(setting)
