"""Conditions beside the keys, evaluated here, against DuckDB and Spark: nulls, NaN, -0.0."""

import random
from datetime import date
from decimal import Decimal
from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.pair_condition import PairCondition
from support.condition_cases import SIGNS, random_condition

NAN, INFINITE = float("nan"), float("inf")
FLOATS = [None, NAN, 0.0, -0.0, 1.5, -2.0, INFINITE, -INFINITE, 0.1]
#: By column its type, some values, and constants of it.
COLUMNS = {
    "i": (pa.int32(), [None, -1, 0, 1, 2, 2**31 - 1], ["1", "-1", "2147483648"]),
    "l": (pa.int64(), [None, -1, 1, 2, 2**63 - 1, -(2**63)], ["2", "9223372036854775807"]),
    "d": (pa.float64(), FLOATS, ["0", "0.1", "-2", "1.5", "0.00000001"]),
    "f": (pa.float32(), FLOATS, ["0", "1.5"]),
    "s": (pa.string(), [None, "", "a", "b", "ab", "é", "\U0001f600"], ["'a'", "''", "'é'"]),
    "m": (
        pa.decimal128(9, 2),
        [None, *map(Decimal, ("0", "1.50", "-7.25"))],
        ["1.5", "0", "-7.25"],
    ),
    "t": (pa.date32(), [None, date(2026, 1, 31), date(1969, 12, 31)], ["DATE '2026-01-31'"]),
    "o": (pa.bool_(), [None, True, False], ["TRUE", "FALSE"]),
    "z": (pa.binary(), [None, b"", b"a", b"\xff"], []),
}
ALIKE = ["il", "df", "s", "m", "t", "o", "z"]
#: Of a constant that is a date all that Spark reads, and which one it is.
DATES = {
    "2026-01-31": date(2026, 1, 31),
    " 2026-1-9 ": date(2026, 1, 9),
    "2026-02": date(2026, 2, 1),
    "+2026": date(2026, 1, 1),
    "2026-1-31T": date(2026, 1, 31),
    "2026-01-31 23:59:59+05 or so": date(2026, 1, 31),
    "0001-01-01": date(1, 1, 1),
}
#: What Spark does not take for one, but for years with a sign or of more than four digits.
NO_DATES = ["2026-02-31", "20260131", "2026-W05-6", "26-01-31", "2026-001-31", "2026-01-31x", ""]
NO_DATES += ["2026-01T", "2026-01-", "2026/01/31", "\u0662026-01-31", "-2026-01-31", "12026-01-31"]
STREAMS = {n: pa.schema([(c, kind) for c, (kind, *_) in COLUMNS.items()]) for n in "ab"}
NAMES = {name: schema.names for name, schema in STREAMS.items()}


def rows(seed: int) -> dict[str, pa.RecordBatch]:
    rng = random.Random(seed)
    return {
        name: pa.RecordBatch.from_arrays(
            [pa.array(rng.choices(values, k=60), kind) for kind, values, _ in COLUMNS.values()],
            schema=schema,
        )
        for name, schema in STREAMS.items()
    }


def conditions(seed: int) -> list[str]:
    """Each pair of columns of kinds that are compared, and each with constants."""
    rng = random.Random(seed)
    found = [
        random_condition(rng, [f"{n}.{c}" for n in "ab" for c in "il"], ["a.s", "b.s"], 3)
        for _ in range(20)
    ]
    for group in ALIKE:
        signs = SIGNS
        for left in group:
            other = rng.choice(group)
            found += [f"a.{left} {sign} b.{other}" for sign in signs]
            found += [f"a.{left} {rng.choice(signs)} {c}" for c in COLUMNS[left][2]]
            found.append(f"NOT (b.{left} {rng.choice(signs)} a.{other} OR a.{left} IS NULL)")
    return found


def evaluated(text: str, batches: dict[str, pa.RecordBatch]) -> list[int]:
    condition = PairCondition.of(text, NAMES)
    condition.check(STREAMS)
    assert str(PairCondition.of(str(condition), NAMES)) == str(condition)
    found = condition.holds(lambda column: batches[column.stream][column.name])
    return np.flatnonzero(found).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_conditions_say_what_duckdb_says(seed: int) -> None:
    batches = rows(seed)
    with duckdb.connect(config={"threads": 1}) as db:
        structs = {name: batch.to_struct_array() for name, batch in batches.items()}
        db.register("pairs", pa.table({"n": pa.array(range(60)), **structs}))
        for text in conditions(seed):
            told = db.execute(f"SELECT n, {text} FROM pairs ORDER BY n").fetchall()
            assert evaluated(text, batches) == [n for n, is_true in told if is_true], text


def test_dates_are_read_as_spark_reads_them() -> None:
    for text, expected in DATES.items():
        found = PairCondition.of(f"a.t < DATE '{text}'", NAMES)
        assert str(found) == f"a.t < DATE '{expected.isoformat()}'", text


