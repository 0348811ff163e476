"""StatefulPlan: all that the workers must know of one operator.

It is a value and travels inside the functions that Spark sends to its workers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from lsmstate.joins.protocols import (
    ObservingRouting,
    Routing,
    TableRouting,
    candidates_of,
    makes_tables_alike,
)
from lsmstate.joins.routing.hash_router import HashRouting
from lsmstate.options import Options
from lsmstate.spark_integration.plan.storage import Storage
from lsmstate.store import StreamSchema

#: A pinned setting, and its value where rows with null keys are kept.
NULL_KEYS: Final = "null keys"
KEEP: Final = "keep"
#: Under which the description of the join stands among what later starts adopt.
JOIN: Final = "join"
#: The stream of a bucket's store, with one key, for what its routing's observer keeps.
OBSERVED: Final = StreamSchema(
    "@observed",
    pa.schema([("name", pa.string())]),
    pa.schema([("batch", pa.int64()), ("kept", pa.string())]),
)


def observed_streams(routing: Routing) -> list[StreamSchema]:
    """The stream for observers, if one of the routings that it may settle as has them."""
    return (
        [OBSERVED] if any(isinstance(r, ObservingRouting) for r in candidates_of(routing)) else []
    )


@dataclass(frozen=True)
class InputPlan:
    """One input: its rows, and the positions of its key columns in a routed row."""

    name: str
    rows: pa.Schema
    key: pa.Schema
    key_positions: tuple[int, ...]
    """Per key column its position in ``routed``: a column of the rows, or one that was cast.
    An input of a join by several keys has those it holds."""
    cast_keys: pa.Schema
    """Key columns that travel beside the row, because the row's own column has another type."""
    pinned: tuple[str, ...]
    """Names and types of the columns, as the checkpoint has them."""

    @property
    def routed(self) -> pa.Schema:
        """What a frame of this input holds."""
        return pa.schema([*self.rows, *self.cast_keys])

    def keys_of(self, routed: pa.RecordBatch) -> pa.RecordBatch:
        columns = [routed.column(position) for position in self.key_positions]
        return pa.RecordBatch.from_arrays(columns, schema=self.key)

    def rows_of(self, routed: pa.RecordBatch) -> pa.RecordBatch:
        columns = routed.columns[: len(self.rows)]
        return pa.RecordBatch.from_arrays(columns, schema=self.rows)

    @cached_property
    def stored(self) -> pa.Schema:
        """The rows, and the keys that were cast under names that the rows do not have."""
        taken = set(self.rows.names)
        fields = list(self.rows)
        for cast in self.cast_keys:
            name = cast.name
            while name in taken:
                name += "_"
            taken.add(name)
            fields.append(cast.with_name(name))
        return pa.schema(fields)

    def with_cast_keys(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the columns of ``stored``."""
        places = [k for k, place in enumerate(self.key_positions) if place >= len(self.rows)]
        columns = [*rows.columns, *(keys.column(k) for k in places)]
        return pa.RecordBatch.from_arrays(columns, schema=self.stored)

    def marks_of(self, routed: pa.RecordBatch) -> pa.RecordBatch | None:
        """What the router wrote beside each row; None: nothing."""
        marks = range(len(self.rows) + len(self.cast_keys), routed.num_columns)
        return routed.select(list(marks)) if marks else None


@dataclass(frozen=True)
class StatefulPlan:
    """An operator, as one of the public functions built it."""

    operator: str
    """The name of that function, for messages."""
    inputs: tuple[InputPlan, ...]
    state: tuple[StreamSchema, ...]
    """The streams of a bucket's store."""
    output: pa.Schema
    """The columns of the result, as they travel from the stateful node to unpack."""
    settings: Mapping[str, Any]
    """What the checkpoint pins, in the operator's own words, beside the buckets."""
    keeps_null_keys: bool
    """Whether rows with a null in their key are stored like others."""
    output_mode: str
    """Spark's: ``append`` or ``update``."""
    options: Options
    """Of every attempt's store; may differ from start to start."""
    backend: str
    buckets: int | None
    """As asked for; None adopts what the checkpoint pins, or takes the default."""
    default_buckets: int
    state_dir: str | None
    routing: Routing = field(default_factory=HashRouting)
    """Which buckets see a row."""
    join: Mapping[str, Any] = field(default_factory=dict)
    """The join as ``kinds.pinned`` describes it, for a rescale; empty: it is none of ours."""
    explanation: str = ""
    """For people: how the operator will work."""
    storage: Storage = field(default_factory=Storage)
    """How that, or the checkpoint location, is reached."""
    storage_key: str = ""
    """Under which the process that built the plan keeps it."""
    counters: tuple[str, ...] = ()
    """The join's own counters that the metrics show."""
    watches_time: bool = False
    """Whether buckets are called with each new watermark, also where they have no rows."""
    result_time: str | None = None
    """The column of the result that has a true watermark."""
    parts: tuple[pa.Schema, ...] = ()
    """Whose columns, side by side, are those of the result, where the function may give picks of
    their rows instead of results."""
    skew: str | None = None
    """Whether hot keys are counted ("observe"), and spread over buckets too ("spread")."""
    left_open: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Settings that the caller left to us, and their values among which the first start chooses."""

    @property
    def memory_bytes(self) -> int:
        """The cap of what the state of one running task may hold."""
        return self.options.memory_bytes

    @property
    def adopted(self) -> dict[str, Any]:
        """What the first start pins and later ones take over, whatever they would choose now."""
        return {**self.routing.adopted, **({JOIN: dict(self.join)} if self.join else {})}

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "StatefulPlan":
        """The plan as the first start fixed it: its routing, and the streams that this needs."""
        routing = self.routing.settled(buckets, adopted)
        unused = [] if observed_streams(routing) else [OBSERVED]
        state = tuple(stream for stream in self.state if stream not in unused)
        return replace(self, routing=routing, state=state)

    def framed(self, source: InputPlan) -> pa.Schema:
        """What a frame of an input holds: what is routed, and the marks beside it."""
        return pa.schema([*source.routed, *self.routing.marks])

    def wanted(self) -> "Wanted":
        """What the checkpoint must agree with."""
        tabled = [each for each in candidates_of(self.routing) if isinstance(each, TableRouting)]
        return Wanted(
            dict(self.settings),
            self.buckets,
            self.default_buckets,
            self.state_dir,
            self.operator,
            self.adopted,
            self.explanation,
            self.storage_key,
            self.watches_time,
            self.result_time,
            bool(tabled),
            not all(map(makes_tables_alike, tabled)),
            {name: list(known) for name, known in self.left_open.items()},
        )


@dataclass(frozen=True)
class Wanted:
    """The settings of an operator that its checkpoint pins. They travel inside Spark's plan as
    JSON."""

    settings: dict[str, Any]
    buckets: int | None
    default_buckets: int
    state_dir: str | None
    operator: str = "multiway_join"
    adopted: dict[str, Any] = field(default_factory=dict)
    explanation: str = ""
    storage_key: str = ""
    watches_time: bool = False
    result_time: str | None = None
    has_tables: bool = False
    """Whether rows are routed by tables, which count by the start of the query."""
    needs_local_tables: bool = False
    """Whether these have one maker, which a local directory lets find."""
    left_open: dict[str, list[str]] = field(default_factory=dict)
    """Settings that are adopted rather than compared, if their value is one of these."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Wanted":
        return cls(**json.loads(text))
