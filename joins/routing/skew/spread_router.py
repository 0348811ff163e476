"""Rows by the hash of their one key, with hot keys spread over several buckets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.protocols import Numbers, Routed
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash import bucket_of
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.routing.skew.heavy_hitters import Hashes
from lsmstate.joins.routing.skew.spread import RouteTable


@dataclass(frozen=True)
class SpreadRouting:
    """Each row goes to the bucket of its key's hash, or to those of its key in the table."""

    buckets: int = 1

    @property
    def adopted(self) -> Mapping[str, Any]:
        """Nothing: tables of routes say it, micro-batch by micro-batch."""
        return {}

    @property
    def marks(self) -> pa.Schema:
        """None."""
        return NO_MARKS

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "SpreadRouting":
        """The routing over that many buckets."""
        return replace(self, buckets=buckets)

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: RouteTable | None = None
    ) -> "SpreadRouter":
        """The router of one stream under the table of a micro-batch."""
        return SpreadRouter(stream, rows, keys, self.buckets, table or RouteTable())


class SpreadRouter:
    """The router of one stream of ``SpreadRouting``."""

    def __init__(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, buckets: int, table: RouteTable
    ) -> None:
        self._stream = stream
        self._codec = KeyCodec(keys)
        self._rows_codec = RowCodec(rows)
        self._buckets = buckets
        self._table = table

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows by their keys, and rows of spread keys by what they hold."""
        encoded = self._codec.encode(keys)
        owners = bucket_of(encoded, self._buckets)

        def contents(positions: Numbers) -> Hashes:
            return content_hashes(rows.take(pa.array(positions)), self._rows_codec)

        return self._table.route(self._stream, encoded.hashes, owners, contents)
