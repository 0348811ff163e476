"""Rows by the hash of their one key, with hot keys spread over several buckets."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.protocols import Numbers, Routed
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash import bucket_of
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.routing.skew.heavy_hitters import Hashes
from lsmstate.joins.routing.skew.respread import MOST_KEYS, Seen, respread
from lsmstate.joins.routing.skew.spread import RouteTable

_log: Final = logging.getLogger("lsmstate")


@dataclass(frozen=True)
class SpreadRouting:
    """Each row goes to the bucket of its key's hash, or to those of its key in the table."""

    streams: tuple[str, ...] = ()
    """Those of the join."""
    buckets: int = 1

    #: Elsewhere than in a local directory keys are counted so (``KeySample``).
    makes_tables_alike: ClassVar[bool] = True

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

    @property
    def initial_table(self) -> RouteTable:
        """No key is spread."""
        return RouteTable()

    def next_table(
        self, table: RouteTable, observed: Sequence[Seen], micro_batch: int
    ) -> RouteTable:
        """Spread what was hot of late, beside the keys that are spread already."""
        found = respread(table, observed, self.buckets, self.streams, micro_batch - 1)
        if len(table.keys) < len(found.keys) == MOST_KEYS:
            _log.warning(
                "%d hot keys are spread from micro-batch %d on, which is the maximum; any further "
                "hot key stays in one bucket",
                MOST_KEYS,
                micro_batch,
            )
        return found

    def table_from_json(self, found: Mapping[str, Any]) -> RouteTable:
        """The inverse of ``RouteTable.to_json``."""
        return RouteTable.from_json(found)

    def observed_from_json(self, bucket: int, found: Mapping[str, Any]) -> Seen:
        """The inverse of ``Seen.to_json``."""
        return Seen.from_json(bucket, found)

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
