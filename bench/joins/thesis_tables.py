"""The thesis on theta joins in micro-batches: what its trees store and send, counted and timed.

    python -m bench.joins.thesis_tables [--scale 0.1] [--small 0.01] [--out bench/joins/figures]

- Table 4.3: rows of the relations and of the intermediate results of Q3 and Q5, which our tree
  stores (``algorithm="tree"``), and what a join without intermediate results stores.
- Figure 4.8: rows that a broadcast of them sends to 8 nodes, by equation 4.3.
- Q2, Q3 and Q5 as they are and with inequalities, by a tree and without one, beside DuckDB.
- The equi-joins by nested loops, as the thesis has them, at a smaller scale.

The thesis's times (figures 4.7 and 4.9) are of a cluster of 8 nodes and are not repeated.
"""

import argparse
import os
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from bench.baselines.nested_loops import NestedLoops
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.specs.theta_tree import ThetaTree

#: By query its streams in the order they are joined, with their columns.
STREAMS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "Q2": {
        "part": ["p_partkey", "p_size"],
        "partsupp": ["ps_partkey", "ps_suppkey", "ps_availqty"],
        "supplier": ["s_suppkey", "s_nationkey"],
        "nation": ["n_nationkey", "n_regionkey"],
        "region": ["r_regionkey"],
    },
    "Q3": {
        "customer": ["c_custkey"],
        "orders": ["o_orderkey", "o_custkey", "o_orderdate"],
        "lineitem": ["l_orderkey", "l_suppkey", "l_shipdate"],
    },
    "Q5": {
        "customer": ["c_custkey"],
        "orders": ["o_orderkey", "o_custkey", "o_orderdate"],
        "lineitem": ["l_orderkey", "l_suppkey", "l_shipdate"],
        "supplier": ["s_suppkey", "s_nationkey"],
    },
}
EQUALITIES: Final = {
    "Q2": "part.p_partkey = partsupp.ps_partkey AND partsupp.ps_suppkey = supplier.s_suppkey AND "
    "supplier.s_nationkey = nation.n_nationkey AND nation.n_regionkey = region.r_regionkey",
    "Q3": "customer.c_custkey = orders.o_custkey AND orders.o_orderkey = lineitem.l_orderkey",
    "Q5": "customer.c_custkey = orders.o_custkey AND orders.o_orderkey = lineitem.l_orderkey AND "
    "lineitem.l_suppkey = supplier.s_suppkey",
}
#: The same with inequalities: beside the keys, and in place of one.
INEQUALITIES: Final = {
    "Q2": EQUALITIES["Q2"] + " AND partsupp.ps_availqty < 100 * part.p_size",
    "Q3": EQUALITIES["Q3"] + " AND lineitem.l_shipdate BETWEEN orders.o_orderdate + INTERVAL 2 "
    "DAYS AND orders.o_orderdate + INTERVAL 30 DAYS",
    "Q5": "customer.c_custkey = orders.o_custkey AND orders.o_orderkey = lineitem.l_orderkey AND "
    "abs(lineitem.l_suppkey - supplier.s_suppkey) <= 1 AND supplier.s_nationkey < 5",
}
#: Table 4.3: rows of relations, and of intermediate results.
TABLE_4_3: Final = {"Q3": (765_572, 150_000), "Q5": (766_572, 750_572)}
NODES: Final = 8
BATCHES: Final = 10

Tables = Mapping[str, pa.Table]


def tables_of(scale: float, home: Path) -> dict[str, pa.Table]:
    """The columns of all queries, made by tpchgen-cli."""
    generator = os.path.join(sysconfig.get_path("scripts"), "tpchgen-cli")
    arguments = ["parquet", "--scale-factor", str(scale), "--output-dir", str(home)]
    subprocess.run([generator, *arguments], check=True, capture_output=True)
    wanted = {name: of for streams in STREAMS.values() for name, of in streams.items()}
    with duckdb.connect() as db:
        return {
            name: db.execute(
                f"SELECT {', '.join(map(_typed, columns))} FROM '{home}/{name}.parquet'"
            ).to_arrow_table()
            for name, columns in wanted.items()
        }


