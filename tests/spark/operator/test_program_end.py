"""A program that ends after its query prints no stack trace, however it ends. Slow, so it runs in
``make stress``; tests/project/test_demo.py looks at one program always."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.stress]

PROGRAM = """
import os, signal, sys
from pyspark.sql import SparkSession
from lsmstate.spark import MetricsListener, configure, multiway_join

how, home = sys.argv[1:]
spark = configure(SparkSession.builder.master("local[1]")).getOrCreate()
seen = []
spark.streams.addListener(MetricsListener(seen.append))


def stream(name, values):
    table = spark.sql(f"SELECT * FROM VALUES {values}")
    table.write.parquet(f"{home}/{name}")
    return spark.readStream.schema(table.schema).parquet(f"{home}/{name}")


joined = multiway_join(
    {"a": stream("a", "(1, 'x'), (2, 'y') AS t(id, x)"), "b": stream("b", "(1), (2) AS t(ad)")},
    on="a.id = b.ad",
)
writer = joined.writeStream.format("memory").queryName("found")
writer = writer.option("checkpointLocation", f"{home}/checkpoint")
query = (writer.trigger(availableNow=True) if how == "end" else writer).start()
query.awaitTermination() if how == "end" else query.processAllAvailable()
print("rows", spark.table("found").count(), flush=True)
if how == "stop":
    query.stop()
if how == "stop the session":
    spark.stop()
if how == "fail":
    sys.exit(3)
if how == "interrupted":
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("end", 0),
        ("go on", 0),
        ("stop", 0),
        ("stop the session", 0),
        ("fail", 3),
        ("interrupted", 0),
    ],
)
def test_the_end_of_a_program_prints_no_stack_trace(tmp_path: Path, how: str, status: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(program), how, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.stdout.strip() == "rows 2"
    assert run.returncode == status
    for word in ("Exception", "Traceback", "ERROR", "\tat "):
        assert word not in run.stderr
