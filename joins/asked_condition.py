"""What a join in plain Python is asked beside its keys: computed columns, and conditions that
filter the results of inner joins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lsmstate.joins.conditions.classify import split_condition, with_computed
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.computed import ComputedColumns
from lsmstate.joins.conditions.join_tree import bound_text
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.specs.changes import operation_columns
from lsmstate.joins.specs.event_time import time_bounds
from lsmstate.joins.specs.one_key import Condition, output_names
from lsmstate.joins.specs.typed_condition import How, typed_condition


@dataclass(frozen=True)
class AskedCondition:
    """Made by ``of``."""

    streams: Mapping[str, pa.Schema]
    """The columns of the streams, with computed ones behind."""
    on: Condition
    """Keys, time intervals and joins by type: what specs are made of."""
    computed: ComputedColumns
    filters: tuple[PairCondition, ...]
    """What results of inner joins have to keep beside that."""
    names: Mapping[str, Mapping[str, str]]
    """Of the columns of each stream, their names in a result."""

    @classmethod
    def of(
        cls,
        streams: Mapping[str, pa.Schema],
        on: Condition,
        how: How,
        changes: Mapping[str, str] | None,
    ) -> "AskedCondition":
        """InvalidArgumentError names what does not fit, a function that is not known among it."""
        computed = ComputedColumns({})
        if isinstance(on, str):
            columns = {name: schema.names for name, schema in streams.items()}
            on, computed = with_computed(on, columns, streams)
        streams = computed.schemas(streams)
        columns = {name: schema.names for name, schema in streams.items()}
        typed = typed_condition(columns, on, how)
        if typed.tree is not None or not isinstance(typed.on, str):
            return cls(streams, on, computed, (), {})
        condition = split_condition(typed.on, columns)
        operations = operation_columns(streams, changes or {})
        stored = {
            name: pa.schema([field for field in schema if field.name != operations.get(name)])
            for name, schema in streams.items()
        }
        bounds, rest = time_bounds(stored, condition.rest)
        filters = tuple(PairCondition.of(conjunct, columns) for conjunct in rest)
        for each in filters:
            each.check(stored)
        on = " AND ".join([condition.keys, *map(bound_text, bounds)])
        shown = {name: schema.names for name, schema in stored.items()}
        names = {
            name: dict(zip(shown[name], own, strict=True))
            for name, own in output_names(shown).items()
        }
        return cls(streams, on, computed, filters, names)

    @classmethod
    def unfiltered(cls, streams: Mapping[str, pa.Schema], on: Condition) -> "AskedCondition":
        """Of a join that evaluates all of its condition itself."""
        return cls(streams, on, ComputedColumns({}), (), {})

    @classmethod
    def beside(
        cls, streams: Mapping[str, pa.Schema], on: Condition, rest: Sequence[str]
    ) -> "AskedCondition":
        """Of a join that evaluates its condition but for ``rest``. Raises as ``of``."""
        columns = {name: schema.names for name, schema in streams.items()}
        filters = tuple(PairCondition.of(conjunct, columns) for conjunct in rest)
        for each in filters:
            each.check(streams)
        names = {
            name: dict(zip(columns[name], own, strict=True))
            for name, own in output_names(columns).items()
        }
        return cls(streams, on, ComputedColumns({}), filters, names)

    def shown(self, results: Results) -> Results:
        """The results that keep the filters, without computed columns."""
        if self.filters:
            results = results.keeping(self.filters, self._named)
        if self.computed.names:
            results = results.through(self.computed.dropped)
            results.schema = self.shown_schema(results.schema)
        return results

    def shown_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a result without computed ones."""
        return pa.schema([field for field in schema if field.name not in self.computed.names])

    def _named(self, column: Column) -> str:
        return self.names[column.stream][column.name]
