"""The joins of TPC-H Q3, Q5 and Q9 as streams at scale 0.01: a chain, a cycle, and a star with two
keys; after the last micro-batch the result is DuckDB's. ``-s`` shows what each cost."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import Skew, State, explain_join, multiway_join
from support.benchmark_tables import tpch_streams
from support.spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    committed,
    metric,
    run_to_end,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

#: Columns of each table that the queries use.
COLUMNS = {
    "customer": "c_custkey, c_nationkey, c_mktsegment",
    "orders": "o_orderkey, o_custkey, o_orderdate, o_shippriority",
    "lineitem": "l_orderkey, l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, "
    "l_discount, l_shipdate",
    "supplier": "s_suppkey, s_nationkey",
    "part": "p_partkey, p_name",
    "partsupp": "ps_partkey, ps_suppkey, ps_supplycost",
    "nation": "n_nationkey, n_name, n_regionkey",
    "region": "r_regionkey, r_name",
}


@dataclass(frozen=True)
class Query:
    """A query's join: what is read of each table, and the equalities."""

    filters: dict[str, str]
    """Per table the predicate of its own that the query has."""
    on: str
    buckets: int
    least_rows: int
    most_copies_per_row: float


QUERIES = {
    "Q3": Query(
        {
            "customer": "c_mktsegment = 'BUILDING'",
            "orders": "o_orderdate < DATE '1995-03-15'",
            "lineitem": "l_shipdate > DATE '1995-03-15'",
        },
        "customer.c_custkey = orders.o_custkey AND lineitem.l_orderkey = orders.o_orderkey",
        buckets=4,
        least_rows=200,
        most_copies_per_row=1.5,
    ),
    "Q5": Query(
        {
            "customer": "true",
            "orders": "o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'",
            "lineitem": "true",
            "supplier": "true",
            "nation": "true",
            "region": "r_name = 'ASIA'",
        },
        "customer.c_custkey = orders.o_custkey AND lineitem.l_orderkey = orders.o_orderkey "
        "AND lineitem.l_suppkey = supplier.s_suppkey "
        "AND customer.c_nationkey = supplier.s_nationkey "
        "AND supplier.s_nationkey = nation.n_nationkey "
        "AND nation.n_regionkey = region.r_regionkey",
        buckets=8,
        least_rows=50,
        most_copies_per_row=1.5,
    ),
    "Q9": Query(
        {
            "part": "p_name LIKE '%green%'",
            "supplier": "true",
            "lineitem": "true",
            "partsupp": "true",
            "orders": "true",
            "nation": "true",
        },
        "supplier.s_suppkey = lineitem.l_suppkey AND partsupp.ps_suppkey = lineitem.l_suppkey "
        "AND partsupp.ps_partkey = lineitem.l_partkey AND part.p_partkey = lineitem.l_partkey "
        "AND orders.o_orderkey = lineitem.l_orderkey "
        "AND supplier.s_nationkey = nation.n_nationkey",
        buckets=8,
        least_rows=1000,
        most_copies_per_row=2.0,
    ),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileStream]:
    """TPC-H at scale 0.01, each table shuffled and cut into the files of its micro-batches."""
    return tpch_streams(tmp_path_factory.mktemp("tpch"), 0.01, columns=COLUMNS)


def check(spark: Any, tables: dict[str, FileStream], name: str, home: Path) -> None:
    query = QUERIES[name]
    frames = {t: tables[t].read(spark).where(where) for t, where in query.filters.items()}
    with duckdb.connect() as db:
        counts = {
            t: int(
                db.execute(f"SELECT count(*) FROM {tables[t].sql} WHERE {where}").fetchall()[0][0]
            )
            for t, where in query.filters.items()
        }
    joined = multiway_join(
        frames,
        query.on,
        skew=Skew(rows=counts),
        state=State(backend=BACKEND, memory="16m", buckets=query.buckets),
    )
    before, start = _cpu_seconds(), time.monotonic()
    run = run_to_end(joined, home / "checkpoint", home / "out")
    wall, cpu = time.monotonic() - start, _cpu_seconds() - before
    sources = ", ".join(
        f"(SELECT * FROM {tables[t].sql} WHERE {where}) {t}" for t, where in query.filters.items()
    )
    expected = f"SELECT * FROM {sources} WHERE {query.on}"
    rows = assert_same_rows(expected, committed(home / "out"), at_least=query.least_rows)
    rows_in = sum(counts.values())
    copies = sum(metric(run, "rows_in")) / rows_in
    assert 1 <= copies <= query.most_copies_per_row
    print(f"\n{name}: {rows_in} rows in, {copies:.2f} copies of each, {rows} rows out")
    print(f"{wall:.1f} s, {cpu:.1f} s of CPU\n{explain_join(joined)}")


def _cpu_seconds() -> float:
    """Of this process, Spark's and all its workers, those that have ended too."""
    own = psutil.Process()
    return sum(sum(p.cpu_times()[:4]) for p in [own, *own.children(recursive=True)])


@pytest.mark.stress
def test_q3_a_chain(spark: Any, tables: dict[str, FileStream], tmp_path: Path) -> None:
    check(spark, tables, "Q3", tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize("name", ["Q5", "Q9"])
def test_a_cycle_and_two_keys_between_two_tables(
    spark: Any, tables: dict[str, FileStream], tmp_path: Path, name: str
) -> None:
    check(spark, tables, name, tmp_path)
