"""The order in which a binary join tree costs least on a sample: all of them are tried.

What an order costs is counted, not timed: bytes that its tree stores as intermediate results, and
bytes that it fetches. So a sample gives the same choice on any machine, however busy it is. Bytes
and not rows, as intermediate rows are of any width: those of the paper's query (TPC-DS at scale
0.1, 15 orders) rank as CPU seconds do, but for near ties.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.inner.binary_tree_join import TreeJoin
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.binary_tree import BinaryTree, Order, all_orders, stored_order
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.schema.batches import as_batch
from lsmstate.store import BatchLike, Matches, MultimapStore, Mutation, Positions, Probe
from lsmstate.tools.recorded_streams import kept_streams

#: What stands for an order where it is to be found.
BEST: Final = "best"
#: More orders are not tried: these are those of six streams with one common key.
MOST_ORDERS = 945
#: More streams have too many orders to be counted one by one.
MOST_STREAMS = 8
#: The streams' samples arrive in so many parts each, which take turns.
PARTS = 8

Sample = Mapping[str, BatchLike]


@dataclass(slots=True)
class OrderCost:
    """What the tree of one order did with a sample. Bytes are those of Arrow data."""

    order: Order
    stored_rows: int = 0
    stored_bytes: int = 0
    fetched_rows: int = 0
    fetched_bytes: int = 0

    @property
    def cost_bytes(self) -> int:
        """What orders are compared by."""
        return self.stored_bytes + self.fetched_bytes

    def cells(self) -> tuple[str, ...]:
        """The four counts, and the order as JSON."""
        counts = (self.stored_rows, self.stored_bytes, self.fetched_rows, self.fetched_bytes)
        return (*(f"{count:,}" for count in counts), json.dumps(self.order, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class TriedOrders:
    """All orders of a join with what they cost, the cheapest first; ``str`` is a table of them."""

    costs: tuple[OrderCost, ...]

    @property
    def best(self) -> Order:
        """The cheapest order; of equal ones the first in ``all_orders``."""
        return self.costs[0].order

    def __str__(self) -> str:
        head = ("stored rows", "stored bytes", "fetched rows", "fetched bytes", "order")
        lines = [head, *(cost.cells() for cost in self.costs)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        widths[-1] = 0
        return "\n".join(
            "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
            for line in lines
        )


def try_orders(
    spec: JoinSpec | GraphSpec, sample: Sample, options: Options | None = None
) -> TriedOrders:
    """Join the sample in every order, each in a store of its own that is thrown away.

    ``sample`` holds some rows of each stream: such as match, or every order looks alike (all rows
    of some keys tell more than some rows of all keys). Cost: the join of the sample once for each
    order, of which there are 15 for four streams with one common key, 105 for five and 945 for
    six; ``options.memory_bytes`` caps what one holds in memory, the rest lies in a temporary
    directory. InvalidArgumentError if there are more than MOST_ORDERS, or the sample lacks a
    stream or has other columns.
    """
    orders = _orders(spec)
    sample = _checked_sample(spec, sample)
    arrivals = list(_arrivals(sample))
    costs = [_cost(spec, order, arrivals, options or Options()) for order in orders]
    return TriedOrders(tuple(sorted(costs, key=lambda cost: cost.cost_bytes)))


def best_tree(
    spec: JoinSpec | GraphSpec,
    sample: Sample | None,
    path: str | None,
    backend: str,
    options: Options,
) -> tuple[BinaryTree, TriedOrders | None]:
    """The tree of ``order="best"``: that of the state kept in ``path`` if there is one, whatever
    the sample; else the cheapest, with all that was tried."""
    kept = kept_streams(path, backend=backend) if path is not None else None
    if kept is not None:
        return BinaryTree.create(spec, stored_order(spec, list(kept), str(path))), None
    if sample is None:
        raise InvalidArgumentError(
            "order='best' tries all orders on a sample; give some rows of each stream that match, "
            "as in sample={'a': batch, 'b': batch2}, or name the order"
        )
    tried = try_orders(spec, sample, options)
    return BinaryTree.create(spec, tried.best), tried


def _orders(spec: JoinSpec | GraphSpec) -> list[Order]:
    streams = len(spec.streams)
    if streams > MOST_STREAMS:
        most = 1
        for factor in range(3, 2 * streams - 2, 2):
            most *= factor
        raise _too_many(f"up to {most:,}", streams)
    orders = all_orders(spec)
    if len(orders) > MOST_ORDERS:
        raise _too_many(f"{len(orders):,}", streams)
    return orders


def _too_many(count: str, streams: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"order='best': a join of {streams} streams has {count} orders, and at most "
        f"{MOST_ORDERS} are tried; name one, as in order=['a', 'b', ...], or leave "
        "algorithm='tree' out: UMJoin needs no order"
    )


def _checked_sample(spec: JoinSpec | GraphSpec, sample: Sample) -> dict[str, pa.RecordBatch]:
    """The sample with its columns in the streams' order."""
    if sorted(sample) != sorted(spec.streams):
        raise InvalidArgumentError(
            f"sample has rows of {', '.join(sample) or 'no stream'}; give some rows of each "
            f"stream: {', '.join(spec.streams)}"
        )
    rows = {
        name: as_batch(sample[name], schema, f"sample[{name!r}]")
        for name, schema in spec.streams.items()
    }
    if not any(batch.num_rows for batch in rows.values()):
        raise InvalidArgumentError(
            "sample has no rows, so all orders would cost the same; give some rows that match"
        )
    return rows


def _arrivals(sample: Mapping[str, pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for part in range(PARTS):
        for name, rows in sample.items():
            first, last = (rows.num_rows * n // PARTS for n in (part, part + 1))
            if last > first:
                yield name, rows.slice(first, last - first)


def _cost(
    spec: JoinSpec | GraphSpec,
    order: Order,
    arrivals: list[tuple[str, pa.RecordBatch]],
    options: Options,
) -> OrderCost:
    tree = BinaryTree.create(spec, order)
    cost = OrderCost(order)
    with (
        tempfile.TemporaryDirectory(prefix="lsmstate-order-") as directory,
        closing(
            open_attempt(
                directory, tree.stream_schemas, batch_id=0, attempt_id="sample", options=options
            )
        ) as store,
    ):
        join = TreeJoin(tree, _Counting(store, spec.streams, cost))
        for stream, rows in arrivals:
            for _ in join.process(Batch(stream, rows)):
                pass  # what its results cost is counted as they are made
    return cost


class _Counting:
    """A store that counts into ``cost`` what is stored beside the streams and what is fetched."""

    def __init__(self, store: MultimapStore, inputs: Mapping[str, Any], cost: OrderCost) -> None:
        self._store = store
        self._inputs = inputs
        self._cost = cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write_all(self, parts: Iterable[Sequence[Mutation]]) -> int:
        for part in parts:
            for mutation in part:
                rows: pa.RecordBatch | None = mutation.rows
                if mutation.stream not in self._inputs and rows is not None:
                    self._cost.stored_rows += rows.num_rows
                    self._cost.stored_bytes += rows.nbytes
        return self._store.write_all(parts)

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        return _CountingProbe(self._store.probe(stream, keys, positions), self._cost)


class _CountingProbe:
    def __init__(self, probe: Probe, cost: OrderCost) -> None:
        self.counts = probe.counts
        self.row_bytes = probe.row_bytes
        self._probe = probe
        self._cost = cost

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        for found in self._probe.fetch(positions, max_bytes):
            self._cost.fetched_rows += found.rows.num_rows
            self._cost.fetched_bytes += found.rows.nbytes
            yield found
