"""Natural joins of documents: documents a second, by index.

    python -m bench.joins.documents [--documents 10000] [--data nobench log] [--local auto hash]

Documents come as JSON text in batches of 1,000. Each batch looks for partners among all earlier
documents and is stored, with a cap of 64 MB for store and index. Times are CPU seconds of the
process, medians of ``--rounds``. They hold the reading of the text, and not the opening of the
store. Each pair counts once.

``--local nested_loops`` compares each document with all before it, in memory.

``--ids`` makes the rows of the results too, with the ids of both documents.
"""

import argparse
import json
import statistics
import time

import pyarrow as pa

from bench.baselines.document_nested_loops import pairs
from bench.joins.document_data import DATA
from lsmstate.join import NaturalJoin, State
from lsmstate.joins.document_reading import READING

SCHEMA = pa.schema([("id", pa.int64()), ("doc", pa.string())])
BATCH = 1000
NESTED_LOOPS = "nested_loops"
LOCAL = ("auto", "bitmaps", "by_shape", "fp_tree", "hash")


def batches(data: str, count: int) -> list[pa.RecordBatch]:
    """The documents as rows."""
    texts = [json.dumps(each) for each in DATA[data](count)]
    rows = pa.table([range(count), texts], schema=SCHEMA)
    return [each.combine_chunks().to_batches()[0] for each in _cut(rows)]


def _cut(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(first, BATCH) for first in range(0, rows.num_rows, BATCH)]


def run(given: list[pa.RecordBatch], local: str, backend: str, ids: bool) -> tuple[float, int, int]:
    """CPU seconds, pairs, and how often the index was dropped."""
    found = 0
    with NaturalJoin(
        SCHEMA, "doc", id="id", output="ids", local=local, state=State(backend=backend)
    ) as join:
        begun = time.process_time()
        for rows in given:
            results = join.process("documents", rows)
            if ids:
                found += sum(piece.num_rows for piece in results)
            else:
                found += results.count()
        seconds = time.process_time() - begun
        return seconds, found, join.counts["index_drops"]


def nested_loops(given: list[pa.RecordBatch]) -> tuple[float, int, int]:
    """The same by nested loops, in memory."""
    begun = time.process_time()
    found = pairs(READING.read(pa.concat_arrays([rows.column("doc") for rows in given])))
    return time.process_time() - begun, found, 0


def main() -> None:
    """Print a line for each data set and index."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--local", nargs="+", default=list(LOCAL), choices=[*LOCAL, NESTED_LOOPS])
    parser.add_argument("--backend", default="lsm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ids", action="store_true")
    asked = parser.parse_args()
    for data in asked.data:
        given = batches(data, asked.documents)
        for local in asked.local:
            runs = [
                nested_loops(given)
                if local == NESTED_LOOPS
                else run(given, local, asked.backend, asked.ids)
                for _ in range(asked.rounds)
            ]
            seconds = statistics.median(each[0] for each in runs)
            print(
                f"{data:8} {asked.documents:7} documents, {local:8}: {seconds:7.3f} s, "
                f"{asked.documents / seconds:9,.0f} documents/s, {runs[0][1]:,} pairs, "
                f"index dropped {runs[0][2]} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
