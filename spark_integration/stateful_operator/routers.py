"""Routers: the bucket of each row, by the hash of one key, spread for hot keys, or by shares of
several."""

from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.routing.hash import NO_BUCKET, bucket_of
from lsmstate.joins.routing.shares import JoinGraph, Shares
from lsmstate.joins.routing.skew.heavy_hitters import Hashes
from lsmstate.joins.routing.skew.spread import Numbers, Routed, RouteTable, content_hashes
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.skew.key_watch import SPREAD
from lsmstate.spark_integration.skew.route_tables import Routes
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema

#: Under which the shares stand among what a checkpoint's later starts adopt.
SHARES: str = "shares"


class Router(Protocol):
    """Says in which buckets a row goes. That depends only on its keys, on what the checkpoint keeps
    and, if its key is spread, on the rest of the row."""

    def route(self, routed: pa.RecordBatch) -> Routed:
        """Route rows, which have the columns of the input's ``routed``.

        Returns:
            Positions of rows, ascending, and beside each the bucket of a copy: 0 to buckets - 1.
            Rows that match nothing because of a null key are left out.
        """
        ...


def router_of(plan: StatefulPlan, source: InputPlan, run: TaskRun) -> Router:
    """The router of one input, for one task."""
    pinned = run.pinned
    if plan.joins:
        number = next(n for n, join in enumerate(plan.joins) if source in join.inputs)
        own = replace(pinned, adopted={SHARES: pinned.adopted[SHARES][number]})
        return router_of(plan.joins[number], source, replace(run, pinned=own))
    if plan.skew == SPREAD:
        return SpreadRouter(source, pinned.buckets, Routes.of(plan, run).table(run.batch_id))
    if plan.graph is None:
        return HashRouter(
            source,
            pinned.buckets,
            plan.keeps_null_keys,
            routes_null_keys=source.name in plan.routes_null_keys,
        )
    shares = Shares.from_json(pinned.adopted[SHARES], plan.graph)
    return SharesRouter(
        source,
        plan.graph,
        shares,
        by_part_of_keys=plan.matches_by_part_of_keys,
        routes_null_keys=source.name in plan.routes_null_keys,
        marks_copies=plan.marks_copies,
    )


def called_buckets(plan: StatefulPlan, run: TaskRun) -> tuple[int, ...]:
    """The buckets that every task calls, even without rows for them.

    - If event time counts, that is every bucket in the first micro-batch. From then on each bucket
      is called with every watermark, so it can judge late rows although it had no rows.
    - If hot keys are spread, it is the buckets that copy earlier rows of a key (backfill), while
      these can be read.
    """
    if plan.watches_time and run.batch_id == 0:
        return tuple(range(run.pinned.buckets))
    if plan.skew != SPREAD:
        return ()
    return Routes.of(plan, run).table(run.batch_id).added()


class HashRouter:
    """Each row goes to the bucket of its key's hash. With ``keeps_null_keys`` a null is a value.
    With ``routes_null_keys`` it is not, but its rows go to a bucket too."""

    def __init__(
        self,
        source: InputPlan,
        buckets: int,
        keeps_null_keys: bool,
        *,
        routes_null_keys: bool = False,
    ) -> None:
        key = source.key
        self._source = source
        self._codec = KeyCodec(null_safe_schema(key) if keeps_null_keys else key)
        self._null_codec = KeyCodec(null_safe_schema(key)) if routes_null_keys else None
        self._keeps_null_keys = keeps_null_keys
        self._buckets = buckets

    def route(self, routed: pa.RecordBatch) -> Routed:
        keys = self._source.keys_of(routed)
        encoded = self._codec.encode(null_safe_keys(keys) if self._keeps_null_keys else keys)
        buckets = bucket_of(encoded, self._buckets)
        lacking = np.flatnonzero(buckets == NO_BUCKET)
        if self._null_codec is not None and len(lacking):
            others = null_safe_keys(keys.take(pa.array(lacking)))
            buckets[lacking] = bucket_of(self._null_codec.encode(others), self._buckets)
        positions = np.flatnonzero(buckets != NO_BUCKET)
        return Routed(positions, buckets[positions])


class SpreadRouter:
    """Like HashRouter, but hot keys have several buckets."""

    def __init__(self, source: InputPlan, buckets: int, table: RouteTable) -> None:
        self._source = source
        self._codec = KeyCodec(source.key)
        self._rows_codec = RowCodec(source.rows)
        self._buckets = buckets
        self._table = table

    def route(self, routed: pa.RecordBatch) -> Routed:
        encoded = self._codec.encode(self._source.keys_of(routed))
        owners = bucket_of(encoded, self._buckets)
        rows = self._source.rows_of(routed)

        def contents(positions: Numbers) -> Hashes:
            return content_hashes(rows.take(pa.array(positions)), self._rows_codec)

        return self._table.route(self._source.name, encoded.hashes, owners, contents)


class SharesRouter:
    """Each row goes to a cell of the grid of shares, copied along the dimensions of keys it lacks.

    - A row with a null in a key goes nowhere.
    - With ``by_part_of_keys``, that holds only for a null in a key that is split.
    - With ``routes_null_keys``, such a row goes to one cell, where the partners by its other keys
      are. The stream then holds every key that is split.
    - With ``marks_copies``, the first bucket of a row stores it, and the others know that it is a
      copy.
    """

    def __init__(
        self,
        source: InputPlan,
        graph: JoinGraph,
        shares: Shares,
        *,
        by_part_of_keys: bool = False,
        routes_null_keys: bool = False,
        marks_copies: bool = False,
    ) -> None:
        self._source = source
        self._shares = shares
        self._marks_copies = marks_copies
        self._codec = KeyCodec(source.key)
        self._null_codec = KeyCodec(null_safe_schema(source.key)) if routes_null_keys else None
        self._by_part_of_keys = by_part_of_keys
        held = [name for name in graph.classes if graph.holds(source.name, name)]
        self._split = {
            name: (place, KeyCodec(pa.schema([source.key.field(place)])))
            for place, name in enumerate(held)
            if shares.shares[name] > 1
        }

    def route(self, routed: pa.RecordBatch) -> Routed:
        keys = self._source.keys_of(routed)
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
        elif self._by_part_of_keys:
            valid = np.ones(len(keys), dtype=np.bool_)
            for encoded in split.values():
                valid &= encoded.valid
        else:
            valid = self._codec.encode(keys).valid
        positions, buckets = self._shares.route(self._source.name, hashes, valid)
        if not self._marks_copies:
            return Routed(positions, buckets)
        return Routed(positions, buckets, np.diff(positions, prepend=-1) > 0)
