"""The README's examples run as they stand and print what their comments say."""

import importlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.paths import ROOT
from support.spark_streams import FileStream

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
COMMENTED = re.compile(r"(?:print\(.*\)|^)\s+# (\d+.*|[\[{].*)$", re.MULTILINE)


def test_they_are_found() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("number", range(1, len(EXAMPLES)))
def test_example_without_spark(number: int, tmp_path: Path) -> None:
    code = EXAMPLES[number]
    expected = COMMENTED.findall(code)
    assert expected
    done = run(code, tmp_path)
    assert done.stdout.splitlines() == expected


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_example_on_spark(tmp_path: Path) -> None:
    """With files for its three streams, ended once they are read."""
    files = """
import datetime, decimal, os
import pyarrow as pa
import pyarrow.parquet as pq
day = datetime.date(2024, 2, 29)
for name, columns in {
    "orders": {"id": pa.array([1, 2, 3]), "day": pa.array([day] * 3)},
    "payments": {"order_id": pa.array([1, 1, 2]), "day": pa.array([day] * 3),
                 "amount": pa.array([decimal.Decimal(5)] * 3, pa.decimal128(9, 2))},
    "parcels": {"order_ref": pa.array([1, 3], pa.int32()), "weight": pa.array([0.5, 1.5])},
}.items():
    os.mkdir(name)
    pq.write_table(pa.table(columns), name + "/rows.parquet")
"""
    end = """
query.processAllAvailable()
query.stop()
print(sorted(map(tuple, spark.read.parquet("result").collect())))
"""
    done = run(files + EXAMPLES[0] + end, tmp_path)
    row = "(1, datetime.date(2024, 2, 29), Decimal('5.00'), 0.5)"
    assert done.stdout.splitlines()[-1] == f"[{row}, {row}]"


def snippet(start: str) -> str:
    """The indented lines of the README from those that begin with ``start`` on."""
    text = (ROOT / "README.md").read_text()
    (found,) = re.findall(rf"^    {re.escape(start)}.*\n(?:    .*\n)*", text, re.MULTILINE)
    return textwrap.dedent(found)


@pytest.fixture
def names(spark: Any, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the snippets name: streams, which are views too, and the functions."""
    tables = {
        "c": ("id INT, name STRING", {"id": [1, 2], "name": ["x", "y"]}),
        "o": ("id INT, c_id INT", {"id": [10, 20], "c_id": [1, 2]}),
        "l": ("o_id INT, price INT", {"o_id": [10, 10, 20], "price": [3, 4, 9]}),
        "ads": ("id INT, seen TIMESTAMP", {}),
        "sales": ("ad INT, at TIMESTAMP", {}),
    }
    found: dict[str, Any] = {"spark": spark}
    for name, (schema, columns) in tables.items():
        rows = pa.table(
            {k: pa.array(v, "i4" if k != "name" else "str") for k, v in columns.items()}
        )
        stream = FileStream(tmp_path / name, schema).add(*([rows] if columns else []))
        found[name] = stream.read(spark)
        found[name].createOrReplaceTempView(name)
    for function in ("multiway_join", "streaming_sql", "to_multiway"):
        found[function] = getattr(importlib.import_module("lsmstate.spark"), function)
    yield found
    for query in spark.streams.active:
        query.stop()
    for name in tables:
        spark.catalog.dropTempView(name)


@pytest.mark.spark
@pytest.mark.usefixtures("few_partitions")
def test_snippets_of_sql_and_time(
    spark: Any, names: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exec(snippet("query = streaming_sql("), names)
    exec(snippet("dear = streaming_sql(").replace('"dir"', repr(str(tmp_path / "dir"))), names)
    for query in spark.streams.active:
        query.processAllAvailable()
    assert sorted(map(tuple, spark.table("totals").collect())) == [("x", 7), ("y", 9)]
    assert names["unique"].is_converted
    assert "|  20|    9|" in capfd.readouterr().out
    exec(snippet("ads, sales = "), names)
    assert names["joined"].columns == ["id", "seen", "ad", "at", "sold"]


def run(code: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done
