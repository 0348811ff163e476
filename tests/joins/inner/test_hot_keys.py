"""One key with very many matches, in joins other than inner ones: their results come in bounded
pieces, worked out as they are asked for."""

import datetime
import tracemalloc
from collections import Counter
from itertools import islice

import duckdb
import pyarrow as pa
import pytest

from lsmstate.join import MultiwayJoin
from lsmstate.schema.arrow_sizes import row_sizes
from support.grouped import grouped

PIECE_BYTES = 20_000
START = datetime.datetime(2026, 1, 1)
NEAR = "BETWEEN a.at - INTERVAL 1 HOUR AND a.at + INTERVAL 1 HOUR"
LEFT_IN_TIME = (
    f"a LEFT JOIN b ON a.k = b.k AND b.at {NEAR} LEFT JOIN c ON a.k = c.k AND c.at = a.at"
)
CHANGES, FINAL = {"emit": "changes"}, {"emit": "final"}
#: Text of the joins, options, and the number of rows of each stream where the hot key has ``n``.
#: The results of the last stream's rows are looked at; of joins that wait, what comes in the end.
JOINS = {
    "rooted": (
        "a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.k2 = c.k",
        CHANGES,
        lambda n: {"a": n, "b": n, "c": 1},
    ),
    "rooted, in time": (LEFT_IN_TIME, CHANGES, lambda n: {"a": n, "b": n, "c": 1}),
    "turned": (LEFT_IN_TIME, CHANGES, lambda n: {"a": n, "c": n, "b": 1}),
    "turned, by many": (LEFT_IN_TIME, CHANGES, lambda n: {"a": n, "c": 1, "b": n}),
    "final, that waits": (LEFT_IN_TIME, FINAL, lambda n: {"a": n, "b": n}),
    "final, that matches": (
        f"a FULL JOIN b ON a.k = b.k AND b.at {NEAR}",
        FINAL,
        lambda n: {"a": n, "b": n},
    ),
}


def rows_of(name, count):
    """Rows of one key and one time; those of ``a`` are wide."""
    columns = {
        "k": pa.array([7] * count, pa.int64()),
        "at": pa.array([START] * count, pa.timestamp("us")),
        f"n{name}": pa.array(range(count), pa.int64()),
    }
    if name == "b":
        columns["k2"] = columns["k"]
    if name == "a":
        columns["text"] = pa.array(["x" * 60] * count, pa.string())
    return pa.record_batch(columns)


def opened(text, options):
    names = [name for name in "abc" if f" {name} ON" in f" ON {text}" or name == "a"]
    schemas = {name: rows_of(name, 0).schema for name in names}
    if NEAR in text:
        options = {**options, "event_time": dict.fromkeys(names, "at")}
    return MultiwayJoin(schemas, text, **grouped(memory="32m", piece_bytes=PIECE_BYTES, **options))


def last_results(join, counts, *, given_up=False):
    """Feeds the rows: what the last of them give, and what comes in the end; with ``given_up``
    without the results of the streams before."""
    *earlier, last = counts
    for name in earlier:
        results = join.process(name, rows_of(name, counts[name]))
        if given_up:
            results.close()
        yield from results
    yield from join.process(last, rows_of(last, counts[last]))
    if join.event_time is not None:
        yield from join.advance(START + datetime.timedelta(days=1))


@pytest.mark.parametrize("kind", JOINS)
def test_the_result_is_whole_and_in_bounded_pieces(kind):
    text, options, counts_of = JOINS[kind]
    counts = counts_of(80)
    standing = Counter()
    with opened(text, options) as join:
        shown = [name for name in join.output_schema.names if name in ("na", "nb", "nc")]
        pieces = 0
        for piece in last_results(join, counts):
            assert row_sizes(piece).sum() <= PIECE_BYTES + 10 * piece.num_rows
            pieces += 1
            rows = Counter(zip(*(piece.column(name).to_pylist() for name in shown), strict=True))
            if "op" in piece.schema.names and piece.column("op")[0].as_py() == "-D":
                standing.subtract(rows)
            else:
                standing.update(rows)
    assert +standing == by_duckdb(text, shown, counts)
    assert pieces > 20


def by_duckdb(text, shown, counts):
    with duckdb.connect() as db:
        for name in "abc":
            db.register(name, pa.Table.from_batches([rows_of(name, counts.get(name, 0))]))
        return Counter(db.execute(f"SELECT {', '.join(shown)} FROM {text}").fetchall())


@pytest.mark.parametrize("kind", JOINS)
def test_memory_does_not_grow_with_the_result(kind):
    """Of more than two million results, or pairs that are counted, the first fifty thousand."""
    text, options, counts_of = JOINS[kind]
    with opened(text, options) as join:
        results = last_results(join, counts_of(1500), given_up=True)
        next(results)  # all rows are stored
        before, most_arrow = pa.total_allocated_bytes(), 0
        tracemalloc.start()
        try:
            for _ in islice(results, 400):
                most_arrow = max(most_arrow, pa.total_allocated_bytes() - before)
            _, most_python = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most_arrow < 20 * PIECE_BYTES
    # Numbers of rows, which NumPy holds: a block of them for each stream.
    assert most_python < 5 << 20
