"""Joins without an equality beside DuckDB and, where it is installed, polars: a band, intervals,
two inequalities, arithmetic.

Run: ``python -m bench.joins.any_condition [--rows 1000000] [--rounds 5] [--only band ...]``

What is due to be merged of the stored rows is merged first, as in the comparison of stores.
Each figure is the CPU time of a batch of 10,000 new rows (1,000 for arithmetic) against the
stored rows of the other stream, storing included, as a median. The peers have their tables in
memory, DuckDB one thread, polars as many as POLARS_MAX_THREADS says; ours keeps its state on disk
under a cap of 64 MB.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import duckdb
import numpy as np
import pyarrow as pa

from lsmstate.join import MultiwayJoin

try:
    import polars
except ImportError:
    polars = None

BATCH = 10_000
Made = Callable[[int, int], pa.RecordBatch]
PARTS = ("band", "intervals", "inequalities", "small", "arithmetic")


def points(count: int, seed: int) -> pa.RecordBatch:
    """Workload A1: keys from 0 to a billion, and 20 bytes beside them."""
    rng = np.random.default_rng(seed)
    return pa.record_batch(
        {
            "id": np.arange(count, dtype=np.int64),
            "k": rng.integers(0, 10**9, count),
            "val": rng.random(count),
            "tag": rng.integers(0, 100, count, dtype=np.int32),
        }
    )


def intervals(count: int, seed: int) -> pa.RecordBatch:
    """Intervals of up to 1,000, one in 1,000 of them 1,000 times longer."""
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 10**9, count)
    length = rng.integers(0, 1000, count) * np.where(rng.random(count) < 0.001, 1000, 1)
    return pa.record_batch({"low": low, "high": low + length})


def numbers(count: int, seed: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    return pa.record_batch({"x": rng.random(count), "u": rng.random(count)})


def taxed(count: int, seed: int, noise: float = 10) -> pa.RecordBatch:
    """Workload A3: salaries, and taxes of some 30 % of them."""
    rng = np.random.default_rng(seed)
    salary = rng.random(count) * 1e6
    return pa.record_batch({"x": salary, "u": 0.3 * salary + rng.normal(0, noise, count)})


def unequal(count: int, seed: int) -> pa.RecordBatch:
    """The same with more results."""
    return taxed(count, seed, 100)


def apart(count: int, seed: int) -> pa.RecordBatch:
    """Two columns that have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    return pa.record_batch({"x": rng.random(count), "u": rng.random(count)})


def apart_and_high(count: int, seed: int) -> pa.RecordBatch:
    """The same, so that few of the second column are below those of ``apart``."""
    found = apart(count, seed)
    high = pa.array(found.column("u").to_numpy() + 0.9727)
    return pa.record_batch({"y": found.column("x"), "v": high})


def ours(
    on: str, stored: pa.RecordBatch, batches: list[pa.RecordBatch]
) -> tuple[list[float], list[int]]:
    """CPU seconds and results of each batch, after one that is not counted."""
    seconds, results = [], []
    with MultiwayJoin({"a": batches[0].schema, "b": stored.schema}, on) as join:
        for first in range(0, stored.num_rows, BATCH):
            join.process("b", stored.slice(first, BATCH)).close()
        join._store.compact(due_only=True)  # no merge of the stored rows runs beside the clock
        for batch in batches:
            start = time.process_time()
            results.append(sum(piece.num_rows for piece in join.process("a", batch)))
            seconds.append(time.process_time() - start)
    return seconds[1:], results[1:]


def duck(
    sql: str, stored: pa.RecordBatch, batches: list[pa.RecordBatch]
) -> tuple[list[float], list[int]]:
    seconds, results = [], []
    with duckdb.connect() as db:
        db.execute("SET threads = 1")
        db.register("given", pa.table(stored))
        db.execute("CREATE TABLE b AS SELECT * FROM given")
        for batch in batches:
            db.register("new", pa.table(batch))
            start = time.process_time()
            db.execute("CREATE OR REPLACE TABLE a AS SELECT * FROM new")
            results.append(db.execute(sql).to_arrow_table().num_rows)
            seconds.append(time.process_time() - start)
    return seconds[1:], results[1:]


