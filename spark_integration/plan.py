"""JoinPlan: all that the workers must know of one join; a value that travels inside functions."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from joins.spec import JoinSpec

FORMAT_VERSION: Final = 1


@dataclass(frozen=True)
class CoercedSpec(JoinSpec):
    """A JoinSpec whose keys Spark casts before they reach us, to the types of its own ``=``."""

    coerced: pa.Schema

    @cached_property
    def key_schema(self) -> pa.Schema:
        return self.coerced


@dataclass(frozen=True)
class StreamPlan:
    """One input: the rows that are stored, and where in a routed row its key columns stand."""

    name: str
    rows: pa.Schema
    key: pa.Schema
    key_positions: tuple[int, ...]
    """Per key column its position in ``routed``: a stored column, or one that was cast."""
    cast_keys: pa.Schema
    """Key columns that travel beside the row, because the stored column has another type."""
    pinned: tuple[str, ...]
    """Names and types of the columns, as the checkpoint has them."""

    @property
    def routed(self) -> pa.Schema:
        """What a frame of this stream holds."""
        return pa.schema([*self.rows, *self.cast_keys])

    def keys_of(self, routed: pa.RecordBatch) -> pa.RecordBatch:
        columns = [routed.column(position) for position in self.key_positions]
        return pa.RecordBatch.from_arrays(columns, schema=self.key)

    def rows_of(self, routed: pa.RecordBatch) -> pa.RecordBatch:
        columns = routed.columns[: len(self.rows)]
        return pa.RecordBatch.from_arrays(columns, schema=self.rows)


@dataclass(frozen=True)
class JoinPlan:
    """A join as built by ``multiway_join``."""

    spec: CoercedSpec
    key_types: tuple[str, ...]
    """As the checkpoint has them."""
    streams: tuple[StreamPlan, ...]
    memory_bytes: int
    backend: str
    buckets: int | None
    """As asked for; None adopts what the checkpoint pins, or takes the default."""
    default_buckets: int
    state_dir: str | None
    time_zone: str | None
    """The session's, where Spark casts a key to a time stamp by it."""

    @property
    def condition(self) -> str:
        """The condition in one form, however it was written."""
        keys = self.spec.keys
        count = len(self.spec.key_schema)
        return " AND ".join(
            " = ".join(f"{name}.{columns[k]}" for name, columns in keys.items())
            for k in range(count)
        )

    def wanted(self) -> "Wanted":
        """What the checkpoint has to agree with."""
        settings = {
            "streams": [stream.name for stream in self.streams],
            "condition": self.condition,
            "backend": self.backend,
            "key types": list(self.key_types),
            "time zone of the keys": self.time_zone,
            **{f"columns of {s.name}": list(s.pinned) for s in self.streams},
        }
        return Wanted(settings, self.buckets, self.default_buckets, self.state_dir)


@dataclass(frozen=True)
class Wanted:
    """The settings of a join that its checkpoint pins; travels inside the plan as JSON."""

    settings: dict[str, Any]
    buckets: int | None
    default_buckets: int
    state_dir: str | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Wanted":
        return cls(**json.loads(text))
