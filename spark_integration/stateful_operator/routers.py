"""Where a row goes: by its one key, hot ones spread, or by shares of the keys it holds."""

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
    """A row's buckets depend on its keys, on what the checkpoint keeps and, where its key is
    spread, on what else it holds; on nothing else."""

    def route(self, routed: pa.RecordBatch) -> Routed:
        """``routed`` has the columns of the input's ``routed``. Positions of rows, ascending, and
        beside each the bucket of a copy: 0 to buckets - 1. Rows that match nothing because a key
        is null are not among them."""
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
    """Buckets that every task calls, whether it has rows for them or not. Where time counts, all in
    the first micro-batch: called from then on with every watermark, each judges by it what comes
    late, though it had no rows. Where hot keys are spread, those that take over what they lack,
    while it is there."""
    if plan.watches_time and run.batch_id == 0:
        return tuple(range(run.pinned.buckets))
    if plan.skew != SPREAD:
        return ()
    return Routes.of(plan, run).table(run.batch_id).added()


class HashRouter:
    """Each row to the bucket of its key's hash; with ``keeps_null_keys`` a null is a value. With
    ``routes_null_keys`` it is none, but its rows go somewhere too."""

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
    """As HashRouter, but hot keys have several buckets."""

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
    """Each row to a cell of the grid of shares, copied along the dimensions it has no key for. A
    row with a null in a key goes nowhere; with ``by_part_of_keys`` only one with a null in a key
    that is split, and with ``routes_null_keys`` it goes to one cell, where its other keys' partners
    are: such a stream holds every key that is split. With ``marks_copies`` the first of a row's
    buckets is told that it stores the row, the others that it is a copy."""

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
