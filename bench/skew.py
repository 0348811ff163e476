"""What spreading hot keys saves: two streams with a hot key, in 8 buckets, with and without it.

    python bench/skew.py --batches 12 --rows 2000 --hot 0.2

A part ``--hot`` of the rows of both streams has one key, the others have Zipf's (1.3 of a million).
Each micro-batch is routed, and each bucket appends, probes and takes its results; what a bucket
takes is CPU time of this process. Where every bucket has a core, a micro-batch takes as long as its
slowest bucket. Shown are the later half of the micro-batches.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from cython_ext.key_codec import KeyCodec
from cython_ext.row_codec import RowCodec
from joins.local.umjoin import UMJoin
from joins.routing.hash import bucket_of
from joins.routing.heavy_hitters import HeavyHitters
from joins.routing.spread import RouteTable, Seen, content_hashes, respread
from joins.spec import JoinSpec
from lsmstate.backends import open_attempt
from lsmstate.options import Options
from spark_integration.routes import PERIOD

BUCKETS = 8
HOT_KEY = -1
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
SPEC = JoinSpec.create({"a": SCHEMA, "b": SCHEMA}, ["key"])
CODEC = KeyCodec(SPEC.key_schema)
ROWS = RowCodec(SCHEMA)


@dataclass
class Measured:
    """By micro-batch and bucket."""

    rows_in: list[list[int]] = field(default_factory=list)
    rows_out: list[list[int]] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)
    counting_seconds: float = 0.0


class Run:
    """The join of all micro-batches, spread or not."""

    def __init__(self, directory: str, spreads: bool) -> None:
        self.spreads = spreads
        self.table = RouteTable()
        self.seen = [Seen(b, {s: HeavyHitters() for s in SPEC.streams}) for b in range(BUCKETS)]
        self.measured = Measured()
        options = Options(memory_bytes=64 << 20)
        self.joins = [
            UMJoin(
                SPEC,
                open_attempt(
                    f"{directory}/{spreads}-{bucket}",
                    SPEC.stream_schemas,
                    batch_id=0,
                    attempt_id="bench",
                    options=options,
                ),
            )
            for bucket in range(BUCKETS)
        ]

    def batch(self, number: int, arrived: dict[str, pa.RecordBatch]) -> None:
        if self.spreads and number and number % PERIOD == 0:
            self.table = respread(self.table, self.seen, BUCKETS)
        rows_in, rows_out = [0] * BUCKETS, [0] * BUCKETS
        seconds = [0.0] * BUCKETS
        for stream, rows in arrived.items():
            keys = CODEC.encode(rows.select(["key"]))
            owners = bucket_of(keys, BUCKETS)
            positions, buckets, is_stored = self.table.route(
                keys.hashes, owners, lambda p, r=rows: content_hashes(r.take(pa.array(p)), ROWS)
            )
            if is_stored is None:
                is_stored = np.ones(len(positions), np.bool_)
            for bucket in range(BUCKETS):
                started = time.process_time()
                for stored in (False, True):
                    mine = positions[(buckets == bucket) & (is_stored == stored)]
                    part = rows.take(pa.array(mine))
                    found = self.joins[bucket].process(stream, part, is_stored=stored)
                    rows_out[bucket] += sum(piece.num_rows for piece in found)
                    rows_in[bucket] += part.num_rows
                    if stored:
                        self.count(bucket, stream, keys.hashes[mine], part)
                seconds[bucket] += time.process_time() - started
        self.measured.rows_in.append(rows_in)
        self.measured.rows_out.append(rows_out)
        self.measured.seconds.append(seconds)

    def count(
        self, bucket: int, stream: str, hashes: npt.NDArray[np.uint64], rows: pa.RecordBatch
    ) -> None:
        if self.spreads:
            started = time.process_time()
            self.seen[bucket].sketches[stream].add(hashes, lambda row: str(rows["key"][row]))
            self.measured.counting_seconds += time.process_time() - started


def arriving(rng: np.random.Generator, rows: int, hot: float) -> dict[str, pa.RecordBatch]:
    found = {}
    for stream in SPEC.streams:
        keys = rng.zipf(1.3, rows) * 7919 % 1_000_000
        keys[rng.random(rows) < hot] = HOT_KEY
        found[stream] = pa.record_batch([keys, np.arange(rows)], schema=SCHEMA)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rows", type=int, default=2000, help="of each stream and micro-batch")
    parser.add_argument("--hot", type=float, default=0.2)
    settings = parser.parse_args()
    columns = ("", "rows in", "largest bucket's rows in", "of the results", "of the CPU")
    table = Table(*columns, "largest bucket's CPU, ms a batch", "all buckets' CPU, ms a batch")
    totals = []
    with tempfile.TemporaryDirectory() as directory:
        runs = {"by hash": Run(directory, False), "hot keys spread": Run(directory, True)}
        rng = np.random.default_rng(3)
        for number in range(settings.batches):
            arrived = arriving(rng, settings.rows, settings.hot)
            for run in runs.values():
                run.batch(number, arrived)
        for name, run in runs.items():
            half = settings.batches // 2
            rows_in, rows_out, seconds = (
                np.array(part[half:])
                for part in (run.measured.rows_in, run.measured.rows_out, run.measured.seconds)
            )
            totals.append(int(np.array(run.measured.rows_out).sum()))
            table.add_row(
                name,
                f"{rows_in.sum():,}",
                *(
                    f"{(part.max(axis=1) / part.sum(axis=1)).mean():.0%}"
                    for part in (rows_in, rows_out, seconds)
                ),
                f"{1000 * seconds.max(axis=1).mean():.0f}",
                f"{1000 * seconds.sum(axis=1).mean():.0f}",
            )
    Console().print(table)
    assert totals[0] == totals[1], f"other results: {totals}"
    counting = runs["hot keys spread"].measured
    share = counting.counting_seconds / np.array(counting.seconds).sum()
    print(f"results: {totals[0]:,}; counting keys took {share:.1%} of the CPU")
    print(runs["hot keys spread"].table.explain())


if __name__ == "__main__":
    main()
