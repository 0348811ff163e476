"""Expressions of conditions over Arrow columns: the values and the errors of Spark."""

import math
import re
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.evaluate import evaluated, type_of
from lsmstate.joins.conditions.parser import parse_condition
from lsmstate.joins.conditions.predicate import text_of

NAN, INFINITE = float("nan"), float("inf")
COUNT = 6
COLUMNS = {
    "y": (pa.int8(), [1, -3, None, 7, 0, 100]),
    "i": (pa.int32(), [1, -1, None, 7, 0, 2**31 - 1]),
    "l": (pa.int64(), [2, -5, 3, None, 2**53 + 1, -(2**53) - 1]),
    "d": (pa.float64(), [1.5, NAN, -0.0, None, INFINITE, 2.0**53]),
    "f": (pa.float32(), [0.1, -2.5, None, NAN, 0.0, 16777216.0]),
    "m": (pa.decimal128(9, 2), [*map(Decimal, ("1.50", "-7.25", "0.00")), None, Decimal(3), None]),
    "q": (pa.decimal128(38, 10), [Decimal("1.5"), None, *map(Decimal, ("-2", "0.1", "7", "9"))]),
    "s": (pa.string(), ["a", "", None, "a%b_c", "é\U0001f600", "A\nb"]),
    "p": (pa.string(), ["a", "%", "x", "a\\%b\\_c", "é_", "_%"]),
    "w": (pa.string(), [" 12 ", "-5", None, "+7", "0", "9007199254740993"]),
    "x": (pa.string(), ["1.5", "-1e3", "NaN", "inf", None, ".5"]),
    "t": (pa.date32(), [date(2026, 1, 31), date(1969, 12, 31), None, *[date(2024, 2, 29)] * 3]),
    "u": (pa.string(), ["2026-01-31", "1969-12-31", "2026", None, "2024-2-29", "2024-03-01"]),
    "at": (
        pa.timestamp("us"),
        [datetime(2026, 1, 31, 23, 59, 59, 999_999), datetime(1969, 12, 31, 1), None]
        + [datetime(2024, 2, 29)] * 3,
    ),
    "o": (pa.bool_(), [True, False, None, True, False, None]),
    "n": (
        pa.struct([("id", pa.int64()), ("Of", pa.struct([("k", pa.string())]))]),
        [{"id": 5, "Of": {"k": "x"}}, None, {"id": None, "Of": None}, *[{"id": 1, "Of": {}}] * 3],
    ),
    "h": (pa.map_(pa.string(), pa.int64()), [[("k", 1), ("j", 2)], [], None, *[[("j", 3)]] * 3]),
    "g": (pa.list_(pa.int32()), [[1, 2], [3, None], None, [4, 5, 6], [0, 0], [9, 9]]),
    "js": (
        pa.string(),
        [
            *('{"id": 5, "of": {"k": [1, "b"]}}', "[1]", None, "no"),
            '{"id": "x", "n": [1.50, 1e10, -1e-7, 0.0, 1e3]}',
            '{"id": null, "n": {"z": "\u00e9\\n", "a": true}}',
        ],
    ),
}
ROWS = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
NAMES = {"a": ROWS.names}
BATCH = pa.RecordBatch.from_arrays([pa.array(v, k) for k, v in COLUMNS.values()], schema=ROWS)

