"""Time streaming_sql takes to convert a query: TPC-H's Q3, Q5, Q9 and the paper's query.

    python -m bench.spark.sql_conversion [--rounds 7] [--warm-up 10]

The sources are small streams of files: a conversion reads no rows. The JVM compiles what it runs
often, so the first conversion of a session is shown by itself, and the others after conversions of
*other* queries (Q7, Q8, Q10 in turn). Prints a row per query, the median of its rounds: wall time,
CPU of this process and of the JVM, calls into the JVM, plans that Spark analyzed, and the wall time
of spark.sql alone, which is part of it.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from lsmstate.spark import State, streaming_sql
from lsmstate.spark_integration.demo.query import ALIASES
from lsmstate.spark_integration.session.local_session import start_session
from support.benchmark_tables import tpcds_streams, tpch_streams
from support.sql_answers import views
from support.tpcds_queries import PAPER
from support.tpch_queries import STREAMED

MEASURED = ("Q3", "Q5", "Q9")
WARMING = ("Q7", "Q8", "Q10")
HEADINGS = (
    *("query", "wall, ms", "CPU of Python, ms", "CPU of the JVM, ms", "calls", "analyses"),
    "`spark.sql` alone, wall, ms",
)
#: A rule of Spark's that each analysis applies once, in the table of its rules.
_ONCE = re.compile(r"CTESubstitution\s+\d+ / \d+\s+\d+ / (\d+)")


def main(rounds: int, warm_up: int) -> None:
    with tempfile.TemporaryDirectory(prefix="conversion-") as directory:
        home = Path(directory)
        tpch = tpch_streams(home / "tpch", 0.001)
        tpcds = tpcds_streams(home / "tpcds", 0.01, ALIASES.values())
        spark = start_session(home, 2)
        meter = Meter(spark)
        print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
        with views(spark, tpch):
            first = f"{WARMING[0]}, first of the session"
            print(_row(first, [meter.conversion(_tpch(WARMING[0]))], []), flush=True)
            for name in islice(cycle(WARMING), warm_up - 1):
                meter.conversion(_tpch(name))
            for name in MEASURED:
                print(_measured(meter, name, _tpch(name), rounds), flush=True)
        with views(spark, tpcds):
            print(_measured(meter, "the paper's", PAPER, rounds), flush=True)
        spark.stop()


def _tpch(name: str) -> str:
    return STREAMED[name].replace('"', "`")


def _measured(meter: "Meter", name: str, sql: str, rounds: int) -> str:
    taken = [meter.conversion(sql) for _ in range(rounds)]
    return _row(name, taken, [meter.reading(sql) for _ in range(rounds)])


def _row(name: str, taken: list[Mapping[str, float]], alone: list[float]) -> str:
    cells = [f"{statistics.median(one[kind] for one in taken):,.0f}" for kind in taken[0]]
    cells.append(f"{1000 * statistics.median(alone):.0f}" if alone else "")
    return f"| {name} | {' | '.join(cells)} |"


class Meter:
    """What is spent in this process and in its JVM."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._jvm = next(p for p in psutil.Process().children(recursive=True) if p.name() == "java")
        self._client = spark.sparkContext._gateway._gateway_client
        self._rules = spark._jvm.org.apache.spark.sql.catalyst.rules.RuleExecutor

    def conversion(self, sql: str) -> dict[str, float]:
        """Milliseconds and counts, in the order of the headings."""
        self._rules.resetMetrics()
        with self._counted() as calls:
            before = self._now()
            query = streaming_sql(
                self._spark, sql, strict=True, state=State(memory="16m", buckets=8)
            )
            spent = [1000 * (now - was) for now, was in zip(self._now(), before, strict=True)]
        assert query.is_converted
        analyses = _ONCE.search(self._rules.dumpTimeSpent())
        assert analyses is not None, "Spark has another table of its rules"
        kinds = ("wall", "python", "jvm", "calls", "analyses")
        return dict(zip(kinds, [*spent, len(calls), int(analyses[1])], strict=True))

    def reading(self, sql: str) -> float:
        """Seconds that Spark takes to read the query."""
        began = time.monotonic()
        assert self._spark.sql(sql).isStreaming
        return time.monotonic() - began

    def _now(self) -> tuple[float, float, float]:
        cpu = self._jvm.cpu_times()
        return time.monotonic(), time.process_time(), cpu.user + cpu.system

    @contextmanager
    def _counted(self) -> Iterator[list[str]]:
        """The calls that are made in the block, but for those of the garbage collector."""
        calls: list[str] = []
        send = self._client.send_command

        def counted(command: str, *rest: Any, **named: Any) -> Any:
            if not command.startswith("m\n"):
                calls.append(command[0])
            return send(command, *rest, **named)

        self._client.send_command = counted
        try:
            yield calls
        finally:
            self._client.send_command = send


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=10)
    arguments = parser.parse_args()
    main(arguments.rounds, arguments.warm_up)
