"""Skew of a join by one key: the keys of each bucket are counted.

A bucket keeps a sketch of each stream's keys in a stream of its own store, so it goes on after a
restart, and a micro-batch that is repeated counts its rows once.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from cython_ext.key_codec import KeyCodec
from joins.routing.heavy_hitters import SKETCH, HeavyHitters, merged
from joins.routing.spread import Seen
from lsmstate.store import MultimapStore, StreamSchema
from spark_integration.bucket import Bucket, InputBatch
from spark_integration.hottest import packed
from spark_integration.plan import StatefulPlan
from spark_integration.run import TaskRun

OBSERVE: Final = "observe"
SPREAD: Final = "spread"

#: Where the sketches are kept: one row for each stream of the join.
SKETCHES: Final = StreamSchema(
    "@skew",
    pa.schema([("stream", pa.string())]),
    pa.schema([("batch", pa.int64()), *SKETCH]),
)

#: How much the rows of the micro-batch before still count.
_FADING: Final = 0.9


class KeyWatch:
    """Counts the keys of one bucket in one micro-batch."""

    def __init__(
        self, plan: StatefulPlan, store: MultimapStore, run: TaskRun, bucket: Bucket
    ) -> None:
        """Reads the sketches that the store has."""
        self._store = store
        self._batch_id = run.batch_id
        self._place = run.pinned.bucket_ids.index(bucket.number)
        self._codecs = {source.name: KeyCodec(source.key) for source in plan.inputs}
        self._sketches: dict[str, HeavyHitters] = {}
        self.last_batch: int | None = None
        """The micro-batch in which the bucket was called before; None: in none that it knows of."""
        for keys, rows in store.iterate(SKETCHES.name):
            for stream, row in zip(keys.column(0).to_pylist(), rows.to_pylist(), strict=True):
                sketch = self._sketches[stream] = HeavyHitters.from_row(row)
                sketch.fade(_FADING ** (run.batch_id - row["batch"]))
                self.last_batch = row["batch"]

    def passing(self, batches: Iterator[InputBatch]) -> Iterator[InputBatch]:
        """The batches as they are; rows that are stored here are counted."""
        for batch in batches:
            if batch.is_stored:
                self._count(batch)
            yield batch

    def keep(self) -> None:
        """Store the sketches, to be committed with the micro-batch."""
        rows = [{"batch": self._batch_id, **s.to_row()} for s in self._sketches.values()]
        names = [{"stream": stream} for stream in self._sketches]
        self._store.put(
            SKETCHES.name,
            pa.RecordBatch.from_pylist(rows, SKETCHES.rows),
            pa.RecordBatch.from_pylist(names, SKETCHES.key),
        )

    def seen(self) -> Seen:
        """For the next table of routes."""
        return Seen(self._place, dict(self._sketches))

    @property
    def rows(self) -> int:
        """That were stored here of late."""
        return int(sum(sketch.total for sketch in self._sketches.values()))

    def hottest(self) -> str | None:
        """The bucket's hottest key, for the metrics; None where no key stands out at all."""
        found = merged(self._sketches.values()).hottest(1)
        return packed(self._place, found[0].key, found[0].rows) if found else None

    def _count(self, batch: InputBatch) -> None:
        keys = self._codecs[batch.input].encode(batch.keys)
        sketch = self._sketches.setdefault(batch.input, HeavyHitters())
        sketch.add(keys.hashes, lambda position: _text(batch.keys, position))


def _text(keys: pa.RecordBatch, position: int) -> str:
    values: dict[str, Any] = keys.slice(position, 1).to_pylist()[0]
    return ", ".join(map(str, values.values()))
