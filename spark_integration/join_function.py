"""The join as a stateful function: UMJoin over the bucket's store."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from joins.local.umjoin import UMJoin
from joins.spec import JoinSpec
from lsmstate.store import MultimapStore
from spark_integration.bucket import Bucket, BucketFunction, InputBatch


@dataclass(frozen=True)
class CoercedSpec(JoinSpec):
    """A JoinSpec whose keys Spark casts before they reach us, to the types of its own ``=``."""

    coerced: pa.Schema

    @cached_property
    def key_schema(self) -> pa.Schema:
        return self.coerced

    @property
    def condition(self) -> str:
        """The condition in one form, however it was written."""
        return " AND ".join(
            " = ".join(f"{name}.{columns[k]}" for name, columns in self.keys.items())
            for k in range(len(self.key_schema))
        )


def join_function(spec: JoinSpec) -> BucketFunction:
    """Appends each batch to its own stream, probes the others, yields what matches."""

    def join(
        _bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch]:
        joined = UMJoin(spec, store)
        for batch in batches:
            yield from joined.process(batch.input, batch.rows, batch.keys)

    return join
