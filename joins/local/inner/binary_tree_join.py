"""A tree of two-way joins with stored intermediate results: what UMJoin is measured against.

Each node is a UMJoin of two inputs, a stream or the result of the node below, and keeps both in
the one store of the tree: store, keys, probing and products are the same code on both sides of the
comparison. (Streaming SQL engines join several streams this way; section 4.2 of the UMJoin paper
calls it a BJT.)

While the rows of one stream climb towards the root, what is to be written lies on their path and
what is read lies beside it. So everything is kept back until they have reached the root's input,
and is stored at once: a batch that is refused is not stored in part.
"""

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.spilled_rows import KEPT_BYTES, SpilledRows
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.protocols import Batch, Context, Role, check_is_stored
from lsmstate.joins.specs.binary_tree import SIDES, BinaryTree, Leaf, Node
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore, Mutation, Positions, Probe, StateStore, StreamSchema


class TreeJoin(KeepsAllRows):
    """The operator over one store, whose streams are ``tree.stream_schemas``.

    Not thread-safe. The store belongs to the caller, who commits and closes it.
    """

    def __init__(self, tree: BinaryTree, store: MultimapStore, piece_bytes: int = 1 << 20) -> None:
        wanted = [schema.name for schema in tree.stream_schemas]
        if list(store.streams) != wanted:
            raise InvalidArgumentError(
                f"the store holds the streams {', '.join(store.streams)}, the join needs "
                f"{', '.join(wanted)}; open the store with tree.stream_schemas"
            )
        self._tree = tree
        self._store = store
        self._piece_bytes = piece_bytes
        self._paths = {name: tree.path_of(name) for name in tree.join.streams}
        nodes = {node.name: node for path in self._paths.values() for node, _ in path}
        self._inputs = {name: NodeInputs(node, store) for name, node in nodes.items()}
        self._joins = {
            name: UMJoin(node.spec, self._inputs[name], piece_bytes) for name, node in nodes.items()
        }
        self._columns = _output_columns(tree)
        self._unfinished: Results | None = None

    @classmethod
    def of(cls, spec: BinaryTree, store: MultimapStore, context: Context) -> "TreeJoin":
        """The join in one store."""
        return cls(spec, store, context.piece_bytes)

    def process(self, batch: Batch) -> Results:
        """Store a batch and its intermediate results, and return its new results.

        A batch that the store refuses is not stored at all, nor are its intermediate results.

        Args:
            batch: The rows; columns are taken by name.

        Returns:
            The results in pieces of at most ``piece_bytes`` or one row, computed as they are read.
            Read them to the end, or close them, before the next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, or earlier results are not
                read.

        Cost:
            Per node a piece, what UMJoin takes, and KEPT_BYTES of memory. More intermediate results
            lie in temporary files.
        """
        stream = batch.stream
        self._tree.join.check_stream(stream)
        check_is_stored(batch)
        check_finished(f"process({stream!r})", self._unfinished)
        rows = as_batch(batch.rows, self._tree.join.streams[stream], f"process({stream!r})")
        path = self._paths[stream]
        for name, inputs in self._inputs.items():
            self._joins[name].give_up()  # of results that failed or were given up
            inputs.let_go()
        node, side = path[0]
        renamed = pa.RecordBatch.from_arrays(rows.columns, schema=node.spec.streams[side])
        for part in pieces_of(row_sizes(renamed), self._piece_bytes):
            self._climb(path, renamed.slice(part.start, part.stop - part.start))
        self._store.write_all(
            WriteParts(lambda: chain.from_iterable(self._inputs[n.name].writes() for n, _ in path))
        )
        self._unfinished = Results(self._results(*path[-1]), schema=self._tree.join.output_schema)
        return self._unfinished

    def _climb(self, path: list[tuple[Node, str]], rows: pa.RecordBatch) -> None:
        """Keep back what rows become on their way: the inputs of all nodes up to the root."""
        levels: list[Iterator[pa.RecordBatch]] = [iter([rows])]
        while levels:
            piece = next(levels[-1], None)
            if piece is None:
                levels.pop()
                continue
            node, side = path[len(levels) - 1]
            if len(levels) < len(path):
                levels.append(self._joins[node.name].process(Batch(side, piece)))
            else:
                self._inputs[node.name].append(side, piece, node.spec.key_batch(side, piece))

    def _results(self, root: Node, side: str) -> Iterator[pa.RecordBatch]:
        """What the root's new input, which has been stored, becomes there."""
        schema = self._tree.join.output_schema
        for rows, keys in self._inputs[root.name].kept(side):
            probing = Batch(side, rows, keys, Role.PROBE)
            # Closed with this generator: unread results would hold what they read open.
            with self._joins[root.name].process(probing) as matches:
                for found in matches:
                    columns = [found.column(place) for place in self._columns]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)


class NodeInputs:
    """The two inputs of a node as a store for its join, which keeps back what is appended; see
    store.StateStore."""

    def __init__(self, node: Node, store: StateStore) -> None:
        self._node = node
        self._store = store
        self._names = {side: node.input_of(side).name for side in SIDES}
        self.streams = {
            side: StreamSchema(side, node.spec.key_schema, node.spec.streams[side])
            for side in SIDES
        }
        self._kept: dict[str, KeptBack] = {}
        self.let_go()

    def append(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """Keep rows back for ``writes``. Returns how many they are."""
        self._kept[stream].add(rows, keys)
        return int(rows.num_rows)

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up keys among the rows of one side that are stored."""
        return self._store.probe(self._names[stream], keys, positions)

    def kept(self, side: str) -> "KeptBack":
        """What was appended to a side."""
        return self._kept[side]

    def writes(self) -> Iterator[list[Mutation]]:
        """What stores it, made anew at each call."""
        for side, kept in self._kept.items():
            for rows, keys in kept:
                yield [Mutation("append", self._names[side], keys, rows)]

    def let_go(self) -> None:
        """Forget it."""
        self._kept = {
            # A stream's own rows are slices of the batch, which is in memory as long as they are.
            side: KeptBack(
                self._node.spec,
                side,
                None if isinstance(self._node.input_of(side), Leaf) else KEPT_BYTES,
            )
            for side in SIDES
        }


class KeptBack:
    """Rows in arrival order with their keys, some of them on disk."""

    def __init__(self, spec: JoinSpec, side: str, most_bytes: int | None) -> None:
        """``most_bytes`` are kept in memory; None: all."""
        self._spec = spec
        self._side = side
        self._rows = SpilledRows(most_bytes)
        self._keys: list[pa.RecordBatch | KeyBatch] = []

    def add(self, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> None:
        """Keep one batch more; none once they were gone through."""
        if self._rows.add(rows):
            self._keys.append(keys)

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | KeyBatch]]:
        for at, rows in enumerate(self._rows):
            is_kept = at < len(self._keys)
            yield rows, self._keys[at] if is_kept else self._spec.key_batch(self._side, rows)


def _output_columns(tree: BinaryTree) -> list[int]:
    """Which columns of the root's result are the join's, in its order."""
    first: dict[str, int] = {}
    width = 0
    for leaf in tree.root.leaves:
        first[leaf.name] = width
        width += len(tree.join.streams[leaf.name])
    return [
        first[name] + column
        for name in tree.join.streams
        for column in range(tree.join.shown[name])
    ]
