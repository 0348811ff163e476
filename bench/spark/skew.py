"""What spreading hot keys saves: streams with a hot key, in 8 buckets, with and without it.

    python -m bench.spark.skew --batches 12 --rows 2000 --hot 0.2
    python -m bench.spark.skew --batches 12 --rows 2000 --hot 0.2 --streams 3

A part ``--hot`` of the rows of both streams has one key, the others have Zipf's (1.3 of a million).
Of three streams this is the first; the others have a hundredth of the hot rows, and else keys
that are even over so many as there are rows.
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

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.protocols import Batch, Role
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash import bucket_of
from lsmstate.joins.routing.skew.heavy_hitters import HeavyHitters
from lsmstate.joins.routing.skew.respread import Seen, respread
from lsmstate.joins.routing.skew.spread import RouteTable
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.spark_integration.tables.versioned_tables import PERIOD

BUCKETS = 8
HOT_KEY = -1
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
CODEC = KeyCodec(pa.schema([("k0", pa.int64())]))
ROWS = RowCodec(SCHEMA)


@dataclass
class Measured:
    """By micro-batch and bucket."""

    rows_in: list[list[int]] = field(default_factory=list)
    rows_out: list[list[int]] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)
    counting_seconds: float = 0.0
    taken_rows: int = 0


class Run:
    """The join of all micro-batches, spread or not."""

    def __init__(self, directory: str, streams: str, spreads: bool) -> None:
        spec = JoinSpec.create(dict.fromkeys(streams, SCHEMA), ["key"])
        self.streams, self.spreads = streams, spreads
        self.table = RouteTable()
        self.sketches = [{s: HeavyHitters() for s in streams} for _ in range(BUCKETS)]
        self.keys: dict[int, bytes] = {}
        self.measured = Measured()
        options = Options(memory_bytes=64 << 20)
        self.stores = [
            open_attempt(
                f"{directory}/{spreads}-{bucket}",
                spec.stream_schemas,
                batch_id=0,
                attempt_id="bench",
                options=options,
            )
            for bucket in range(BUCKETS)
        ]
        self.joins = [UMJoin(spec, store) for store in self.stores]

    def batch(self, number: int, arrived: dict[str, pa.RecordBatch]) -> None:
        rows_in, rows_out = [0] * BUCKETS, [0] * BUCKETS
        seconds = [0.0] * BUCKETS
        if self.spreads and number and number % PERIOD == 0:
            self.respread(seconds)
        for stream, rows in arrived.items():
            keys = CODEC.encode(rows.select(["key"]))
            owners = bucket_of(keys, BUCKETS)
            self.remember(keys.hashes, rows)
            positions, buckets, roles, _ = self.table.route(
                stream,
                keys.hashes,
                owners,
                lambda p, r=rows: content_hashes(r.take(pa.array(p)), ROWS),
            )
            if roles is None:
                roles = np.full(len(positions), Role.STORE)
            for bucket in range(BUCKETS):
                started = time.process_time()
                for role in Role:
                    mine = positions[(buckets == bucket) & (roles == role)]
                    part = rows.take(pa.array(mine))
                    found = self.joins[bucket].process(Batch(stream, part, role=role))
                    rows_out[bucket] += sum(piece.num_rows for piece in found)
                    rows_in[bucket] += part.num_rows
                    if role != Role.PROBE:
                        self.count(bucket, stream, keys.hashes[mine], part)
                seconds[bucket] += time.process_time() - started
        self.measured.rows_in.append(rows_in)
        self.measured.rows_out.append(rows_out)
        self.measured.seconds.append(seconds)

    def respread(self, seconds: list[float]) -> None:
        """The next table; added buckets take over rows here from the owner's open store."""
        seen = [Seen(b, s, "open", self.keys) for b, s in enumerate(self.sketches)]
        self.table = respread(self.table, seen, BUCKETS, self.streams)
        for key in self.table.keys:
            for bucket in key.addition.buckets if key.addition is not None else ():
                started = time.process_time()
                owner = self.stores[key.buckets[0]]
                one = pa.record_batch(
                    [np.frombuffer(self.keys[key.hash], np.int64)], schema=CODEC.schema
                )
                for stream in set(self.streams) - {key.stream}:
                    for found in owner.probe(stream, one).fetch(np.zeros(1, np.int64), 1 << 20):
                        keys = one.take(pa.array(found.positions))
                        self.measured.taken_rows += self.stores[bucket].append(
                            stream, found.rows, keys
                        )
                seconds[bucket] += time.process_time() - started

    def count(
        self, bucket: int, stream: str, hashes: npt.NDArray[np.uint64], rows: pa.RecordBatch
    ) -> None:
        if self.spreads:
            started = time.process_time()
            self.sketches[bucket][stream].add(hashes, lambda row: str(rows["key"][row]))
            self.measured.counting_seconds += time.process_time() - started

    def remember(self, hashes: npt.NDArray[np.uint64], rows: pa.RecordBatch) -> None:
        """Keys by their hashes."""
        distinct, first = np.unique(hashes, return_index=True)
        keys = rows["key"].to_numpy()[first]
        self.keys |= {n: key.tobytes() for n, key in zip(distinct.tolist(), keys, strict=True)}


def arriving(
    rng: np.random.Generator, streams: str, rows: int, hot: float
) -> dict[str, pa.RecordBatch]:
    found = {}
    for stream in streams:
        is_even = len(streams) > 2 and stream != streams[0]
        numbers = rng.integers(1, rows + 1, rows) if is_even else rng.zipf(1.3, rows)
        keys = numbers * 7919 % 1_000_000
        keys[rng.random(rows) < (hot / 100 if is_even else hot)] = HOT_KEY
        found[stream] = pa.record_batch([keys, np.arange(rows)], schema=SCHEMA)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rows", type=int, default=2000, help="of each stream and micro-batch")
    parser.add_argument("--hot", type=float, default=0.2)
    parser.add_argument("--streams", type=int, choices=(2, 3), default=2)
    settings = parser.parse_args()
    streams = "abc"[: settings.streams]
    columns = ("", "rows in", "largest bucket's rows in", "of the results", "of the CPU")
    table = Table(*columns, "largest bucket's CPU, ms a batch", "all buckets' CPU, ms a batch")
    totals = []
    with tempfile.TemporaryDirectory() as directory:
        runs = {
            "by hash": Run(directory, streams, False),
            "hot keys spread": Run(directory, streams, True),
        }
        rng = np.random.default_rng(3)
        for number in range(settings.batches):
            arrived = arriving(rng, streams, settings.rows, settings.hot)
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
    print(f"rows taken over by added buckets: {counting.taken_rows:,}")
    print(runs["hot keys spread"].table.explain())


if __name__ == "__main__":
    main()
