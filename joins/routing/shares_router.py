"""Rows by the shares of several keys: each goes to the cells of a grid of buckets (hypercube).

Source: Afrati, Ullman, *Optimizing joins in a map-reduce environment* (EDBT 2010).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.protocols import Role, Routed
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.routing.shares import JoinGraph, Shares
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema

#: Under which the shares stand among what a checkpoint's later starts adopt.
SHARES: Final = "shares"


@dataclass(frozen=True)
class SharesRouting:
    """Each row goes to a cell of the grid of shares, copied along the dimensions of keys it lacks.

    The key columns of a stream are the classes that it holds, in the order of ``graph.classes``.
    """

    graph: JoinGraph
    shares: Shares
    by_part_of_keys: bool = False
    """Whether a row with a null in one key may match others by another one. Then it goes nowhere
    only for a null in a key that is split."""
    routes_null_keys: frozenset[str] = frozenset()
    """Streams whose rows go to one cell if a key holds a null: where the partners by their other
    keys are. Such a stream holds every key that is split."""
    marks_copies: bool = False
    """Whether the first bucket of a row stores it as its own, and the others as a copy."""

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The shares, which the first start fixes."""
        return {SHARES: self.shares.to_json()}

    @property
    def marks(self) -> pa.Schema:
        """None."""
        return NO_MARKS

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "SharesRouting":
        """The routing by the shares that the first start fixed."""
        return replace(self, shares=Shares.from_json(adopted[SHARES], self.graph))

    def router(
        self,
        stream: str,
        rows: pa.Schema,
        keys: pa.Schema,
        table: object = None,
    ) -> "SharesRouter":
        """The router of one stream."""
        return SharesRouter(self, stream, keys)


class SharesRouter:
    """The router of one stream of ``SharesRouting``."""

    def __init__(self, routing: SharesRouting, stream: str, keys: pa.Schema) -> None:
        graph = routing.graph
        self._routing = routing
        self._stream = stream
        self._codec = KeyCodec(keys)
        routes_null_keys = stream in routing.routes_null_keys
        self._null_codec = KeyCodec(null_safe_schema(keys)) if routes_null_keys else None
        held = [name for name in graph.classes if graph.holds(stream, name)]
        self._split = {
            name: (place, KeyCodec(pa.schema([keys.field(place)])))
            for place, name in enumerate(held)
            if routing.shares.shares[name] > 1
        }

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows by their keys."""
        split = {
            name: codec.encode(keys.select([place])) for name, (place, codec) in self._split.items()
        }
        hashes = {name: encoded.hashes for name, encoded in split.items()}
        if self._null_codec is not None:
            # Any place along a null's dimension will do; the whole key's spreads such rows.
            whole = self._null_codec.encode(null_safe_keys(keys)).hashes
            hashes = {
                name: np.where(encoded.valid, encoded.hashes, whole)
                for name, encoded in split.items()
            }
            valid = np.ones(len(keys), dtype=np.bool_)
        elif self._routing.by_part_of_keys:
            valid = np.ones(len(keys), dtype=np.bool_)
            for encoded in split.values():
                valid &= encoded.valid
        else:
            valid = self._codec.encode(keys).valid
        positions, buckets = self._routing.shares.route(self._stream, hashes, valid)
        if not self._routing.marks_copies:
            return Routed(positions, buckets)
        is_own = np.diff(positions, prepend=-1) > 0
        return Routed(positions, buckets, np.where(is_own, Role.STORE, Role.COPY).astype(np.int8))
