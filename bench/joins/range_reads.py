"""Reads of many ranges of keys, beside DuckDB and, where it is installed, polars.

Run: ``python -m bench.joins.range_reads [band] [hot] [asof]``. Each line is the median of five
rounds, in CPU milliseconds of the process; every round has new rows of its own. All sides run in
one thread. Ours includes the store, under a cap of 64 MB; the peers keep everything in memory.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

import duckdb
import numpy as np
import pyarrow as pa

from lsmstate import Options, RangeBounds, RangeMatches, StreamSchema, open_store
from lsmstate.join import asof_join
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.store import MultimapStore

try:
    import polars
except ImportError:
    polars = None

ROUNDS = 5
CAP = 64 << 20
BATCH = 10_000
#: Band: pairs whose keys are at most so far apart.
NEAR = 500

ROWS = pa.schema(
    [("id", pa.int64()), ("k", pa.int64()), ("val", pa.float64()), ("tag", pa.int32())]
)


def made(rows: int, seed: int) -> pa.RecordBatch:
    """Rows with keys that are uniform in 0 to 1e9."""
    rng = np.random.default_rng(seed)
    columns = [np.arange(rows), rng.integers(0, 10**9, rows), rng.random(rows)]
    columns.append(rng.integers(0, 100, rows, dtype=np.int32))
    return pa.record_batch(list(map(pa.array, columns)), schema=ROWS)


def measured(work: Callable[[int], int]) -> tuple[float, list[int]]:
    """The median CPU milliseconds of the rounds, and how many rows each found."""
    work(0)
    times, found = [], []
    for number in range(1, ROUNDS + 1):
        start = time.process_time()
        found.append(work(number))
        times.append((time.process_time() - start) * 1e3)
    return median(times), found


def paired(new: pa.RecordBatch, piece: RangeMatches) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The pairs of a piece: rows of the batch, and the stored rows beside them."""
    counts = piece.stop - piece.first
    starts = np.repeat(piece.first - (np.cumsum(counts) - counts), counts)
    places = starts + np.arange(len(starts))
    ours = new.take(pa.array(np.repeat(piece.ranges, counts)))
    return ours, piece.rows.take(pa.array(places))


def stored(store: MultimapStore, stream: str, rows: pa.RecordBatch, key: list[str]) -> None:
    for start in range(0, rows.num_rows, BATCH):
        part = rows.slice(start, BATCH)
        store.append(stream, part, part.select(key))


def reported(name: str, cost: float, found: list[int], expected: list[int] | None) -> None:
    assert expected is None or found == expected, f"{name} found {found}, expected {expected}"
    print(f"| {name} | {found[0]:,} | {cost:.1f} |", flush=True)


def band(history: int) -> None:
    """10,000 new rows against a history, and the new rows are stored."""
    print(f"band, {BATCH:,} new rows against {history:,} stored ones")
    known, batches = made(history, 1), [made(BATCH, 2 + at) for at in range(ROUNDS + 1)]
    key = ROWS.empty_table().select(["k"]).schema
    streams = [StreamSchema("a", key, ROWS), StreamSchema("b", key, ROWS)]

    def with_store(number: int) -> int:
        new = batches[number]
        keys = new.column("k").to_numpy()
        near = RangeBounds(low=pa.array(keys - NEAR), high=pa.array(keys + NEAR))
        found = sum(paired(new, piece)[1].num_rows for piece in store.probe_ranges("a", near))
        store.append("b", new, new.select(["k"]))
        return found

    with tempfile.TemporaryDirectory() as directory:
        options = Options(memory_bytes=CAP)
        with open_store(directory, streams, options=options) as store:
            stored(store, "a", known, ["k"])
            cost, expected = measured(with_store)
            reported("lsmstate, storing included", cost, expected, None)
    peers_of_band(known, batches, expected)


