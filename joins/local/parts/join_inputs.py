"""What a local join asks of the store it works on."""

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.store import Positions, Probe, StreamSchema


class JoinInputs(Protocol):
    """The inputs that a join stores and probes; part of store.StateStore."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """The streams by name."""
        ...

    def append(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """Store a batch under its keys, row by row. Returns the number of rows."""
        ...

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up keys. The rows found are read by the probe's ``fetch``."""
        ...