def _typed(column: str) -> str:
    is_date = column.endswith("date")
    return column if is_date else f"{column}::BIGINT AS {column}"


def stored_rows(join: MultiwayJoin) -> dict[str, int]:
    """Rows that a join stores of each stream, and of each intermediate result."""
    joined = join._join
    owners: Mapping[str, str] = {}
    tree = getattr(joined, "_tree", None)
    if isinstance(tree, ThetaTree):
        owners = tree.owners
    elif tree is None:
        owners = getattr(getattr(joined, "_spec", None), "owners", {})
    found: dict[str, int] = {}
    for name in join._store.streams:
        owner = owners.get(name, name)
        if owner not in found and (not owners or name in owners):
            found[owner] = sum(piece.num_rows for piece in join._store.scan(name))
    return found


def run(query: str, on: str, tables: Tables, **options: Any) -> tuple[int, dict[str, int], float]:
    """Results, rows stored of each stream and intermediate result, and CPU seconds."""
    streams = {name: tables[name] for name in STREAMS[query]}
    start, results = time.process_time(), 0
    schemas = {name: table.schema for name, table in streams.items()}
    with MultiwayJoin(schemas, on, state=State(memory="256m"), **options) as join:
        for number in range(BATCHES):
            for name, table in streams.items():
                first, last = (table.num_rows * n // BATCHES for n in (number, number + 1))
                for batch in table.slice(first, last - first).combine_chunks().to_batches():
                    results += join.process(name, batch).count()
        seconds = time.process_time() - start
        return results, stored_rows(join), seconds


def duck(query: str, on: str, tables: Tables) -> int:
    """DuckDB's number of results."""
    with duckdb.connect() as db:
        for name in STREAMS[query]:
            db.register(name, tables[name])
        found = db.execute(f"SELECT count(*) FROM {', '.join(STREAMS[query])} WHERE {on}")
        return int(found.fetchall()[0][0])


def nested_loops(query: str, tables: Tables) -> tuple[NestedLoops, int, float]:
    """The thesis's join of the equalities, its results, and CPU seconds."""
    streams = {name: tables[name] for name in STREAMS[query]}
    before: list[str] = []
    conditions = []
    pairs = [each.split(" = ") for each in EQUALITIES[query].split(" AND ")]
    keys = [[side.split(".")[1] for side in pair] for pair in pairs]
    for level, columns in enumerate(STREAMS[query].values()):
        if level:
            one, other = keys[level - 1]
            left, right = before.index(one), list(columns).index(other)
            conditions.append(lambda a, b, at=left, its=right: a[at] == b[its])
        before += columns
    loops = NestedLoops({n: len(c) for n, c in STREAMS[query].items()}, conditions, NODES)
    arriving = {
        name: list(
            zip(
                *(table.column(c).cast(pa.int64()).to_pylist() for c in table.column_names),
                strict=True,
            )
        )
        for name, table in _as_numbers(streams).items()
    }
    start, results = time.process_time(), 0
    for number in range(BATCHES):
        part = {
            name: of[len(of) * number // BATCHES : len(of) * (number + 1) // BATCHES]
            for name, of in arriving.items()
        }
        results += len(loops.micro_batch(part))
    return loops, results, time.process_time() - start


def _as_numbers(streams: Tables) -> dict[str, pa.Table]:
    found = {}
    for name, table in streams.items():
        columns = [
            column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
            for column in table.columns
        ]
        found[name] = pa.table(columns, names=table.column_names)
    return found


def print_storage(tables: Tables, scale: float) -> dict[str, dict[str, int]]:
    """Table 4.3, and what equation 4.3 makes of it."""
    print(f"\n### Table 4.3: rows stored, scale {scale:g}\n")
    print("| query | relations | thesis | intermediate results | thesis | without them | results |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for query in ("Q3", "Q5"):
        results, stored, _ = run(query, EQUALITIES[query], tables, algorithm="tree")
        found[query] = stored
        relations = sum(stored[name] for name in STREAMS[query])
        intermediates = sum(stored.values()) - relations
        flat = sum(run(query, EQUALITIES[query], tables)[1].values())
        thesis = TABLE_4_3[query] if scale == 0.1 else ("", "")
        print(
            f"| {query} | {relations:,} | {_shown(thesis[0])} | {intermediates:,} "
            f"| {_shown(thesis[1])} | {flat:,} | {results:,} |"
        )
    print(f"\n### Figure 4.8: rows sent by a broadcast to {NODES} nodes\n")
    print("| query | left inputs alone | both inputs |\n|---|---|---|")
    for query, stored in found.items():
        first, *_, last = STREAMS[query]
        left = stored[first] + sum(n for name, n in stored.items() if name.startswith("("))
        both = sum(stored.values())
        print(f"| {query} | {left * (NODES + 1):,} | {both * (NODES + 1):,} |")
        assert last in stored
    return found


def _shown(count: int | str) -> str:
    return f"{count:,}" if isinstance(count, int) else count


def print_shapes(tables: Tables, scale: float) -> None:
    """Each query by a tree and without, with equalities alone and with inequalities."""
    print(f"\n### Q2, Q3 and Q5, scale {scale:g}, {BATCHES} micro-batches\n")
    print("| query | results (DuckDB's too) | tree, CPU s | intermediate rows | without, CPU s |")
    print("|---|---|---|---|---|")
    for kind, conditions in (("", EQUALITIES), (" with inequalities", INEQUALITIES)):
        for query, on in conditions.items():
            results, stored, seconds = run(query, on, tables, algorithm="tree")
            flat, _, without = run(query, on, tables)
            assert results == flat == duck(query, on, tables), query
            rows = sum(count for name, count in stored.items() if name.startswith("("))
            print(f"| {query}{kind} | {results:,} | {seconds:.1f} | {rows:,} | {without:.1f} |")


def print_nested_loops(tables: Tables, scale: float) -> None:
    """The equi-joins by nested loops beside ours."""
    print(f"\n### Equi-joins by nested loops, scale {scale:g}\n")
    print("| query | pairs compared | CPU s | ours: candidates | CPU s | ratio of CPU |")
    print("|---|---|---|---|---|---|")
    for query in ("Q3", "Q5"):
        loops, results, seconds = nested_loops(query, tables)
        ours, stored, mine = run(query, EQUALITIES[query], tables, algorithm="tree")
        assert ours == results
        assert stored == loops.stored
        sent = sum(loops.stored.values()) * (NODES + 1)
        assert loops.messages == sent, "equation 4.3, of both inputs"
        found = sum(count for name, count in stored.items() if name.startswith("(")) + ours
        print(
            f"| {query} | {loops.pairs:,} | {seconds:.1f} | {found:,} | {mine:.2f} "
            f"| {seconds / mine:.0f} |"
        )


def main() -> None:
    """Print tables of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--small", type=float, default=0.01, help="of the nested loops")
    parser.add_argument("--shapes", type=float, default=0.02, help="of the inequalities")
    asked = parser.parse_args()
    made: dict[float, dict[str, pa.Table]] = {}
    for scale in {asked.scale, asked.small, asked.shapes}:
        with tempfile.TemporaryDirectory() as home:
            made[scale] = tables_of(scale, Path(home))
    print_storage(made[asked.scale], asked.scale)
    print_shapes(made[asked.shapes], asked.shapes)
    print_nested_loops(made[asked.small], asked.small)


if __name__ == "__main__":
    main()
