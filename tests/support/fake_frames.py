"""A multiway_join by any condition without a JVM: its plan from frames that only have columns, and
what its buckets do with the rows that its routing sends them."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.options import SKEW, State
from lsmstate.joins.protocols import Role, Routing
from lsmstate.opening import open_store
from lsmstate.spark_integration.columns.schemas import WATERMARK_METADATA
from lsmstate.spark_integration.joins import shown_columns, theta
from lsmstate.spark_integration.joins.theta import AskedTime, ThetaRequest, any_condition
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.plan.storage import Storage

SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


class Conf:
    """The settings of a session."""

    def get(self, name: str, default: Any = None) -> Any:
        return SETTINGS.get(name, default)


class Session:
    """As much of a session as a plan asks for."""

    conf = Conf()


@dataclass
class Frame:
    """A streaming DataFrame without rows."""

    schema: T.StructType
    isStreaming: bool = True  # noqa: N815 (Spark's name)
    sparkSession: Session = field(default_factory=Session)  # noqa: N815

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)


def frame_of(rows: pa.Schema, watermark: str | None = None) -> Any:
    """A frame with these columns, one of which may have a watermark."""
    found = from_arrow_schema(rows, prefer_timestamp_ntz=True)
    for each in found:
        if each.name == watermark:
            each.metadata = {WATERMARK_METADATA: 0}
    return Frame(found)


@dataclass
class Operator:
    """What a stateful operator would be made of."""

    plan: StatefulPlan
    function: Any
    output: T.StructType


def operator_of(
    monkeypatch: pytest.MonkeyPatch,
    streams: Mapping[str, Any],
    on: str,
    *,
    how: Any = "inner",
    emit: str = "append",
    changes: Mapping[str, str] | None = None,
    skew: Any = SKEW,
    buckets: int = 3,
    late: str = "drop",
) -> Operator | None:
    """The operator of a join by any condition; None if it is one by keys."""
    made: list[Operator] = []

    def stateful(plan: StatefulPlan, inputs: Any, function: Any, output: T.StructType) -> Any:
        made.append(Operator(plan, function, output))
        return made[-1]

    def unfiltered(joined: Any, columns: Any, conditions: Any, **_: Any) -> Any:
        assert not conditions
        return joined

    for module in (theta, shown_columns):
        monkeypatch.setattr(module, "stateful_operator", stateful)
    monkeypatch.setattr(theta, "filtered", unfiltered)
    asked = any_condition(streams, on, how, emit, changes, skew, {})
    if asked is None:
        return None
    state = State(buckets=buckets)
    options = OperatorOptions(state.store_options({}), "lsm", buckets, None, Storage())
    ThetaRequest(
        *(streams, asked, emit, changes, "count", options, skew),
        *({}, None, AskedTime({}, late, None, None)),
    ).joined("multiway_join")
    return made[0]


class Buckets:
    """The buckets of an operator, over stores that are closed and opened again."""

    def __init__(self, operator: Operator, home: Path) -> None:
        asked = operator.plan
        assert asked.buckets is not None
        plan = asked.settled(asked.buckets, asked.adopted)
        self._operator, self._plan, self._home = operator, plan, home
        self._routing: Routing = plan.routing
        self._micro_batch = -1
        self._table = getattr(self._routing, "initial_table", None)
        #: What the metrics would have, of all buckets and micro-batches.
        self.counts: dict[str, int] = {}

    def micro_batch(
        self, rows: Mapping[str, pa.RecordBatch], rng: random.Random, watermark_us: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The results of one micro-batch."""
        plan = self._plan
        self._micro_batch += 1
        assert plan.buckets is not None
        arrived: list[list[InputBatch]] = [[] for _ in range(plan.buckets)]
        for source in plan.inputs:
            if source.name not in rows:
                continue
            batch = rows[source.name]
            keys = source.keys_of(batch)
            router = self._routing.router(source.name, source.rows, source.key, self._table)
            routed = router.route(batch, keys)
            for role in Role:
                for bucket in range(plan.buckets):
                    here = routed.buckets == bucket
                    if routed.roles is not None:
                        here &= routed.roles == role
                    elif role != Role.STORE:
                        continue
                    places = routed.positions[here]
                    if len(places):
                        some = batch.take(pa.array(places))
                        cut = rng.randint(0, some.num_rows)
                        for part in (some.slice(0, cut), some.slice(cut)):
                            if part.num_rows:
                                keys = source.keys_of(part)
                                arrived[bucket].append(InputBatch(source.name, part, keys, role))
        for number, batches in enumerate(arrived):
            if not batches and not plan.watches_time:
                continue
            yield from self._called(number, batches, watermark_us)

    def _called(
        self, number: int, batches: list[InputBatch], watermark_us: int | None
    ) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        bucket = Bucket(
            number,
            self._micro_batch,
            plan.output,
            watermark_us,
            place=number,
            buckets=plan.buckets or 1,
        )
        with open_store(self._home / str(number), plan.state) as store:
            for found in self._operator.function(bucket, iter(batches), store):
                if isinstance(found, Picked):
                    yield from found.made(Gatherer(list(plan.parts), plan.output), 1 << 20)
                else:
                    yield found
            store.commit()
        for name, count in bucket.tally.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
