"""Inner joins as stateful functions: UMJoin (one key) or GraphJoin (several) over a
bucket's store."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import pyarrow as pa

from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.specs.multi_key import GraphSpec, KeyClass
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.spark_integration.plan.bucket import Bucket, BucketFunction, InputBatch
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.stateful_plan import InputPlan
from lsmstate.store import MultimapStore


@dataclass(frozen=True)
class CoercedSpec(JoinSpec):
    """A JoinSpec whose keys Spark has cast to the types in which its ``=`` compares them."""

    coerced: pa.Schema

    @classmethod
    def of(cls, inputs: Inputs) -> "CoercedSpec":
        rows = {plan.name: plan.rows for plan in inputs.plans}
        keys = {name: tuple(key.columns[name].column for key in inputs.keys) for name in rows}
        return cls(rows, keys, inputs.key_schema)

    @cached_property
    def key_schema(self) -> pa.Schema:
        return self.coerced


def coerced_graph(inputs: Inputs) -> GraphSpec:
    """A GraphSpec whose keys Spark has cast. Keys that had to be cast are stored beside the row."""
    classes = []
    for number, key in enumerate(inputs.keys):
        columns = {}
        for plan in inputs.plans:
            if plan.name in key.columns:
                position = plan.key_positions[plan.key.get_field_index(f"k{number}")]
                columns[plan.name] = _stored(plan).names[position]
        written = {name: column.column for name, column in key.columns.items()}
        classes.append(KeyClass(columns, key.arrow, written))
    streams = {plan.name: _stored(plan) for plan in inputs.plans}
    return GraphSpec(streams, tuple(classes), {p.name: len(p.rows) for p in inputs.plans})


def condition_of(inputs: Inputs) -> str:
    """The equalities in one form, however they were written."""
    return " AND ".join(
        " = ".join(f"{name}.{column.column}" for name, column in key.columns.items())
        for key in inputs.keys
    )


def picking_join_function(spec: JoinSpec) -> BucketFunction:
    """``join_function`` for a plan whose ``parts`` are the rows of the streams."""

    def join(
        _bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[Picked]:
        joined = UMJoin(spec, store, probe_order=learned(str(spec.keys)))
        for batch in batches:
            yield from joined.picked(batch.input, batch.rows, batch.keys, is_stored=batch.is_stored)

    return join


def join_function(spec: JoinSpec) -> BucketFunction:
    """The stateful function: store each batch in its stream, probe the others, yield the
    results."""

    def join(
        _bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch]:
        joined = UMJoin(spec, store, probe_order=learned(str(spec.keys)))
        for batch in batches:
            found = joined.process(batch.input, batch.rows, batch.keys, is_stored=batch.is_stored)
            yield from found

    return join


def graph_join_function(spec: GraphSpec, inputs: Inputs) -> BucketFunction:
    """The stateful function of a join by several keys."""
    plans: Mapping[str, InputPlan] = {plan.name: plan for plan in inputs.plans}

    def join(
        _bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch]:
        joined = GraphJoin(spec, store, probe_order=learned(str(spec.classes)))
        for batch in batches:
            stored = stored_rows(plans[batch.input], batch, spec.streams[batch.input])
            yield from joined.process(batch.input, stored)

    return join


def picking_graph_join_function(spec: GraphSpec, inputs: Inputs) -> BucketFunction:
    """``graph_join_function`` for a plan whose ``parts`` are the columns of the results."""
    plans: Mapping[str, InputPlan] = {plan.name: plan for plan in inputs.plans}

    def join(
        _bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[Picked]:
        joined = GraphJoin(spec, store, probe_order=learned(str(spec.classes)))
        for batch in batches:
            stored = stored_rows(plans[batch.input], batch, spec.streams[batch.input])
            yield from joined.picked(batch.input, stored)

    return join


@lru_cache(maxsize=64)
def learned(_join: str) -> ProbeOrder:
    """The order of probes that this worker has learned. A call for a bucket continues where the
    last call of the same join ended."""
    return ProbeOrder()


def stored_rows(plan: InputPlan, batch: InputBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows, with the keys that were cast beside them, as ``coerced_graph`` has them."""
    places = [k for k, p in enumerate(plan.key_positions) if p >= len(plan.rows)]
    columns = [*batch.rows.columns, *(batch.keys.column(k) for k in places)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _stored(plan: InputPlan) -> pa.Schema:
    """The columns of a routed row. Keys that were cast get names that the row does not have."""
    taken = set(plan.rows.names)
    fields = list(plan.rows)
    for field in plan.cast_keys:
        name = field.name
        while name in taken:
            name += "_"
        taken.add(name)
        fields.append(field.with_name(name))
    return pa.schema(fields)
