"""Rows by the hash of their one key: rows of one key lie in one bucket."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.protocols import Routed
from lsmstate.joins.routing.hash import NO_BUCKET, bucket_of
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema

NO_MARKS: Final = pa.schema([])


@dataclass(frozen=True)
class HashRouting:
    """Each row goes to the bucket of its key's hash."""

    keeps_null_keys: bool = False
    """Whether a null is a key value like any other. Otherwise rows with one match nothing."""
    routes_null_keys: frozenset[str] = frozenset()
    """Streams whose rows go to a bucket all the same if their key holds a null."""
    buckets: int = 1

    @property
    def adopted(self) -> Mapping[str, Any]:
        """Nothing: the number of buckets says it all."""
        return {}

    @property
    def marks(self) -> pa.Schema:
        """None."""
        return NO_MARKS

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "HashRouting":
        """The routing over that many buckets."""
        return replace(self, buckets=buckets)

    def router(
        self,
        stream: str,
        rows: pa.Schema,
        keys: pa.Schema,
        table: object = None,
    ) -> "HashRouter":
        """The router of one stream."""
        return HashRouter(
            keys,
            self.buckets,
            keeps_null_keys=self.keeps_null_keys,
            routes_null_keys=stream in self.routes_null_keys,
        )


class HashRouter:
    """The router of one stream of ``HashRouting``."""

    def __init__(
        self,
        keys: pa.Schema,
        buckets: int,
        *,
        keeps_null_keys: bool = False,
        routes_null_keys: bool = False,
    ) -> None:
        self._codec = KeyCodec(null_safe_schema(keys) if keeps_null_keys else keys)
        self._null_codec = KeyCodec(null_safe_schema(keys)) if routes_null_keys else None
        self._keeps_null_keys = keeps_null_keys
        self._buckets = buckets

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows by their keys."""
        encoded = self._codec.encode(null_safe_keys(keys) if self._keeps_null_keys else keys)
        buckets = bucket_of(encoded, self._buckets)
        lacking = np.flatnonzero(buckets == NO_BUCKET)
        if self._null_codec is not None and len(lacking):
            others = null_safe_keys(keys.take(pa.array(lacking)))
            buckets[lacking] = bucket_of(self._null_codec.encode(others), self._buckets)
        positions = np.flatnonzero(buckets != NO_BUCKET)
        return Routed(positions, buckets[positions])