@pytest.mark.parametrize("seed", range(2))
def test_without_a_row_of_a_stream_it_needs_a_condition_is_never_true(seed: int) -> None:
    batches = rows(seed)
    for text in conditions(seed):
        for name in PairCondition.of(text, NAMES).needed:
            of = STREAMS[name]
            nulls = pa.RecordBatch.from_arrays([pa.nulls(60, t) for t in of.types], schema=of)
            assert evaluated(text, {**batches, name: nulls}) == [], text
    needed = {
        "a.i = 1 AND b.i IS NULL": {"a"},
        "NOT (a.i < b.i OR a.i IS NULL)": {"a", "b"},
        "NOT (a.i < b.i AND a.i IS NULL)": {"a"},
        "a.i IN (1, 2) OR b.i > 1 AND a.i < 5": {"a"},
    }
    assert {text: PairCondition.of(text, NAMES).needed for text in needed} == needed


@pytest.mark.spark
def test_conditions_say_what_spark_says(spark: "object") -> None:
    pytest.importorskip("pyspark")
    from pyspark.errors import ParseException
    from pyspark.sql import functions as F

    batches = rows(9)
    columns = {f"{name}_{c}": batches[name][c] for name, names in NAMES.items() for c in names}
    flat = spark.createDataFrame(pa.table({"n": pa.array(range(60)), **columns}))  # type: ignore[attr-defined]
    sides = [F.struct(*(F.col(f"{n}_{c}").alias(c) for c in COLUMNS)).alias(n) for n in "ab"]
    texts = [*conditions(9), "a.f < 0.1", "0.1 <= b.f"]  # which DuckDB compares as floats
    texts += [f"a.t <= DATE '{text}'" for text in DATES]
    told = flat.select("n", *sides).select("n", *map(F.expr, texts)).orderBy("n").collect()
    for place, text in enumerate(texts, 1):
        assert evaluated(text, batches) == [row[0] for row in told if row[place]], text
    for text in NO_DATES:
        if text not in ("-2026-01-31", "12026-01-31"):
            with pytest.raises(ParseException):
                spark.sql(f"SELECT DATE '{text}'")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.s < b.z", r"a\.s < b\.z: values of string and binary are not compared here"),
        ("a.t < b.i", r"a\.t < b\.i: values of date32\[day\] and int32 are not compared here"),
        ("a.o = a.i", "values of bool and int32 are not compared here"),
        ("1 = 1", "names no column"),
        ("5 IS NULL", "names no column"),
        ("a.i = 1 AND a.o + 1 = 2", r"a\.o \+ 1: bool \+ int32 is not computed here"),
        ("a.i + 1", "is int32, and no condition"),
        ("a.i + 1 AND a.o", r"a\.i \+ 1 is int32, and no condition"),
        ("upper(a.s) = b.s", "the function upper is not known here; supported are .*, least and"),
        ("a.o AND ends(b.s, 'x')", "the function ends is not known here"),
        ("a.i = (SELECT 1)", "SUBQUERY is not known here"),
        ("a.s.x = 1", "string has no fields"),
        ("a.s['x'] = 1", "string has no elements"),
        ("a.s LIKE b.i", "LIKE takes text, not int32"),
        ("a.i < b.i AND", "syntax error at 'AND', line 1, column 11"),
        *((f"a.t < DATE '{text}'", "a date such as '2026-01-31' expected") for text in NO_DATES),
        ("a.x < 5", "no column 'x' in stream 'a'"),
        ("c.i < 5", "no stream 'c'"),
    ],
)
def test_what_is_not_compared_here_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        PairCondition.of(text, NAMES).check(STREAMS)


def test_columns_that_spark_would_pad_are_refused() -> None:
    """A table's CHAR column is a string whose metadata says so; Spark pads what it is compared
    with. One of VARCHAR is a string like others."""
    pytest.importorskip("pyspark")
    from pyspark.sql import types as T

    from lsmstate.spark_integration.joins.residual_filter import check_evaluated_here

    def streams(kind: str) -> dict[str, SimpleNamespace]:
        field = T.StructField("s", T.StringType(), True, {"__CHAR_VARCHAR_TYPE_STRING": kind})
        session = SimpleNamespace(conf={"spark.sql.ansi.enabled": "true"})
        return {"a": SimpleNamespace(schema=T.StructType([field]), sparkSession=session)}

    conditions = [PairCondition.of("a.s = 'ab'", NAMES)]
    check_evaluated_here(conditions, streams("varchar(5)"))  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgumentError, match=r"a\.s is char\(5\), which only Spark can compare"
    ):
        check_evaluated_here(conditions, streams("char(5)"))  # type: ignore[arg-type]
