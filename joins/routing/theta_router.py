"""Rows of joins by any condition, along the dimensions of a grid of buckets (hypercube).

A dimension belongs to columns that are equal in every result, or to a stream that has none of them:
its rows are dealt by the hash of their content, so that a repeated micro-batch deals them alike.

Sources: Afrati, Ullman, *Optimizing joins in a map-reduce environment* (EDBT 2010); a stream of its
own dimension is a side of the join-matrix of Okcan, Riedewald, *Processing theta-joins using
MapReduce* (SIGMOD 2011), which fills it at random.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.key_parts import KeyPart
from lsmstate.joins.protocols import Role, Routed
from lsmstate.joins.routing.content import EqualRows
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.routing.shares import JoinGraph, Shares
from lsmstate.joins.routing.shares_router import SHARES


@dataclass(frozen=True)
class ThetaRouting:
    """Each row goes to its place along each dimension of its stream, and is copied along the
    others. All rows of a result meet in one bucket."""

    graph: JoinGraph
    shares: Shares
    parts: Mapping[str, Mapping[str, KeyPart]] = field(default_factory=dict)
    """By class, and by stream that holds it, the value that is equal; other classes are filled by
    the content of rows."""
    routes_null_keys: frozenset[str] = frozenset()
    """Streams whose rows go to one place along a dimension also where their value is null: they may
    be results without a partner."""
    operations: Mapping[str, str] = field(default_factory=dict)
    """The operation column of each stream that is a changelog; it is no content of a row."""
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

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "ThetaRouting":
        """The routing by the shares that the first start fixed."""
        return replace(self, shares=Shares.from_json(adopted[SHARES], self.graph))

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: object = None
    ) -> "ThetaRouter":
        """The router of one stream."""
        return ThetaRouter(self, stream, rows)


class ThetaRouter:
    """The router of one stream of ``ThetaRouting``."""

    def __init__(self, routing: ThetaRouting, stream: str, rows: pa.Schema) -> None:
        graph, shares = routing.graph, routing.shares
        held = [n for n in graph.classes if graph.holds(stream, n) and shares.shares[n] > 1]
        self._routing, self._shares, self._stream = routing, shares, stream
        self._parts = {name: routing.parts[name][stream] for name in held if name in routing.parts}
        self._codecs = {
            name: KeyCodec(pa.schema([("k", part.type)])) for name, part in self._parts.items()
        }
        self._dealt = [name for name in held if name not in routing.parts]
        self._columns = [n for n in rows.names if n != routing.operations.get(stream)]
        self._content = EqualRows(pa.schema([rows.field(name) for name in self._columns]))

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows. A row with a null that equals nothing goes nowhere, unless it may be a result
        all the same."""
        valid = np.ones(rows.num_rows, np.bool_)
        hashes: dict[str, npt.NDArray[np.uint64]] = {}
        keeps_nulls = self._stream in self._routing.routes_null_keys
        for name, part in self._parts.items():
            values = part.values(partial(_own_column, rows), rows.num_rows)
            encoded = self._codecs[name].encode(pa.record_batch([values], ["k"]))
            hashes[name] = encoded.hashes
            if keeps_nulls and not encoded.valid.all():
                hashes[name] = np.where(encoded.valid, encoded.hashes, self._contents(rows))
            elif not keeps_nulls:
                valid &= encoded.valid
        if self._dealt:
            hashes.update(dict.fromkeys(self._dealt, self._contents(rows)))
        positions, buckets = self._shares.route(self._stream, hashes, valid)
        if not self._routing.marks_copies:
            return Routed(positions, buckets)
        is_own = np.diff(positions, prepend=-1) > 0
        return Routed(positions, buckets, np.where(is_own, Role.STORE, Role.COPY).astype(np.int8))

    def _contents(self, rows: pa.RecordBatch) -> npt.NDArray[np.uint64]:
        return self._content.hashes(rows.select(self._columns))


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)
