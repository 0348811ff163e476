"""Count the keys of each bucket, for joins by one key with ``skew``.

A bucket keeps a sketch of the keys of each stream in a stream of its own store. So the sketch
survives a restart, and a repeated micro-batch counts its rows once. If hot keys are spread, the
bucket reports its counts to the next table of routes, and copies the rows that it lacks of the keys
it was added to.

Where tables must be made alike (``VersionedTables``), the rows of a micro-batch are counted by a
sample that does not depend on their order, and each attempt tells its commit beside its counts.
"""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.local.parts.row_text import shown_row
from lsmstate.joins.protocols import Role
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.skew.heavy_hitters import SKETCH, Hashes, HeavyHitters, merged
from lsmstate.joins.routing.skew.key_sample import KeySample
from lsmstate.joins.routing.skew.respread import Seen
from lsmstate.joins.routing.skew.spread import TOLD, RouteTable
from lsmstate.options import KIB
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.metrics.hottest_keys import BOTH, packed
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.skew.backfill import TAKEN_OVER, take_over
from lsmstate.spark_integration.tables.versioned_tables import VersionedTables, precedes_table
from lsmstate.store import MultimapStore, StreamSchema

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
#: Micro-batches after which nothing is left to speak of.
_LONGEST_FADING: Final = 1000
#: A longer key of three or more streams is not spread.
_LONGEST_KEY_BYTES: Final = 4 * KIB


def skew_streams(skew: str | None, streams: int) -> list[StreamSchema]:
    """Streams of the store beside those of the join."""
    if skew is None:
        return []
    return [SKETCHES, TAKEN_OVER] if skew == SPREAD and streams > 2 else [SKETCHES]


class KeyWatch:
    """Counts the keys of one bucket in one micro-batch."""

    def __init__(
        self, plan: StatefulPlan, store: MultimapStore, run: TaskRun, bucket: Bucket
    ) -> None:
        """Read the sketches in the store, and copy the rows that the bucket lacks
        (``take_over``)."""
        self._store = store
        self._run = run
        self._place = run.pinned.bucket_ids.index(bucket.number)
        self._codecs = {source.name: KeyCodec(source.key) for source in plan.inputs}
        self._sketches: dict[str, HeavyHitters] = {}
        self._keys: dict[int, bytes] = {}
        self._tells_keys = len(plan.inputs) > 2 and precedes_table(run.batch_id)
        self._tables = VersionedTables.of(plan, run)
        is_shared = self._tables is not None and self._tables.are_shared
        self._samples = (
            {source.name: KeySample(source.key) for source in plan.inputs} if is_shared else None
        )
        self._contents = {source.name: RowCodec(source.rows) for source in plan.inputs}
        table = None if self._tables is None else self._tables.table(run.batch_id)
        self._table = table if isinstance(table, RouteTable) else RouteTable()
        self.taken_rows = 0
        for keys, rows in store.iterate(SKETCHES.name):
            for stream, row in zip(keys.column(0).to_pylist(), rows.to_pylist(), strict=True):
                sketch = self._sketches[stream] = HeavyHitters.from_row(row)
                sketch.fade(_faded(run.batch_id - row["batch"]))
                called = row["batch"]
        if self._tables is not None and self._sketches:
            self._tables.check_is_known(called, run.batch_id)
        if TAKEN_OVER.name in store.streams:
            told = None if self._tables is None else self._tables.told
            self.taken_rows = take_over(plan, run, store, self._table, self._place, told)

    def passing(self, batches: Iterator[InputBatch]) -> Iterator[InputBatch]:
        """The batches unchanged. Rows that are stored in this bucket are counted."""
        for batch in batches:
            if batch.role != Role.PROBE:
                self._count(batch)
            yield batch

    def keep(self) -> None:
        """Store the sketches, which are committed with the micro-batch."""
        for stream, sample in (self._samples or {}).items():
            if len(sample.keys):
                sketch = self._sketches.setdefault(stream, HeavyHitters())
                sample.add_to(sketch, partial(_text, sample.keys))
                if self._tells_keys:
                    self._note(sample.keys, sample.of(sketch.hashes))
        rows = [{"batch": self._run.batch_id, **s.to_row()} for s in self._sketches.values()]
        names = [{"stream": stream} for stream in self._sketches]
        self._store.put(
            SKETCHES.name,
            pa.RecordBatch.from_pylist(rows, SKETCHES.rows),
            pa.RecordBatch.from_pylist(names, SKETCHES.key),
        )

    def publish(self, pointer: str) -> None:
        """Where keys are spread, report counts and commit to the next table of routes."""
        if self._tables is not None:
            is_alike = self._samples is not None
            own, commit = (TOLD, pointer) if is_alike else (pointer, None)
            seen = Seen(self._place, dict(self._sketches), own, commit, self._keys)
            self._tables.publish(seen, self._run.batch_id, self._run.attempt)

    @property
    def rows(self) -> int:
        """Rows that were recently stored in this bucket."""
        return int(sum(sketch.total for sketch in self._sketches.values()))

    def hottest(self) -> str | None:
        """The bucket's hottest key, for the metrics; None if no key stands out."""
        found = merged(self._sketches.values()).hottest(1)
        if not found:
            return None
        known = self._table[found[0].hash]
        spread = "" if known is None else known.stream or BOTH
        return packed(found[0].key, found[0].rows, spread)

    def _count(self, batch: InputBatch) -> None:
        hashes = self._codecs[batch.input].encode(batch.keys).hashes
        if self._samples is not None:
            contents = content_hashes(batch.rows, self._contents[batch.input])
            self._samples[batch.input].add(contents, hashes, batch.keys)
            return
        sketch = self._sketches.setdefault(batch.input, HeavyHitters())
        sketch.add(hashes, lambda position: _text(batch.keys, position))
        if self._tells_keys:
            self._remember(batch.keys, hashes, sketch)

    def _remember(self, keys: pa.RecordBatch, hashes: Hashes, sketch: HeavyHitters) -> None:
        """Keep the values of counted keys that are in this batch. Keys that no sketch counts any
        more are forgotten."""
        distinct, first = np.unique(hashes, return_index=True)
        is_counted = np.isin(distinct, sketch.hashes)
        self._note(
            keys, zip(distinct[is_counted].tolist(), first[is_counted].tolist(), strict=True)
        )
        counted = {number for each in self._sketches.values() for number in each.hashes.tolist()}
        self._keys = {number: key for number, key in self._keys.items() if number in counted}

    def _note(self, keys: pa.RecordBatch, found: Iterable[tuple[int, int]]) -> None:
        """Keep the values of keys by their hashes, which stand at some positions."""
        for number, position in found:
            if number not in self._keys:
                # The same bytes wherever the row stood.
                values = [pa.repeat(column[position], 1) for column in keys.columns]
                row = pa.RecordBatch.from_arrays(values, schema=keys.schema)
                key = bytes(row.serialize())
                if len(key) <= _LONGEST_KEY_BYTES:
                    self._keys[number] = key


def _faded(batches: int) -> float:
    """What is left after so many micro-batches: by products, which are the same everywhere."""
    return math.prod([_FADING] * min(batches, _LONGEST_FADING))


def _text(keys: pa.RecordBatch, position: int) -> str:
    return ", ".join(map(str, shown_row(keys, position).values()))
