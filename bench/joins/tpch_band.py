"""The band query of the BiStream paper on TPC-H, beside DuckDB: 20 batches of each of two sides.

Run: ``python -m bench.joins.tpch_band [--scale 1] [--rounds 3]``

- Both sides are rows of ``lineitem``, and orders next to each other match. One side goes by truck,
  with a quantity above 48; the other is delivered without instructions.
- Each batch is joined with all that came before it on the other side, and stored.
- Figures are CPU seconds of all batches, as a median. Ours has a cap of 64 MB. DuckDB has one
  thread, and its tables in memory.
"""

import argparse
import os
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa

from lsmstate.join import MultiwayJoin

BATCHES = 20
COLUMNS = (
    "l_orderkey AS k, l_linenumber::INT AS n, l_partkey AS p, l_quantity::DOUBLE AS q, "
    "l_extendedprice::DOUBLE AS e"
)
SIDES = {
    "a": "l_shipmode = 'TRUCK' AND l_quantity > 48",
    "b": "l_shipinstruct = 'NONE'",
}
Batches = dict[str, list[pa.RecordBatch]]


def made(scale: float) -> Batches:
    """The rows of both sides in a random order, in batches."""
    generator = os.path.join(sysconfig.get_path("scripts"), "tpchgen-cli")
    rng = np.random.default_rng(5)
    found: Batches = {}
    with tempfile.TemporaryDirectory() as directory, duckdb.connect() as db:
        arguments = ["parquet", "--scale-factor", str(scale), "--tables", "lineitem"]
        subprocess.run([generator, *arguments, "--output-dir", directory], check=True)
        for name, condition in SIDES.items():
            query = f"SELECT {COLUMNS} FROM '{directory}/lineitem.parquet' WHERE {condition}"
            rows = db.execute(query).to_arrow_table()
            rows = rows.take(pa.array(rng.permutation(rows.num_rows))).combine_chunks()
            ends = [rows.num_rows * at // BATCHES for at in range(BATCHES + 1)]
            whole = rows.to_batches()[0]
            found[name] = [whole.slice(start, end - start) for start, end in pairwise(ends)]
    return found


def ours(batches: Batches) -> tuple[float, int]:
    """CPU seconds, and how many results there are."""
    schemas = {name: parts[0].schema for name, parts in batches.items()}
    with MultiwayJoin(schemas, "b.k BETWEEN a.k - 1 AND a.k + 1") as join:
        start, count = time.process_time(), 0
        for at in range(BATCHES):
            for name in batches:
                count += sum(piece.num_rows for piece in join.process(name, batches[name][at]))
        return time.process_time() - start, count


def between(new: str, stored: str) -> str:
    return (
        f"SELECT {new}.*, {stored}.* FROM {new} JOIN {stored} "
        f"ON {stored}.k BETWEEN {new}.k - 1 AND {new}.k + 1"
    )


def bins(new: str, stored: str) -> str:
    binned = f"(SELECT *, unnest([(k - 1) // 2, (k - 1) // 2 + 1]) AS bin FROM {new}) x"
    return (
        f"SELECT x.* EXCLUDE (bin), {stored}.* FROM {binned} JOIN {stored} "
        f"ON {stored}.k // 2 = x.bin AND {stored}.k BETWEEN x.k - 1 AND x.k + 1"
    )


def duck(batches: Batches, query: Callable[[str, str], str]) -> tuple[float, int]:
    """The same, by a query of a batch and what was stored of the other side."""
    with duckdb.connect() as db:
        db.execute("SET threads = 1")
        for name, parts in batches.items():
            db.register("none", pa.table(parts[0].slice(0, 0)))
            db.execute(f"CREATE TABLE {name} AS SELECT * FROM none")
        start, count = time.process_time(), 0
        for at in range(BATCHES):
            for name, other in (("a", "b"), ("b", "a")):
                db.register("new", pa.table(batches[name][at]))
                count += db.sql(query("new", other)).to_arrow_table().num_rows
                db.execute(f"INSERT INTO {name} SELECT * FROM new")
        return time.process_time() - start, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    batches = made(given.scale)
    rows = {name: sum(part.num_rows for part in parts) for name, parts in batches.items()}
    print(", ".join(f"{count:,} rows of {name}" for name, count in rows.items()), flush=True)
    expected = 0
    for side, work in {
        "ours": ours,
        "DuckDB with bins": lambda found: duck(found, bins),
        "DuckDB": lambda found: duck(found, between),
    }.items():
        seconds = []
        for _ in range(given.rounds):
            cost, count = work(batches)
            assert count == (expected or count), f"{side}: {count} results, expected {expected}"
            expected = count
            seconds.append(cost)
        print(f"{side}: {statistics.median(seconds):.2f} s, {expected:,} results", flush=True)


if __name__ == "__main__":
    main()
