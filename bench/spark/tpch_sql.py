"""Queries of TPC-H and TPC-DS as SQL over streams, checked against DuckDB: the paper's Table 3.

    python -m bench.spark.tpch_sql [--scale 0.01] [QUERY ...]      # Q3, DS17, paper; all by default

Prints a row of the table per query: the inputs of the groups of joins that were found, and of
those that the operator runs; its key classes, shares and copies per row (estimated from the sizes
of the files, before filters); how it runs; whether the answers after a middle and after the last
micro-batch are DuckDB's.
"""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from lsmstate.spark_integration.session.local_session import start_session
from support.benchmark_tables import tpcds_streams, tpch_streams
from support.sql_answers import (
    COMPARED,
    Answers,
    Streams,
    answers,
    differing_appended,
    differing_rows,
    expected,
    views,
)
from support.tpcds_queries import PAPER, TABLES, benchmark_text
from support.tpcds_queries import STAGED as DS_STAGED
from support.tpcds_queries import STREAMED as DS_STREAMED
from support.tpch_queries import STAGED, STREAMED

BUCKETS = 8
#: By name: mode and text. TPC-DS's texts come from DuckDB.
TPCH = {
    **{name: ("complete", sql) for name, sql in STREAMED.items()},
    **{name: ("staged", sql) for name, sql in STAGED.items()},
}
TPCDS = {
    **{f"DS{number}": ("complete", number) for number in DS_STREAMED},
    **{f"DS{number}": ("staged", number) for number in DS_STAGED},
    "paper": ("append", 0),
}
HEADINGS = ("query", "groups", "merged", "key classes", "shares", "copies per row", "mode", "equal")


def main(scale: float, names: list[str]) -> None:
    for name in names:
        if name not in TPCH and name not in TPCDS:
            sys.exit(f"there is no query {name}; there are {', '.join([*TPCH, *TPCDS])}")
    print(f"| {' | '.join(HEADINGS)} | s |\n|{'---|' * (len(HEADINGS) + 1)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tpch-") as directory:
        home = Path(directory)
        spark = start_session(home, 2)
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        tpch = [name for name in names if name in TPCH]
        if tpch:
            _rows(spark, tpch_streams(home / "tpch", scale), tpch, home)
        tpcds = [name for name in names if name in TPCDS]
        if tpcds:
            _rows(spark, tpcds_streams(home / "tpcds", scale, TABLES), tpcds, home)
        spark.stop()


def _rows(spark: Any, streams: Streams, names: list[str], home: Path) -> None:
    with views(spark, streams):
        for name in names:
            print(_row(spark, streams, name, home / name), flush=True)


def _row(spark: Any, streams: Streams, name: str, home: Path) -> str:
    if name in TPCH:
        mode, sql = TPCH[name]
    else:
        mode, number = TPCDS[name]
        sql = benchmark_text(number) if number else PAPER
    began = time.monotonic()
    found = answers(spark, sql, mode, home, memory="16m", buckets=BUCKETS)
    seconds = time.monotonic() - began
    cells = [
        name,
        " + ".join(map(str, found.groups)) or "none",
        " + ".join(map(str, found.merged)) or f"none: {found.note}",
        *_operator(found.explanation),
        mode,
        _equal(streams, sql, mode, found, home),
        f"{seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _operator(explanation: str) -> tuple[str, str, str]:
    """Key classes, shares and estimated copies as ``explain_join`` writes them."""

    def all_behind(pattern: str) -> str:
        found = re.findall(rf"^\s*{pattern}", explanation, re.MULTILINE)
        return " + ".join(map(_without_needless_qualifiers, found)) or "-"

    one_key = all_behind(r"one key: (.*)$")
    if one_key != "-":
        return one_key, "hash", "1.00"
    return (
        all_behind(r"keys: (.*)$"),
        all_behind(r"shares \(\w+\): (.*?);"),
        all_behind(r"estimated: (\S+) copies"),
    )


def _without_needless_qualifiers(keys: str) -> str:
    """``c_custkey`` for ``customer.c_custkey`` where there is one stream with such a column."""
    qualified = set(re.findall(r"(\w+)\.([a-z]\w*)", keys))
    columns = [column for _, column in qualified]
    for qualifier, column in qualified:
        if columns.count(column) == 1:
            keys = re.sub(rf"\b{qualifier}\.{column}\b", column, keys)
    return keys


def _equal(streams: Streams, sql: str, mode: str, found: Answers, home: Path) -> str:
    for number in COMPARED:
        if mode == "append":
            differing = differing_appended(streams, sql, home, number)
        else:
            differing = differing_rows(found.after[number], expected(streams, sql, number))
        if differing:
            return f"NO, after micro-batch {number}: {differing[0]}"
    return "yes" if mode == "append" else f"yes, {len(found.after[-1])} rows"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("queries", nargs="*", default=[*TPCH, *TPCDS])
    arguments = parser.parse_args()
    main(arguments.scale, arguments.queries)
