"""All unordered pairs of rows of one stream: a kind of join for the tests of order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.kinds import Kind
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.pair_order import (
    HASH_BYTES,
    content_hashes,
    digests_of,
    hashes_of,
    is_greater,
)
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.store import MultimapStore, StreamSchema

NAME: Final = "rows"
KEY: Final = pa.schema([("all", pa.int8())])
#: Beside a stored row: the micro-batch it came in, and its content hash.
ADDED: Final = [pa.field("@batch", pa.int64()), pa.field("@hash", pa.binary(HASH_BYTES))]


@dataclass(frozen=True)
class SelfSpec:
    """The one stream's columns."""

    rows: pa.Schema
    event_time: ClassVar[None] = None

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        return {NAME: self.rows}

    @property
    def output_schema(self) -> pa.Schema:
        """Both rows of a pair, the one with the greater content hash first."""
        sides = ("first", "second")
        return pa.schema([f.with_name(f"{side}_{f.name}") for side in sides for f in self.rows])

    @property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        return (StreamSchema(NAME, KEY, pa.schema([*self.rows, *ADDED])),)

    def computed(self, _stream: str) -> Sequence[str]:
        return ("k0",)

    def described(self) -> Mapping[str, Any]:
        return {"all pairs of": self.rows.names}

    def check_stream(self, stream: str) -> None:
        assert stream == NAME


class SelfJoin(KeepsAllRows):
    """The local join. Its results are few: they are made at once."""

    def __init__(self, spec: SelfSpec, store: MultimapStore, context: Context) -> None:
        self._spec = spec
        self._store = store
        self._micro_batch = context.micro_batch
        self._codec = RowCodec(spec.rows)

    def process(self, batch: Batch) -> Results:
        rows = batch.rows
        hashes = content_hashes(rows, self._codec)
        found = list(self._with_stored(rows, hashes, only_greater=batch.role == Role.PROBE))
        if batch.role != Role.PROBE:
            left, right = np.triu_indices(rows.num_rows, 1)
            found.append(self._pairs(rows, hashes, left, rows, hashes, right))
            batches = np.full(rows.num_rows, self._micro_batch)
            stored = pa.RecordBatch.from_arrays(
                [*rows.columns, pa.array(batches), digests_of(hashes)],
                schema=self._spec.stream_schemas[0].rows,
            )
            keys = pa.RecordBatch.from_arrays([np.zeros(rows.num_rows, np.int8)], schema=KEY)
            self._store.append(NAME, stored, keys)
        return Results(piece for piece in found if piece.num_rows)

    def _with_stored(
        self, rows: pa.RecordBatch, hashes: Any, *, only_greater: bool
    ) -> Iterator[pa.RecordBatch]:
        for _, stored in self._store.iterate(NAME):
            others = hashes_of(b"".join(stored.column("@hash").to_pylist()))
            counts = np.ones((rows.num_rows, stored.num_rows), np.bool_)
            if only_greater:
                is_older = stored.column("@batch").to_numpy() < self._micro_batch
                counts = is_older[None, :] | is_greater(hashes[:, None], others[None, :])
            left, right = np.nonzero(counts)
            plain = stored.select(self._spec.rows.names)
            yield self._pairs(rows, hashes, left, plain, others, right)

    def _pairs(
        self,
        a: pa.RecordBatch,
        a_hashes: Any,
        left: Any,
        b: pa.RecordBatch,
        b_hashes: Any,
        right: Any,
    ) -> pa.RecordBatch:
        """The greater row first, so that results do not depend on who found whom."""
        turned = is_greater(b_hashes[right], a_hashes[left])
        one, other = a.take(pa.array(left)), b.take(pa.array(right))
        columns = [
            pa.array(
                np.where(turned, y.to_numpy(zero_copy_only=False), x.to_numpy(zero_copy_only=False))
            ).cast(field.type)
            for ones, others in ((one, other), (other, one))
            for field, x, y in zip(self._spec.rows, ones.columns, others.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)


KIND: Final = Kind("all pairs of one stream", SelfSpec, SelfJoin)