VALUES = [
    *("a.y + a.l", "a.i - a.l", "a.y * 2", "a.i + a.d", "a.f + a.f", "a.f * a.i", "a.l * a.d"),
    *("a.i / 2", "a.f / a.l", "a.i / 7", "a.i % 3", "a.l % -3", "a.d % 2", "a.f % 2", "a.l div 2"),
    *("-a.y", "abs(a.l)", "abs(a.d)", "abs(a.m)", "-a.m", "-a.f", "abs(a.y)", "a.l % -1"),
    *(
        "a.m + a.i",
        "a.m * a.m",
        "a.m - 1.005",
        "a.m / 3",
        "a.m + 2BD",
        "a.m % 2",
        "a.m * a.d",
        "a.m div 2",
    ),
    *("a.q * a.q", "a.q / 7", "a.q + a.l", "a.q % 3", "a.m * 1.5", "a.i / 2.5", "a.y + 1.5"),
    *("1.5D * a.i", "a.i + 10L", "a.l + 1e3", "a.w + 1", "a.x + 1.5D", "a.i + 1.5F", "a.y + 1Y"),
    *("least(a.i, a.l)", "greatest(a.d, a.f)", "least(a.d, 1)", "greatest(a.s, 'b')"),
    *("greatest(a.m, a.i)", "least(a.t, DATE '2000-01-01')", "greatest(a.i, NULL, 3)"),
    *("coalesce(a.i, a.l, 5)", "coalesce(a.s, 'none')", "coalesce(a.m, 1)", "ifnull(a.i, 0)"),
    *("length(a.s)", "concat(a.s, '-', a.p)", "a.s || a.i", "concat(a.s)", "length('')"),
    *("datediff(a.t, DATE '2026-02-01')", "datediff(a.at, a.t)", "datediff(a.u, a.t)"),
    *("date_add(a.t, 30)", "date_add(a.at, a.y)", "date_sub(a.t, 1)", "a.t + 3", "a.t - 1"),
    *("date_add(a.u, 1)", "CASE WHEN a.i > 0 THEN a.i WHEN a.o THEN 2.5 ELSE a.l END"),
    *("CASE a.i WHEN 1 THEN 'one' WHEN 7 THEN 'seven' END", "if(a.o, a.i, a.l)"),
    *("CASE WHEN a.i <> 0 THEN 10 / a.i END", "if(a.i = 0, NULL, a.l % a.i)"),
    *("a.at + INTERVAL 1 HOUR", "a.at - INTERVAL '1 2:03:04.5' DAY TO SECOND"),
    *("a.n.id", "a.n.of.k", "a.h['k']", "a.h['j']", "a.g[1]", "a.g[0] + 1"),
    *("get_json_object(a.js, '$.id')", "get_json_object(a.js, '$.of.k[1]')"),
    *("get_json_object(a.js, '$.n')", "get_json_object(a.js, '$.n[1]')"),
    *("get_json_object(a.js, '$.of')", "get_json_object(a.js, '$')"),
]
CONDITIONS = [
    *("a.l < a.d", "a.l = 9007199254740992D", "a.i = 1.5", "a.i < 1.5", "a.f = 16777217"),
    *("a.f < 0.1", "a.f = 0.1", "a.m = 1.505", "a.m < a.i", "a.m >= a.d", "a.q = a.i", "a.m = a.q"),
    *("a.q < 9223372036854775808", "a.d <=> a.f", "a.i <=> NULL", "a.i <=> a.l", "a.o < TRUE"),
    *("a.w = a.l", "a.w > a.i", "a.x < a.d", "a.x = a.m", "a.w = 12", "a.u = a.t", "a.t < '2026'"),
    *("a.at > '2024-02-28 23:59:59.5'", "a.t = a.at", "a.at >= a.t", "a.o = 'true'", "a.o"),
    *("a.s LIKE a.p", "a.s LIKE 'a%'", "a.s NOT LIKE '%b_c'", "a.s LIKE 'a!%b%' ESCAPE '!'"),
    *("a.s LIKE '_'", "a.s LIKE '__'", "a.s LIKE 'a\\\\%b%'", "a.s LIKE '%\\nb'", "a.p LIKE a.s"),
    *("a.s = 'A\\nb'", "a.s IN ('a', '\\u00e9😀')", "a.s <> 'it''s'", "a.i NOT IN (1, NULL)"),
    *("a.i BETWEEN a.y AND a.l", "NOT a.i BETWEEN 0 AND 5", "a.o IS TRUE", "a.o IS NOT FALSE"),
    *("a.i IS DISTINCT FROM a.y", "a.i <> 0 AND 10 / a.i > 1", "a.i = 0 OR 10 % a.i = 3"),
    *("a.at - a.t > INTERVAL 5 HOURS", "a.t - DATE '2024-02-28' = INTERVAL 1 DAY"),
    *("NOT (a.i > 0 AND a.o)", "a.i > 0 OR a.o", "a.n.id = a.i", "a.h['j'] > a.g[0]"),
]
FAILURES = {
    "a.i + 1": "out of the range of int32",
    "a.l * 9223372036854775807": "out of the range of int64",
    "a.y * a.y": "out of the range of int8",
    "1 / a.i": "division by zero",
    "a.l % a.y": "division by zero",
    "a.m / a.y": "division by zero",
    "1.5 / a.f": "division by zero",
    "a.s = 1": "'a' is no int64",
    "a.w = DATE '2026-01-01'": "' 12 ' is no date32",
    "a.x = 5": "'1.5' is no int64",
    "a.g[2] = 5": "an array has no element 2",
    "a.g[-1] = 5": "an array has no element -1",
    "a.s LIKE 'a!b' ESCAPE '!'": "'!' must stand before _, % or itself in 'a!b'",
    "a.s LIKE 'a!' ESCAPE '!'": "'!' must not end 'a!'",
    "a.q * 999999999999999999999999999999999": "is out of the range of decimal128",
}


