"""The join for plain Python: Arrow batches in, Arrow batches out, no Spark."""

import tempfile
from collections.abc import Mapping
from types import TracebackType

import pyarrow as pa

from joins.binary_tree import BinaryTree, Order
from joins.graph_spec import GraphSpec, create_spec
from joins.local.graph_join import GraphJoin
from joins.local.results import Results, check_finished
from joins.local.tree_join import TreeJoin
from joins.local.umjoin import UMJoin
from joins.spec import Condition, JoinSpec
from lsmstate.backends import open_store
from lsmstate.errors import InvalidArgumentError
from lsmstate.options import Options, parse_bytes
from lsmstate.stats import StoreStats
from lsmstate.store_checks import nearest

#: How several streams are joined; see MultiwayJoin.
ALGORITHMS = ("umjoin", "tree")


class MultiwayJoin:
    """Several streams joined over everything that was ever fed to it.

        with MultiwayJoin({"cu": schema, "sr": schema2}, on="cu.id = sr.cu_id") as join:
            for result in join.process("cu", batch):
                ...

    ``on`` is SQL text of equalities, which may be by several keys (``a.x = b.x AND b.y = c.y``), or
    the columns of one common key. ``memory`` caps what the state holds in memory. With ``path``
    the state is kept there and found again; without, it lies in a temporary directory that
    ``close`` removes.

    ``algorithm="umjoin"`` stores each input and probes one after another; with
    ``backend="memory"`` it is the operator known as MultiStream. ``algorithm="tree"``, to compare
    with, is the binary join tree: it stores the intermediate results too. ``order`` is its order
    (``["a", "b", "c"]``, or nested, ``["a", ["b", "c"]]``; default: that of the streams), for which
    ``joins.binary_tree.all_orders`` lists the choices; a kept state keeps its order.
    """

    def __init__(
        self,
        streams: Mapping[str, pa.Schema],
        on: Condition,
        *,
        memory: int | str = "64m",
        backend: str = "lsm",
        path: str | None = None,
        piece_bytes: int = 1 << 20,
        algorithm: str = "umjoin",
        order: Order | None = None,
    ) -> None:
        self.spec = create_spec(streams, on)
        tree = _tree(self.spec, algorithm, order)
        stored = self.spec if tree is None else tree
        options = Options(memory_bytes=parse_bytes(memory))
        self._temporary = None if path else tempfile.TemporaryDirectory(prefix="lsmstate-")
        directory = path or (self._temporary.name if self._temporary else "")
        try:
            self._store = open_store(
                directory, stored.stream_schemas, backend=backend, options=options
            )
        except BaseException:
            if self._temporary is not None:
                self._temporary.cleanup()
            raise
        self._join: UMJoin | GraphJoin | TreeJoin
        self._unfinished: Results | None = None
        if tree is not None:
            self._join = TreeJoin(tree, self._store, piece_bytes)
        elif isinstance(self.spec, GraphSpec):
            self._join = GraphJoin(self.spec, self._store, piece_bytes)
        else:
            self._join = UMJoin(self.spec, self._store, piece_bytes)

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of every result; see ``output_names`` for how they are called."""
        return self.spec.output_schema

    def process(self, stream: str, batch: pa.RecordBatch) -> Results:
        """Store the batch now; return what it newly matches, in bounded pieces.

        Consume or close the results before the next call.
        """
        self._unfinished = self._join.process(stream, batch)
        return self._unfinished

    def commit(self) -> None:
        """Make everything fed so far durable: opening ``path`` again finds it. InvalidArgumentError
        if a tree has results that were neither consumed nor closed: its state follows from them."""
        if isinstance(self._join, TreeJoin):
            check_finished(None, self._unfinished)
        self._store.commit()

    def stats(self) -> StoreStats:
        """Memory, disk and counters of the state as of now."""
        return self._store.stats()

    def close(self) -> None:
        """Release memory, locks and the temporary directory. A second call does nothing."""
        self._store.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> "MultiwayJoin":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _tree(spec: JoinSpec | GraphSpec, algorithm: str, order: Order | None) -> BinaryTree | None:
    """The tree of ``algorithm="tree"``."""
    if algorithm not in ALGORITHMS:
        raise InvalidArgumentError(
            f"algorithm={algorithm!r} is unknown{nearest(algorithm, ALGORITHMS)}"
        )
    if algorithm == "tree":
        return BinaryTree.create(spec, list(spec.streams) if order is None else order)
    if order is not None:
        raise InvalidArgumentError(
            f"order={order!r}: only algorithm='tree' joins in an order; leave order out"
        )
    return None
