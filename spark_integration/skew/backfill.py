"""Backfill: a bucket that is added to a hot key of several streams copies its earlier rows.

- A table of routes that adds buckets to a key names a commit of the owner: what the owner had
  committed by the micro-batch before the table's first one. It may be of another attempt than the
  one that Spark kept; both have the same rows.
- Tasks that route by the table call each added bucket, with rows or without. So it copies the rows
  in the first micro-batch that has a task. The owner was not called in between, so its commits of
  that micro-batch are still there (``lsmstate.lsm.retained_files``), as long as Spark may go back
  to the backfill.
- The bucket's own store records the backfill, and commits that record with the rows. A repeated
  micro-batch reads the same commit again.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.errors import CorruptionError
from lsmstate.joins.routing.skew.spread import TOLD, RouteTable, SpreadKey
from lsmstate.opening import open_commit
from lsmstate.options import MIB
from lsmstate.spark_integration.checkpoint.attempt import bucket_files
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.store import MultimapStore, StreamSchema

#: Of which keys a bucket has the owner's rows, and since when.
TAKEN_OVER: Final = StreamSchema(
    "@taken", pa.schema([("hash", pa.int64())]), pa.schema([("batch", pa.int64())])
)

#: Rows are copied in pieces of this, and under a small cap of that part of it.
_PIECE_BYTES: Final = 1 * MIB
_PIECE_SHARE: Final = 64


#: Tells what a bucket has committed by a micro-batch, before which Spark may go back to others.
Told = Callable[[int, int], str | None]


def take_over(
    plan: StatefulPlan,
    run: TaskRun,
    store: MultimapStore,
    table: RouteTable,
    place: int,
    told: Told | None = None,
) -> int:
    """Copy the rows that the n-th bucket lacks of its keys into its store. ``told`` is asked where
    the table does not name the owner's commit.

    Returns:
        The number of rows.

    Raises:
        CorruptionError: The owner's files are damaged, or the bucket should have had the rows
            already.

    Cost:
        A look at its own store, and the rows. Memory for a piece of them and for a second store.
    """
    mine = [key for key in table.keys if key.stream is not None and place in key.buckets[1:]]
    if not mine:
        return 0
    numbers = np.array([key.hash for key in mine], np.uint64).view(np.int64)
    known = store.exists(TAKEN_OVER.name, pa.record_batch([numbers], schema=TAKEN_OVER.key))
    lacking = [key for key, is_known in zip(mine, known, strict=True) if not is_known]
    taken = 0
    for key in lacking:
        for source, keys, rows in _owners_rows(plan, run, key, place, told):
            taken += store.append(source.name, rows, keys)
    if lacking:
        hashes = np.array([key.hash for key in lacking], np.uint64).view(np.int64)
        batches = np.full(len(lacking), run.batch_id, np.int64)
        store.append(
            TAKEN_OVER.name,
            pa.record_batch([batches], schema=TAKEN_OVER.rows),
            pa.record_batch([hashes], schema=TAKEN_OVER.key),
        )
    return taken


def _owners_rows(
    plan: StatefulPlan, run: TaskRun, key: SpreadKey, place: int, told: Told | None
) -> Iterator[tuple[InputPlan, pa.RecordBatch, pa.RecordBatch]]:
    """The earlier rows of the streams that are not spread: input, keys, rows."""
    addition = key.addition
    if addition is None or place not in addition.buckets:
        raise CorruptionError(
            f"bucket {run.pinned.bucket_ids[place]} was added to hot key {key.key} before "
            f"micro-batch {run.batch_id} and lacks the rows of that key; restore the checkpoint "
            "from a copy",
            run.place.where,
        )
    owner_place = key.buckets[0]
    pointer: str | None = addition.pointer
    if pointer == TOLD:
        pointer = None if told is None else told(owner_place, addition.batch)
    if pointer is None:
        raise CorruptionError(
            f"says no more what bucket {run.pinned.bucket_ids[owner_place]} had committed by "
            f"micro-batch {addition.batch}, which hot key {key.key} was spread from; restore the "
            "checkpoint from a copy",
            run.place.where,
        )
    directory = bucket_files(run, run.pinned.bucket_ids[owner_place])
    piece_bytes = min(_PIECE_BYTES, plan.memory_bytes // _PIECE_SHARE)
    with closing(open_commit(directory, pointer, options=plan.options)) as owner:
        for source in plan.inputs:
            if source.name == key.stream:
                continue
            one = pa.ipc.read_record_batch(pa.py_buffer(addition.key), source.key)
            probe = owner.probe(source.name, one)
            for found in probe.fetch(np.zeros(1, np.int64), piece_bytes):
                yield source, one.take(pa.array(found.positions)), found.rows
