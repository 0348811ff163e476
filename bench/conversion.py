"""Time streaming_sql takes to convert a query: TPC-H's Q3, Q5, Q9 and the paper's query.

    python bench/conversion.py [--rounds 9]

The sources are small streams of files: a conversion reads no rows. Prints a row per query, the
median of some rounds after two that warm up: wall time, CPU of this process and of the JVM, and
beside it the wall time of spark.sql alone, which is part of it.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from benchmark_tables import tpcds_streams, tpch_streams
from sql_answers import views
from tpcds_queries import PAPER
from tpch_queries import STREAMED

from lsmstate.spark import streaming_sql
from spark_integration.demo.query import ALIASES
from spark_integration.local_session import start_session

WARM_UP = 2
HEADINGS = ("query", "wall, ms", "CPU of Python, ms", "CPU of the JVM, ms", "spark.sql alone, ms")


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="conversion-") as directory:
        home = Path(directory)
        tpch = tpch_streams(home / "tpch", 0.001)
        tpcds = tpcds_streams(home / "tpcds", 0.01, ALIASES.values())
        spark = start_session(home, 2)
        print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
        with views(spark, tpch):
            for name in ("Q3", "Q5", "Q9"):
                print(_row(spark, name, STREAMED[name].replace('"', "`"), rounds), flush=True)
        with views(spark, tpcds):
            print(_row(spark, "the paper's", PAPER, rounds), flush=True)
        spark.stop()


def _row(spark: Any, name: str, sql: str, rounds: int) -> str:
    def convert() -> None:
        assert streaming_sql(spark, sql, strict=True, memory="16m", buckets=8).is_converted

    jvm = next(p for p in psutil.Process().children(recursive=True) if p.name() == "java")
    taken = _medians(convert, jvm, rounds)
    alone = _medians(lambda: spark.sql(sql).isStreaming, jvm, rounds)
    cells = [*taken.values(), alone["wall"]]
    return f"| {name} | {' | '.join(f'{1000 * seconds:.0f}' for seconds in cells)} |"


def _medians(work: Callable[[], object], jvm: psutil.Process, rounds: int) -> Mapping[str, float]:
    """Seconds by kind, of a round."""
    found: dict[str, list[float]] = {"wall": [], "python": [], "jvm": []}
    for number in range(WARM_UP + rounds):
        before = _now(jvm)
        work()
        if number >= WARM_UP:
            for times, was, now in zip(found.values(), before, _now(jvm), strict=True):
                times.append(now - was)
    return {kind: statistics.median(times) for kind, times in found.items()}


def _now(jvm: psutil.Process) -> tuple[float, float, float]:
    cpu = jvm.cpu_times()
    return time.monotonic(), time.process_time(), cpu.user + cpu.system


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    main(parser.parse_args().rounds)