def peers_of_band(
    known: pa.RecordBatch, batches: list[pa.RecordBatch], expected: list[int]
) -> None:
    db = duckdb.connect()
    db.execute("SET threads = 1")
    db.register("known", pa.table(known))
    db.execute("CREATE TABLE h AS SELECT * FROM known")
    width = 2 * NEAR
    bins = f"unnest([(k - {NEAR}) // {width}, (k - {NEAR}) // {width} + 1])"
    between = f"h.k BETWEEN d.k - {NEAR} AND d.k + {NEAR}"
    queries = {
        "DuckDB, `BETWEEN`": f"SELECT * FROM d JOIN h ON {between}",
        "DuckDB, bins written by hand": f"SELECT * FROM (SELECT *, {bins} AS bin FROM d) AS d "
        f"JOIN h ON h.k // {width} = d.bin AND {between}",
    }
    for name, query in queries.items():

        def with_duckdb(number: int, query: str = query) -> int:
            db.register("new", pa.table(batches[number]))
            db.execute("CREATE OR REPLACE TABLE d AS SELECT * FROM new")
            return int(db.sql(query).to_arrow_table().num_rows)

        reported(name, *measured(with_duckdb), expected)
    if polars is None:
        return
    frame = polars.from_arrow(pa.table(known))

    def with_polars(number: int) -> int:
        new = polars.from_arrow(pa.table(batches[number])).select(polars.all().name.suffix("_d"))
        bounds = new.lazy().with_columns(
            low=polars.col("k_d") - NEAR, high=polars.col("k_d") + NEAR
        )
        lower = polars.col("k") >= polars.col("low")
        found = bounds.join_where(frame.lazy(), lower, polars.col("k") <= polars.col("high"))
        return int(found.collect(engine="streaming").height)

    reported("polars, `join_where`", *measured(with_polars), expected)


def hot(rows: int = 200_000, ranges: int = 1_000) -> None:
    """One key with many rows, `t BETWEEN`: the cost follows what matches."""
    print(f"{ranges:,} ranges of time of one key with {rows:,} rows")
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("val", pa.float64())])
    key = pa.schema(list(schema)[:2])
    times = np.arange(rows) * 10
    known = pa.record_batch([np.full(rows, 7), times, times * 0.5], schema=schema)
    with (
        tempfile.TemporaryDirectory() as directory,
        open_store(
            directory, [StreamSchema("a", key, schema)], options=Options(memory_bytes=CAP)
        ) as store,
    ):
        stored(store, "a", known, ["k", "t"])
        for width in (0, 10, 100, 1_000):
            span = 10 * width - 1 if width else 0

            def read(number: int, span: int = span) -> int:
                low = np.random.default_rng(number).integers(0, 10 * rows - span, ranges)
                equal = {"k": np.full(ranges, 7)}
                bounds = RangeBounds(equal, pa.array(low), pa.array(low + span))
                found = store.probe_ranges("a", bounds)
                return int(sum((piece.stop - piece.first).sum() for piece in found))

            reported(f"ranges of about {width} rows", *measured(read), None)

        def read_all(number: int) -> int:
            return sum(piece.rows.num_rows for piece in store.iterate("a", prefix=(7,)))

        reported("the whole key", *measured(read_all), None)