def ours(text: str) -> pa.Array:
    tree = parse_condition(text, NAMES)
    found = evaluated(tree, lambda column: BATCH[column.name], COUNT)
    assert found.type == type_of(tree, {"a": ROWS})
    assert len(found) == COUNT
    again = evaluated(parse_condition(text_of(tree), NAMES), lambda c: BATCH[c.name], COUNT)
    assert all(map(alike, again.to_pylist(), found.to_pylist()))
    return found


def alike(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return left == right and type(left) is type(right)


@pytest.mark.spark
def test_values_are_those_of_spark(spark: "object") -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql import functions as F

    table = pa.table({"r": pa.array(range(COUNT)), **dict(zip(ROWS.names, BATCH, strict=True))})
    flat = spark.createDataFrame(table)  # type: ignore[attr-defined]
    flat = flat.withColumn("at", F.col("at").cast("timestamp_ntz"))
    frame = flat.select("r", F.struct(*ROWS.names).alias("a")).orderBy("r").cache()
    texts = [*VALUES, *CONDITIONS]
    told = frame.select(*map(F.expr, texts)).collect()
    wrong = []
    for place, text in enumerate(texts):
        expected = [row[place] for row in told]
        try:
            found = ours(text).to_pylist()
        except InvalidArgumentError as error:
            found = [str(error)]
        if len(found) != COUNT or not all(map(alike, found, expected)):
            wrong.append((text, found, expected))
    assert not wrong, "\n".join(map(str, wrong))
    for text in FAILURES:
        with pytest.raises(Exception, match=r"\[[A-Z_.]+\]"):
            frame.select(F.expr(text)).collect()


@pytest.mark.parametrize(("text", "words"), FAILURES.items())
def test_what_fails_on_a_row_is_an_error_with_its_cause(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(words)):
        ours(text)
    # Not before there is a row.
    type_of(parse_condition(text, NAMES), {"a": ROWS})


def test_values() -> None:
    expected = {
        "a.l - a.i": [1, -4, None, None, 2**53 + 1, -(2**53) - 2**31],
        "least(a.i, a.y)": [1, -3, None, 7, 0, 100],
        "a.i / 2": [0.5, -0.5, None, 3.5, 0.0, (2**31 - 1) / 2],
        "a.m / 3": [*map(Decimal, ("0.500000", "-2.416667", "0.000000")), None, Decimal(1), None],
        "a.t - DATE '2024-02-28'": [
            *(timedelta(days=703), timedelta(days=-19782), None),
            *[timedelta(days=1)] * 3,
        ],
        "a.s LIKE a.p": [True, True, None, True, True, True],
        "a.n.of.k": ["x", None, None, None, None, None],
        "get_json_object(a.js, '$.of.k[1]')": ["b", None, None, None, None, None],
    }
    for text, values in expected.items():
        assert ours(text).to_pylist() == values, text
