"""malformed="side": malformed rows leave a join, and are kept in its state.

Like late rows (``late_rows``), they are part of an attempt's commit, and can be read as of any
micro-batch. A malformed row is stored in one bucket at most, so it is kept once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.protocols import Role
from lsmstate.spark_integration.joins.late_rows import BATCH_COLUMN, SIDE
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.store import MultimapStore, StreamSchema

#: What a join pins that keeps them: of which inputs.
MALFORMED_KEPT: Final = "malformed rows kept"
_KEY: Final = pa.schema([("micro_batch", pa.int64())])


@dataclass(frozen=True)
class MalformedRows:
    """What becomes of malformed rows; made by ``MalformedRows.of``."""

    streams: Mapping[str, StreamSchema]
    """By input, the stream of the store that keeps them; none unless ``malformed="side"``."""

    @classmethod
    def of(cls, inputs: Sequence[InputPlan], malformed: str, backend: str) -> "MalformedRows":
        """The malformed rows of a join. InvalidArgumentError if they could not be read, or an input
        has a column that is added."""
        if malformed != SIDE:
            return NO_MALFORMED_ROWS
        if backend != "lsm":
            raise InvalidArgumentError(
                f"malformed='side' with backend={backend!r}: malformed rows are kept in the "
                "state, and only the state of backend 'lsm' can be read; choose that backend, or "
                "malformed='skip'"
            )
        return cls({plan.name: _stream(plan) for plan in inputs})

    def added_to(self, plan: StatefulPlan) -> StatefulPlan:
        """The plan with their streams. InvalidArgumentError if a name is taken."""
        taken = {stream.name for stream in plan.state}
        for name, stream in self.streams.items():
            if stream.name in taken:
                raise InvalidArgumentError(
                    f"malformed='side' keeps the malformed rows of {name!r} in a stream "
                    f"{stream.name!r}, and an input has that name; rename that input"
                )
        kept = ", ".join(repr(stream.name) for stream in self.streams.values())
        told = f"\nmalformed rows are kept in {kept}" if kept else ""
        return replace(
            plan,
            state=(*plan.state, *self.streams.values()),
            settings={**plan.settings, MALFORMED_KEPT: list(self.streams) or None},
            explanation=plan.explanation + told,
        )

    def keep(
        self,
        bucket: Bucket,
        store: MultimapStore,
        batch: InputBatch,
        malformed: pa.RecordBatch | None,
    ) -> None:
        """Store malformed rows of a batch, whose results must be read before."""
        stream = self.streams.get(batch.input)
        if stream is None or malformed is None or not malformed.num_rows:
            return
        if batch.role != Role.STORE:
            return
        batches = pa.repeat(pa.scalar(bucket.batch_id, pa.int64()), malformed.num_rows)
        rows = pa.RecordBatch.from_arrays([*malformed.columns, batches], schema=stream.rows)
        store.append(stream.name, rows, pa.RecordBatch.from_arrays([batches], schema=_KEY))


#: Of a join that keeps none.
NO_MALFORMED_ROWS: Final = MalformedRows({})


def malformed_stream(name: str) -> str:
    """The stream of the store with the malformed rows of an input."""
    return f"{name} (malformed)"


def _stream(plan: InputPlan) -> StreamSchema:
    taken = {name.lower(): name for name in plan.rows.names}
    if BATCH_COLUMN in taken:
        raise InvalidArgumentError(
            f"malformed='side' adds a column {BATCH_COLUMN!r} to malformed rows, and stream "
            f"{plan.name!r} has a column {taken[BATCH_COLUMN]!r}; rename it before the join"
        )
    rows = pa.schema([*plan.rows, (BATCH_COLUMN, pa.int64())])
    return StreamSchema(malformed_stream(plan.name), _KEY, rows)
