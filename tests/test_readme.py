"""The README's examples run as they stand and print what their comments say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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
