"""StatefulPlan: all that the workers must know of one operator.

It is a value and travels inside the functions that Spark sends to its workers.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from lsmstate.joins.routing.shares import JoinGraph
from lsmstate.options import Options
from lsmstate.spark_integration.plan.storage import Storage
from lsmstate.store import StreamSchema

#: A pinned setting, and its value where rows with null keys are kept.
NULL_KEYS: Final = "null keys"
KEEP: Final = "keep"


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
    """Whether rows with a null in their key are routed and stored like others, or left out."""
    output_mode: str
    """Spark's: ``append`` or ``update``."""
    options: Options
    """Of every attempt's store; may differ from start to start."""
    backend: str
    buckets: int | None
    """As asked for; None adopts what the checkpoint pins, or takes the default."""
    default_buckets: int
    state_dir: str | None
    graph: JoinGraph | None = None
    """Who holds which key, where the inputs have none in common; then rows go by shares."""
    adopted: Mapping[str, Any] = field(default_factory=dict)
    """What the first start pins and later ones take over, whatever they would choose now."""
    explanation: str = ""
    """For people: how the operator will work."""
    routes_null_keys: frozenset[str] = frozenset()
    """Inputs whose rows with null keys, which match nothing, go to a bucket all the same."""
    matches_by_part_of_keys: bool = False
    """Whether a row with a null in one key may match others by another one."""
    storage: Storage = field(default_factory=Storage)
    """How that, or the checkpoint location, is reached."""
    storage_key: str = ""
    """Under which the process that built the plan keeps it."""
    watches_time: bool = False
    """Whether buckets are called with each new watermark, also where they have no rows."""
    result_time: str | None = None
    """The column of the result that has a true watermark."""
    joins: tuple["StatefulPlan", ...] = ()
    """Where it serves several joins: the plan of each, of which its inputs are routed."""
    marks_copies: bool = False
    """Whether of a row that lies in several buckets all but one know that they are copies."""
    parts: tuple[pa.Schema, ...] = ()
    """Whose columns, side by side, are those of the result, where the function may give picks of
    their rows instead of results."""
    skew: str | None = None
    """Whether hot keys are counted ("observe"), and spread over buckets too ("spread")."""

    @property
    def memory_bytes(self) -> int:
        """The cap of what the state of one running task may hold."""
        return self.options.memory_bytes

    def wanted(self) -> "Wanted":
        """What the checkpoint must agree with."""
        return Wanted(
            dict(self.settings),
            self.buckets,
            self.default_buckets,
            self.state_dir,
            self.operator,
            dict(self.adopted),
            self.explanation,
            self.storage_key,
            self.watches_time,
            self.result_time,
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

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Wanted":
        return cls(**json.loads(text))