def asof(new_rows: int = 100_000, history: int = 1_000_000, keys: int = 10_000) -> None:
    """The last stored row of each new row's key at or before its time."""
    print(f"as-of, {new_rows:,} new rows against {history:,} stored ones of {keys:,} keys")
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("val", pa.float64())])
    key = pa.schema(list(schema)[:2])

    def rows_of(count: int, seed: int) -> pa.RecordBatch:
        rng = np.random.default_rng(seed)
        times = rng.permutation(10**7)[:count]
        return pa.record_batch([rng.integers(0, keys, count), times, rng.random(count)], schema)

    known = rows_of(history, 1)
    batches = [rows_of(new_rows, 2 + at) for at in range(ROUNDS + 1)]
    with (
        tempfile.TemporaryDirectory() as directory,
        open_store(
            directory, [StreamSchema("a", key, schema)], options=Options(memory_bytes=CAP)
        ) as store,
    ):
        stored(store, "a", known, ["k", "t"])

        def with_store(number: int) -> int:
            new = batches[number]
            before = RangeBounds(new.select(["k"]), high=new.column("t"))
            found = store.probe_ranges("a", before, last=True)
            return sum(paired(new, piece)[0].num_rows for piece in found)

        cost, expected = measured(with_store)
        reported("lsmstate, `last=True` in the store", cost, expected, None)
    lookups_of_join(known, batches, expected)
    db = duckdb.connect()
    db.execute("SET threads = 1")
    db.register("known", pa.table(known))
    db.execute("CREATE TABLE h AS SELECT * FROM known")

    def with_duckdb(number: int) -> int:
        # A table: of an Arrow scan the rows are unknown, and it would choose nested loops.
        db.register("new", pa.table(batches[number]))
        db.execute("CREATE OR REPLACE TABLE d AS SELECT * FROM new")
        query = "SELECT * FROM d ASOF JOIN h ON d.k = h.k AND d.t >= h.t"
        return int(db.sql(query).to_arrow_table().num_rows)

    reported("DuckDB, `ASOF JOIN`", *measured(with_duckdb), expected)
    if polars is None:
        return
    frame = polars.from_arrow(pa.table(known)).sort("t")

    def with_polars(number: int) -> int:
        new = polars.from_arrow(pa.table(batches[number])).sort("t")
        found = new.join_asof(frame, on="t", by="k", strategy="backward")
        return int(found.select(polars.col("val_right").is_not_null().sum()).item())

    reported("polars, `join_asof`, history sorted before", *measured(with_polars), expected)


def lookups_of_join(
    known: pa.RecordBatch, batches: list[pa.RecordBatch], expected: list[int]
) -> None:
    """The same by what an as-of join keeps in memory of the second stream; then whole batches, of
    which the rows of the first stream are stored, wait, and are looked up by the watermark."""
    streams = {"q": known.schema, "p": known.schema}
    with asof_join(streams, "q.t >= p.t", by="k") as join:
        for start in range(0, known.num_rows, BATCH):
            join.process("p", known.slice(start, BATCH)).close()
        kept = join.local_join._kept

        def looked_up(number: int) -> int:
            new = batches[number]
            equal = new.select(["k"]).rename_columns(["k0"])
            bounds = RangeBounds(equal, high=new.column("t"))
            found = kept.nearest(new, row_sizes(new), bounds) or []
            return sum(piece.num_rows for _, picked in found for piece in kept.made(picked))

        for _ in range(3):
            looked_up(0)  # so that rows are kept
        reported("lsmstate, rows kept by the join", *measured(looked_up), expected)
        taken, chunks = kept.kept.nbytes / 2**20, len(kept.kept.chunks)
        print(f"kept: {taken:.1f} MB in {chunks} chunks", flush=True)
    with asof_join(streams, "q.t >= p.t", by="k") as join:
        for start in range(0, known.num_rows, BATCH):
            join.process("p", known.slice(start, BATCH)).close()

        def whole(number: int) -> int:
            new = batches[number]
            step = 10**7 // len(batches)
            times = pa.array(new.column("t").to_numpy() // len(batches) + number * step)
            join.process("q", new.set_column(1, "t", times)).close()
            return join.advance((number + 1) * step - 1).count()

        reported("lsmstate, the whole join, new rows stored", *measured(whole), None)


def main() -> None:
    asked = sys.argv[1:] or ["band", "hot", "asof"]
    if "band" in asked:
        band(100_000)
        band(1_000_000)
    if "hot" in asked:
        hot()
    if "asof" in asked:
        asof()


if __name__ == "__main__":
    main()
