"""Watch what a bucket stores, for the next table of its routing.

What the routing's observer keeps lies in a stream of the bucket's own store. So it is committed
with the rows it is about, and survives a restart.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import pyarrow as pa

from lsmstate.joins.protocols import ObservingRouting, Role
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import OBSERVED, StatefulPlan
from lsmstate.spark_integration.tables.versioned_tables import VersionedTables, precedes_table
from lsmstate.store import MultimapStore

_NAME: Final = pa.RecordBatch.from_pylist([{"name": "observed"}], OBSERVED.key)


class TableWatch:
    """Watches one bucket in one micro-batch."""

    def __init__(
        self, plan: StatefulPlan, store: MultimapStore, run: TaskRun, bucket: Bucket
    ) -> None:
        """Read what was kept. CorruptionError if a table by which the bucket has rows is gone."""
        tables = VersionedTables.of(plan, run)
        assert tables is not None
        routing = plan.routing
        assert isinstance(routing, ObservingRouting)
        self._tables, self._store, self._run = tables, store, run
        kept: dict[str, Any] | None = None
        for _, rows in store.iterate(OBSERVED.name):
            for row in rows.to_pylist():
                kept = json.loads(row["kept"])
                tables.check_is_known(row["batch"], run.batch_id)
        self._observer = routing.observer(
            bucket.place,
            tables.table(run.batch_id),
            kept,
            is_last=precedes_table(run.batch_id),
            watermark_us=bucket.watermark_us,
        )

    @classmethod
    def of(
        cls, plan: StatefulPlan, store: MultimapStore, run: TaskRun, bucket: Bucket
    ) -> Self | None:
        """Watch a bucket; None: there is nothing to watch for."""
        if not isinstance(plan.routing, ObservingRouting) or bucket.place < 0:
            return None
        if VersionedTables.of(plan, run) is None:
            return None
        return cls(plan, store, run, bucket)

    @property
    def counts(self) -> Mapping[str, int]:
        """What the metrics show of the table, by name."""
        return self._observer.counts

    def passing(self, batches: Iterator[InputBatch]) -> Iterator[InputBatch]:
        """The batches unchanged. Rows that are stored in this bucket are noted."""
        for batch in batches:
            if batch.role != Role.PROBE:
                self._observer.add(batch.input, batch.rows, batch.keys, Role(batch.role))
            yield batch

    def keep(self) -> None:
        """Store what the next watch needs, which is committed with the micro-batch."""
        kept = json.dumps(self._observer.kept())
        row = {"batch": self._run.batch_id, "kept": kept}
        self._store.put(OBSERVED.name, pa.RecordBatch.from_pylist([row], OBSERVED.rows), _NAME)

    def publish(self) -> None:
        """Report what was seen to the next table."""
        self._tables.publish(self._observer.observed(), self._run.batch_id, self._run.attempt)
