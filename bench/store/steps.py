"""Takes the steps that standard input names, one a line; compare_checkouts.py starts it.

    python -m bench.store.steps 1000000 new-directory

Each step answers with its milliseconds of CPU as JSON. Its data are made off the clock.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import numpy as np
import pyarrow as pa

from bench.common.workloads import Workload
from bench.store.commits import NEXT_BATCH, Bucket, further_batches
from bench.store.sides import OurSide
from lsmstate.options import Options

MEMORY = 64 << 20

Figures = dict[str, float]


class Steps:
    """A logged store, a join loop's three streams, and a bucket of commits."""

    def __init__(self, rows: int, directory: str) -> None:
        self._work = work = Workload(rows)
        logged = Options(memory_bytes=MEMORY, sync="never")
        self._store = OurSide.process(os.path.join(directory, "store"), work, 1, logged)
        for batch in work.batches():
            self._store.append(0, *batch)
        self._store.settle()
        self._committed = Options(memory_bytes=MEMORY, sync="commit")
        self._live = os.path.join(directory, "live")
        self._bucket = Bucket(self._live, work, self._committed)
        self._bucket.commit(work.batches())
        self._bucket.commit([], merge_due=True)
        streams = os.path.join(directory, "join")
        self._join = OurSide.attempt(streams, work, logged, None, 0, streams=3)
        self._arrivals = self._batches_of_streams(rows // 3)
        self._batches, self._appended = further_batches(work), further_batches(work)
        self._hits, self._misses = work.hits(10), work.misses(10)
        self._opens = 0
        self.figures: Figures = {}
        self.take: dict[str, Callable[[], None]] = {
            "append": self._append,
            "probe": self._probe,
            "join": self._join_loop,
            "commit": self._commit,
            "open": self._open,
        }

    def _append(self) -> None:
        batch = next(self._appended)
        with self._clock("append"):
            self._store.append(0, *batch)

    def _probe(self) -> None:
        for name, batches in (("hit", self._hits), ("miss", self._misses)):
            batches.append(keys := batches.pop(0))
            with self._clock(name):
                for _ in self._store.probe(0, keys):
                    pass

    def _join_loop(self) -> None:
        stream, rows, keys, distinct = next(self._arrivals)
        with self._clock("join"):
            for _ in self._join.join((stream + 1) % 3, (stream + 2) % 3, distinct):
                pass
            self._join.append(stream, rows, keys)

    def _commit(self) -> None:
        batch, merged = next(self._batches), self._bucket.merged_bytes
        with self._clock("commit_all"):
            self._bucket.commit([batch])
        if self._bucket.merged_bytes == merged:
            self.figures["commit"] = self.figures["commit_all"]

    def _open(self) -> None:
        self._opens += 1
        keys = self._hits[0]
        with self._clock("open"):
            side = OurSide.attempt(
                self._live,
                self._work,
                self._committed,
                self._bucket.pointer,
                NEXT_BATCH + self._opens,
            )
        with closing(side):
            for name, few in (("answer_1k", keys.slice(5000, 1000)), ("answer_10k", keys)):
                with self._clock(name):
                    for _ in side.probe(0, few):
                        pass

    def _batches_of_streams(
        self, rows: int
    ) -> Iterator[tuple[int, pa.RecordBatch, pa.RecordBatch, pa.RecordBatch]]:
        third = Workload(rows, batch_rows=self._work.batch_rows)
        for turn in zip(*(third.numbered_batches(seed) for seed in range(3)), strict=True):
            for stream, (batch, numbers) in enumerate(turn):
                distinct = third.key_batch(np.unique(numbers))
                yield stream, batch, third.key_batch(numbers), distinct

    @contextmanager
    def _clock(self, measure: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.figures[measure] = (time.process_time() - start) * 1e3


def main() -> None:
    steps = Steps(int(sys.argv[1]), sys.argv[2])
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        steps.figures = {}
        steps.take[line.strip()]()
        print(json.dumps(steps.figures), flush=True)


if __name__ == "__main__":
    main()