def of_polars(
    conditions: list["polars.Expr"], stored: pa.RecordBatch, batches: list[pa.RecordBatch]
) -> tuple[list[float], list[int]]:
    seconds, results = [], []
    frame = polars.from_arrow(pa.table(stored)).lazy()
    for batch in batches:
        start = time.process_time()
        new = polars.from_arrow(pa.table(batch)).lazy()
        results.append(new.join_where(frame, *conditions).collect().height)
        seconds.append(time.process_time() - start)
    return seconds[1:], results[1:]


def inequalities() -> list["polars.Expr"]:
    return [polars.col("x") < polars.col("y"), polars.col("u") > polars.col("v")]


def compare(
    name: str,
    on: str,
    stored: pa.RecordBatch,
    made: Made,
    rounds: int,
    more: dict[str, str] | None = None,
    batch: int = BATCH,
    by_polars: Callable[[], list["polars.Expr"]] | None = None,
) -> None:
    """Print a line for ours, and one for each peer; all have the same results."""
    batches = [made(batch, 100 + seed) for seed in range(rounds + 1)]
    seconds, expected = ours(on, stored, batches)
    print(f"{name}: ours {statistics.median(seconds) * 1e3:,.1f} ms, {expected[0]:,} results")
    sql = f"SELECT a.*, b.* FROM a JOIN b ON {on}"
    for peer, text in {"DuckDB": sql, **(more or {})}.items():
        seconds, results = duck(text, stored, batches[: min(4, len(batches))])
        assert results == expected[: len(results)], peer
        print(f"{name}: {peer} {statistics.median(seconds) * 1e3:,.1f} ms", flush=True)
    if by_polars is not None and polars is not None:
        seconds, results = of_polars(by_polars(), stored, batches[: min(4, len(batches))])
        assert results == expected[: len(results)], "polars"
        print(f"{name}: polars {statistics.median(seconds) * 1e3:,.1f} ms", flush=True)


BINS = """
SELECT x.* EXCLUDE (bin), b.* FROM
  (SELECT *, unnest([(k - 500) // 1000, (k - 500) // 1000 + 1]) AS bin FROM a) x
  JOIN b ON b.k // 1000 = x.bin AND b.k BETWEEN x.k - 500 AND x.k + 500"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    band = "b.k BETWEEN a.k - 500 AND a.k + 500"
    for count in (given.rows // 10, given.rows) if "band" in given.only else ():
        of = f"band, {count:,} stored"
        compare(of, band, points(count, 1), points, given.rounds, {"DuckDB with bins": BINS})
    if "intervals" in given.only:
        compare(
            f"points in intervals, {given.rows:,} stored",
            "a.k BETWEEN b.low AND b.high",
            intervals(given.rows, 1),
            points,
            given.rounds,
        )
    made: list[tuple[str, Made, Made]] = [
        ("who earns more and pays less", taxed, taxed),
        ("the same with ten times the noise", unequal, unequal),
        ("two columns apart", apart, apart_and_high),
    ]
    for size in [BATCH] * ("inequalities" in given.only) + [100] * ("small" in given.only):
        for of, new, old in made:
            compare(
                f"{of}, {size:,} against {given.rows:,}",
                "a.x < b.y AND a.u > b.v",
                old(given.rows, 1).rename_columns(["y", "v"]),
                new,
                given.rounds,
                batch=size,
                by_polars=inequalities,
            )
    if "arithmetic" in given.only:
        compare(
            f"arithmetic, 1,000 against {given.rows // 10:,}",
            "a.x * b.y + a.u * b.v < 0.01",
            numbers(given.rows // 10, 1).rename_columns(["y", "v"]),
            numbers,
            given.rounds,
            batch=1000,
        )


if __name__ == "__main__":
    main()
