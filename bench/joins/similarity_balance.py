"""Balancing of similarity joins, counted: the largest load of a bucket over the average, by window.

    python -m bench.joins.similarity_balance

- ``figure 6`` is the experiment of the paper on S3J: uniform points under the angular distance, a
  threshold of 0.001, five workers, windows of 60 seconds.
- ``clusters`` move by one diameter a window.

``worksets`` is the product: its routing, its tables, and a local join for each bucket. The load is
what its buckets compare. ``S3J`` are the paper's worksets in its space partitions, moved between
workers when a window ends, by the paper's algorithm with the net rule.
"""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from bench.baselines.cluster_join import partitions, random_centroids
from bench.joins.similarity_counts import Angles, Matrix, angles
from lsmstate.joins.kinds import local_join
from lsmstate.joins.local.similarity.workset_routing import WorksetRouting
from lsmstate.joins.local.similarity.worksets import Bounds, Worksets
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.routing.balancing import balanced, bucket_loads, load_of
from lsmstate.joins.specs.similarity import SimilaritySpec, with_time
from lsmstate.opening import open_store
from lsmstate.options import Options

WINDOW_SECONDS = 60
BATCHES = 12
BUCKETS = 5
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("v", pa.list_(pa.float64()))])


def batch(points: Matrix, first: int, times_us: Any) -> pa.RecordBatch:
    """Points as rows, with ids from ``first`` on."""
    count, width = points.shape
    ends = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    columns = [
        pa.array(np.arange(first, first + count)),
        pa.array(times_us, pa.timestamp("us")),
        pa.ListArray.from_arrays(ends, pa.array(np.ascontiguousarray(points).ravel())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Buckets:
    """A join in several buckets, as Spark runs it: micro-batches, tables, watermarks."""

    def __init__(self, spec: SimilaritySpec, buckets: int, period: int = 4) -> None:
        self._spec = spec
        self._routing = WorksetRouting.of(spec, buckets)
        self._period = period
        self._opened = ExitStack()
        self._stores = [
            open_store(
                self._opened.enter_context(TemporaryDirectory()),
                spec.stream_schemas,
                backend="memory",
                options=Options(memory_bytes=64 << 20),
            )
            for _ in range(buckets)
        ]
        self._kept: dict[int, Any] = {}
        self._watermark_us: int | None = None
        self.table = self._routing.initial_table
        self.micro_batch = 0
        self.compared = np.zeros(buckets)
        """By bucket, what was compared since this was last set to 0."""
        self.messages = 0

    def close(self) -> None:
        """Remove all."""
        for store in self._stores:
            store.close()
        self._opened.close()

    def process(
        self,
        arriving: Mapping[str, pa.RecordBatch],
        watermark_us: int | None = None,
        told: frozenset[int] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """One micro-batch: its results. ``told``: buckets whose reports arrive; None: all."""
        routing, buckets = self._routing, range(len(self._stores))
        if not self.micro_batch:
            stream, rows = next(iter(arriving.items()))
            self.table = routing.sampled_table(stream, rows, rows.select([]), 0)
        sent = {}
        for stream, rows in arriving.items():
            router = routing.router(stream, rows.schema, pa.schema([]), self.table)
            sent[stream] = router.route(rows, rows.select([]))
            self.messages += len(sent[stream].positions)
        is_last = (self.micro_batch + 1) % self._period == 0
        seen = []
        for bucket in buckets:
            found = {s: routed.buckets == bucket for s, routed in sent.items()}
            if not any(each.any() for each in found.values()):
                continue
            context = Context(bucket=bucket, buckets=len(buckets), micro_batch=self.micro_batch)
            join = local_join(self._spec, self._stores[bucket], context)
            observer = routing.observer(
                bucket,
                self.table,
                self._kept.get(bucket),
                is_last=is_last,
                watermark_us=self._watermark_us,
            )
            for stream, rows in arriving.items():
                for role in (Role.STORE, Role.PROBE):
                    roles = sent[stream].roles
                    assert roles is not None
                    chosen = found[stream] & (roles == role)
                    some = rows.take(pa.array(sent[stream].positions[chosen]))
                    if not some.num_rows:
                        continue
                    for piece in join.process(Batch(stream, some, role=role)):
                        yield from piece.to_pylist()
                    if role == Role.STORE:
                        observer.add(stream, some, some.select([]))
            self.compared[bucket] += join.counts["compared_pairs"] + join.counts["pivot_distances"]
            if watermark_us is not None:
                join.advance(watermark_us)
            join.finish()
            self._kept[bucket] = observer.kept()
            if told is None or bucket in told:
                seen.append(observer.observed())
        self._watermark_us = watermark_us
        self.micro_batch += 1
        if is_last:
            reports = [routing.observed_from_json(s.bucket, s.to_json()) for s in seen]
            made = routing.next_table(self.table, reports, self.micro_batch)
            self.table = routing.table_from_json(made.to_json())


def spec_of(metric: str, threshold: float, *, window_seconds: float | None) -> SimilaritySpec:
    """One stream with itself, in tumbling windows."""
    spec = SimilaritySpec.of(
        {"a": SCHEMA}, "a.v ~ b.v", metric=metric, threshold=threshold, distance=None,
        algorithm="pivots",
    )  # fmt: skip
    if window_seconds is None:
        return spec
    window = timedelta(seconds=window_seconds)
    return with_time(spec, {"a": "at"}, None, window, "drop", "")


def uniform(rng: Any, count: int, _at: float) -> Matrix:
    """Points in a square around zero."""
    return np.asarray(rng.uniform(-1, 1, (count, 2)))


def moving(rng: Any, count: int, at: float) -> Matrix:
    """Clusters of several sizes, that have moved ``at`` diameters."""
    fixed = np.random.default_rng(7)
    centres, shares = fixed.uniform(-1, 1, (40, 2)), fixed.zipf(1.6, 40).clip(1, 8)
    turns = fixed.uniform(0, 2 * np.pi, 40)
    own = rng.choice(40, count, p=shares / shares.sum())
    steps = np.column_stack([np.cos(turns), np.sin(turns)]) * 0.1 * at
    return np.asarray((centres + steps)[own] + rng.uniform(-0.05, 0.05, (count, 2)))


def worksets(make: Any, metric: str, threshold: float, rate: int, windows: int) -> Iterator[float]:
    """By window, the largest load over the average."""
    rng = np.random.default_rng(1)
    buckets = Buckets(spec_of(metric, threshold, window_seconds=WINDOW_SECONDS), BUCKETS)
    count = rate * WINDOW_SECONDS // BATCHES
    step = WINDOW_SECONDS * 1_000_000 // BATCHES
    for window in range(windows):
        buckets.compared[:] = 0
        for part in range(BATCHES):
            number = window * BATCHES + part
            points = make(rng, count, number / BATCHES)
            times = number * step + np.sort(rng.integers(0, step, count))
            rows = batch(points, number * count, times)
            for _ in buckets.process({"a": rows}, watermark_us=(number + 1) * step - 1):
                pass
        yield float(buckets.compared.max() / buckets.compared.mean())
    buckets.close()


def s3j(make: Any, metric: str, threshold: float, rate: int, windows: int) -> Iterator[float]:
    """The same of the paper's worksets, counted by the paper's formula."""
    rng = np.random.default_rng(1)
    metric_of = angles if metric == "angular" else _euclid
    centroids = random_centroids(BUCKETS, 2)
    known = [Worksets(_Metric(metric_of), 1 << 30) for _ in range(BUCKETS)]
    places: list[list[int]] = [[] for _ in range(BUCKETS)]
    for window in range(windows):
        points = make(rng, rate * WINDOW_SECONDS, window)
        inner, rows, outer = partitions(points, centroids, metric_of, threshold)
        loads, owners = [], []
        bounds = Bounds(threshold / 2, threshold, 2 * threshold)
        for partition, worksets_ in enumerate(known):
            sizes = np.zeros((3, 0), np.int64)
            mine = points[inner == partition]
            for first in range(0, len(mine), 4096):
                placed = worksets_.place(mine[first : first + 4096], bounds, -1)
                sizes = np.pad(sizes, ((0, 0), (0, worksets_.count - sizes.shape[1])))
                np.add.at(sizes, (np.where(placed.is_inner, 0, 1), placed.homes), 1)
                np.add.at(sizes[2], placed.worksets, 1)
            _, where = worksets_.near(points[rows[outer == partition]], bounds)
            np.add.at(sizes[2], where, 1)
            # A new workset lies where it was made.
            places[partition] += [partition] * (worksets_.count - len(places[partition]))
            loads += [load_of((i, x, o)) for i, x, o in sizes.T.tolist()]
            owners += places[partition]
        full = bucket_loads(np.array(loads), tuple((b,) for b in owners), BUCKETS)
        yield float(full.max() / full.mean())
        moved = balanced(np.array(loads), tuple((b,) for b in owners), BUCKETS, most_shard=1.0)
        first = 0
        for own in places:
            own[:] = [shards[0] for shards in moved[first : first + len(own)]]
            first += len(own)


def _euclid(points: Matrix, others: Matrix) -> Matrix:
    return np.asarray(np.sqrt(((points[:, None] - others[None]) ** 2).sum(-1)))


class _Metric(Angles):
    def __init__(self, distances: Any) -> None:
        self._distances = distances

    def distances(self, points: Matrix, pivots: Matrix) -> Matrix:
        """By the given function."""
        return np.asarray(self._distances(points, pivots))


DATA: dict[str, tuple[Any, str, float]] = {
    "figure 6": (uniform, "angular", 0.001),
    "clusters": (moving, "l2", 0.01),
}


def main() -> None:
    """Print a line for each data set and join."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=800, help="records a second; the paper: 8000")
    parser.add_argument("--windows", type=int, default=4)
    asked = parser.parse_args()
    print("largest load over the average, by window")
    for name, (make, metric, threshold) in DATA.items():
        for join in (worksets, s3j):
            found = join(make, metric, threshold, asked.rate, asked.windows)
            shown = "  ".join(f"{ratio:.2f}" for ratio in found)
            print(f"{name:10}  {join.__name__:10}  {shown}", flush=True)


if __name__ == "__main__":
    main()
