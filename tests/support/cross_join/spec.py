"""CrossSpec: two small streams, each row of one with each row of the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.one_key import check_streams, joined_schema
from lsmstate.store import StreamSchema

#: All rows of a stream lie under one key.
KEY: Final = pa.schema([("all", pa.int8())])


@dataclass(frozen=True)
class CrossSpec:
    """Made by ``CrossSpec.of``."""

    streams: Mapping[str, pa.Schema]
    event_time: ClassVar[None] = None

    @classmethod
    def of(cls, streams: Mapping[str, pa.Schema]) -> "CrossSpec":
        """InvalidArgumentError unless they are two."""
        check_streams(streams)
        if len(streams) != 2:
            raise InvalidArgumentError(f"{len(streams)} streams: a cross join has two")
        return cls(dict(streams))

    @property
    def output_schema(self) -> pa.Schema:
        """All columns of both streams."""
        return joined_schema(self.streams)

    @property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams of the store."""
        return tuple(StreamSchema(name, KEY, rows) for name, rows in self.streams.items())

    def computed(self, stream: str) -> Sequence[str]:
        """The columns that the router deals rows by."""
        return (self.streams[stream].names[0],)

    def described(self) -> Mapping[str, Any]:
        """What is compared with a kept state."""
        return {"cross join of": list(self.streams)}

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError if there is no such stream."""
        if stream not in self.streams:
            raise InvalidArgumentError(
                f"there is no stream {stream!r}; streams: {', '.join(self.streams)}"
            )
